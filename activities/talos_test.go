package activities

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/internal/talos"
)

func (w *world) talos() *Talos {
	return &Talos{Platform: w.platform, Tenants: &TenantClients{Kube: w.kube}, Maintenance: talos.NewMaintenance(talos.MaintenanceOptions{}), Now: time.Now}
}

// TestTheConfigurationIsMarkedBeforeItIsSent: a worker that is killed between
// sending and hearing must leave a trace that the next attempt finds.
func TestTheConfigurationIsMarkedBeforeItIsSent(t *testing.T) {
	w := leased(t)
	a := w.talos()
	target := func() talos.Target {
		t.Helper()
		got, err := a.maintenanceTarget(w.platformMachine(workerID))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := target(); got.Address.String() != "10.1.1.50:50000" || got.UUID != workerID || got.MayHaveConfig {
		t.Errorf("target %+v", got)
	}
	var first string
	w.twice("markSending", func() error {
		err := a.markSending(t.Context(), w.platformMachine(workerID))
		if mark := w.vm(workerID).Annotations[configuredAnnotation]; first == "" {
			first = mark
		} else if mark != first {
			t.Errorf("the mark changed from %s to %s", first, mark)
		}
		return err
	})
	if !target().MayHaveConfig {
		t.Error("the next attempt does not know")
	}
	// Another run starts from the beginning: the machine is not in maintenance
	// mode any more, and that is well.
	if err := a.WaitMaintenance(t.Context(), refOf(workerID)); err != nil {
		t.Error(err)
	}
	// A machine that was removed starts anew.
	if err := w.machines().ReleaseMachine(t.Context(), refOf(workerID)); err != nil {
		t.Fatal(err)
	}
	w.lease(workerID)
	if target().MayHaveConfig {
		t.Error("a machine that is made anew is taken for a configured one")
	}
}

func TestWaitMaintenanceTellsWhatItSaw(t *testing.T) {
	w := leased(t)
	a := w.talos()
	a.Maintenance = talos.NewMaintenance(talos.MaintenanceOptions{Dial: w.refuse})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := a.WaitMaintenance(ctx, refOf(workerID))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "10.1.1.50:50000") {
		t.Errorf("got %v", err)
	}
	_, err = a.maintenanceTarget(&machine{AetherVM: workerVM(worker2ID, "pv1-1")})
	if err := errorIs(classify(err), WaitingType, false, "has no address"); err != nil {
		t.Error(err)
	}
}

// TestTheTalosCAIsMadeOnce and its key never leaves its Secret.
func TestTheTalosCAIsMadeOnce(t *testing.T) {
	w := &world{t: t, kube: newKube(t)}
	w.platform = Platform{Kube: w.kube}
	first, err := w.talos().talosCA(t.Context(), "demo")
	if err != nil || !strings.Contains(string(first), "BEGIN CERTIFICATE") {
		t.Fatalf("%s, %v", first, err)
	}
	second, err := w.talos().talosCA(t.Context(), "demo")
	if err != nil || string(second) != string(first) {
		t.Errorf("another one: %v", err)
	}
	secret := &corev1.Secret{}
	if err := w.kube.Get(t.Context(), client.ObjectKey{Namespace: "tenant-demo", Name: "demo-talos-ca"}, secret); err != nil || len(secret.Data[corev1.TLSPrivateKeyKey]) == 0 {
		t.Errorf("%v, %v", secret.ObjectMeta, err)
	}
}

// TestTheSitesWishesReachTheConfiguration: cards with addresses, time, names,
// trust and mirrors.
func TestTheSitesWishesReachTheConfiguration(t *testing.T) {
	w := leased(t)
	w.site.Spec.TrustedRoots[0].PEM = "root"
	var input talos.Input
	if err := w.talos().addSite(w.platformMachine(workerID), &input); err != nil {
		t.Fatal(err)
	}
	if len(input.NICs) != 2 || input.NICs[0].Address.String() != "10.1.1.50/24" || input.NICs[0].Gateway.String() != "10.1.1.1" || input.NICs[0].MTU != 1500 {
		t.Errorf("cards %+v", input.NICs)
	}
	if input.NICs[1].Gateway.IsValid() {
		t.Error("the storage card has a gateway, and so two default routes")
	}
	if len(input.Nameservers) != 1 || len(input.TimeServers) != 1 || len(input.TrustedRoots) != 1 || len(input.Mirrors) != 4 {
		t.Errorf("input %+v", input)
	}
	vm := w.vm(workerID)
	vm.Spec.NICs[0].Network = "lan"
	if err := errorIs(classify(w.talos().addSite(&machine{AetherVM: vm}, &input)), RefusedType, true, "network lan"); err != nil {
		t.Error(err)
	}
}

// TestAConfigurationNeedsItsClaimant: labels and taints are the AetherMachine's.
func TestAConfigurationNeedsItsClaimant(t *testing.T) {
	w := leased(t)
	_, err := w.talos().claimant(t.Context(), w.platformMachine(workerID))
	if err := errorIs(classify(err), GoneType, true, "tenant-demo/demo-workers-6f1e was deleted"); err != nil {
		t.Error(err)
	}
	object := aetherMachine(workerID)
	object.Spec.Taints = []corev1.Taint{{Key: "a", Value: "b", Effect: corev1.TaintEffectNoSchedule, TimeAdded: new(metav1.Now())}}
	if err := w.kube.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	got, err := w.talos().claimant(t.Context(), w.platformMachine(workerID))
	if err != nil {
		t.Fatal(err)
	}
	if list := taints(got.Spec.Taints); len(list) != 1 || list[0] != (talos.Taint{Key: "a", Value: "b", Effect: "NoSchedule"}) {
		t.Errorf("taints %+v", list)
	}
}
