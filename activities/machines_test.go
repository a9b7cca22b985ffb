package activities

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/lab/faults"
)

func TestLeaseMachine(t *testing.T) {
	w := newWorld(t, tenantObject(), workerVM(workerID, "pv1-1"))
	first := w.lease(workerID)
	want := LeasedMachine{
		Name: "demo-workers-6f1e0c52", VMID: 1000, Host: "pv1-1", Address: "10.1.1.50",
		ProviderID: "aether://demo/" + workerID, FlushNeighbours: true,
	}
	if *first != want {
		t.Errorf("got %+v, want %+v", *first, want)
	}
	if second := w.lease(workerID); *second != *first {
		t.Errorf("the second attempt got %+v", *second)
	}
	vm := w.vm(workerID)
	if vm.Spec.VMID != 1000 || vm.Status.Phase != "Leased" || len(vm.Spec.NICs) != 2 {
		t.Fatalf("record %+v", vm.Spec)
	}
	for i, nic := range []v1alpha1.NIC{
		{Network: "tenant", Address: "10.1.1.50/24", MAC: domain.WorkerMAC(workerID, 0).String()},
		{Network: "storage", Address: "10.1.2.50/24", MAC: domain.WorkerMAC(workerID, 1).String()},
	} {
		if vm.Spec.NICs[i] != nic {
			t.Errorf("card %d is %+v", i, vm.Spec.NICs[i])
		}
	}
	held, err := w.leases.Held(t.Context(), workerID)
	if err != nil || len(held) != 3 {
		t.Errorf("held %+v, %v", held, err)
	}
	book, err := w.leases.Ledger(t.Context(), lease.Host{Cluster: "homelab", Name: "pv1-1"})
	if err != nil || len(book) != 1 || book[0].Machine != workerID || book[0].MemoryMiB != 2048 || book[0].VMID != 1000 {
		t.Errorf("ledger %+v, %v", book, err)
	}
}

func TestTheProxyGetsTheTenantsAddressAndItsMAC(t *testing.T) {
	w := newWorld(t, tenantObject(), proxyVM())
	got := w.lease(proxyID)
	if got.Address != "10.1.1.10" {
		t.Errorf("address %s", got.Address)
	}
	nics := w.vm(proxyID).Spec.NICs
	want := []v1alpha1.NIC{
		{Network: "mgmt", Address: "192.168.0.200/24", MAC: domain.WorkerMAC(proxyID, 0).String()},
		{Network: "tenant", Address: "10.1.1.10/24", MAC: domain.ProxyMAC(netip.MustParseAddr("10.1.1.10")).String()},
	}
	if !slices.Equal(nics, want) {
		t.Errorf("cards %+v, want %+v", nics, want)
	}
	unleased := tenantObject()
	unleased.Spec.ControlPlaneEndpoint = v1alpha1.APIEndpoint{}
	w = newWorld(t, unleased, proxyVM())
	_, err := w.machines().LeaseMachine(t.Context(), refOf(proxyID))
	if err := errorIs(err, WaitingType, false, "not leased yet"); err != nil {
		t.Error(err)
	}
}

// TestLeaseMachineIsCutOffAnywhere: at each write the answer is lost; the next
// attempt ends with one of each thing.
func TestLeaseMachineIsCutOffAnywhere(t *testing.T) {
	w := newWorld(t, tenantObject(), workerVM(workerID, "pv1-1"))
	good, writes, lost := w.kube, 0, errors.New("answer lost")
	cut := func(err error) error {
		writes++
		if err == nil && writes%2 == 1 {
			return lost
		}
		return err
	}
	w.platform.Kube = interceptor.NewClient(good, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return cut(c.Create(ctx, o, opts...))
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return cut(c.Update(ctx, o, opts...))
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return cut(c.Patch(ctx, o, p, opts...))
		},
	})
	w.leases = lease.New(w.platform.Kube)
	attempts, ended := 0, false
	for !ended && attempts < 20 {
		attempts++
		_, err := w.machines().LeaseMachine(t.Context(), refOf(workerID))
		ended = err == nil
	}
	if !ended || attempts < 4 {
		t.Fatalf("%d attempts, ended %t", attempts, ended)
	}
	held, err := lease.New(good).Held(t.Context(), workerID)
	if err != nil || len(held) != 3 {
		t.Errorf("held %+v, %v", held, err)
	}
}

func TestLeaseMachineSaysWhatIsExhausted(t *testing.T) {
	big := workerVM(workerID, "pv1-1")
	big.Spec.MemoryMiB = 1 << 20
	off := workerVM(worker2ID, "pv1-2")
	w := newWorld(t, tenantObject(), big, off)
	_, err := w.machines().LeaseMachine(t.Context(), refOf(workerID))
	if err := errorIs(err, ExhaustedType, false, "host pv1-1", "has no room for 1048576 MiB", "choose a smaller class"); err != nil {
		t.Error(err)
	}
	w.site.Spec.Networks[1].Ranges.Workers[0].To = w.site.Spec.Networks[1].Ranges.Workers[0].From
	w.lease(worker2ID)
	other := workerVM("9c4b3f85-8e0f-4a36-9a0e-0f6f2a3c4d5e", "pv1-2")
	if err := w.kube.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	_, err = w.machines().LeaseMachine(t.Context(), refOf(other.Name))
	if err := errorIs(err, ExhaustedType, false, "10.1.1.50", "tenant demo holds 1", "widen"); err != nil {
		t.Error(err)
	}
	w.inject(faults.Fault{Kind: faults.HostOff, Place: "pve/host/pv1-2"})
	eventually(t, "host off", func() bool {
		_, err := w.pve.NodeStatus(t.Context(), "pv1-2")
		return err != nil
	})
	_, err = w.machines().LeaseMachine(t.Context(), refOf(worker2ID))
	if err := errorIs(err, UnavailableType, false, "pv1-2"); err != nil {
		t.Error(err)
	}
}

func TestLeasingWithoutARecordOrAHost(t *testing.T) {
	lost := workerVM(workerID, "pv9")
	w := newWorld(t, tenantObject(), lost)
	_, err := w.machines().LeaseMachine(t.Context(), refOf(workerID))
	if err := errorIs(err, RefusedType, true, "host pv9", "put it back into the site"); err != nil {
		t.Error(err)
	}
	_, err = w.machines().LeaseMachine(t.Context(), refOf(worker2ID))
	if err := errorIs(err, GoneType, true, worker2ID, "was deleted"); err != nil {
		t.Error(err)
	}
}

func TestReleaseMachine(t *testing.T) {
	w := leased(t)
	vm := w.vm(workerID)
	metav1.SetMetaDataAnnotation(&vm.ObjectMeta, configuredAnnotation, "once")
	if err := w.kube.Update(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	w.twice("ReleaseMachine", func() error { return w.machines().ReleaseMachine(t.Context(), refOf(workerID)) })
	w.nothingHeld(workerID)
	vm = w.vm(workerID)
	if vm.Spec.VMID != 0 || len(vm.Spec.NICs) != 0 || vm.Status.Phase != "Removed" || vm.Annotations[configuredAnnotation] != "" {
		t.Errorf("record %+v %+v", vm.Spec, vm.Annotations)
	}
	// A released VMID and address rest: the next machine gets others.
	if err := w.kube.Create(t.Context(), workerVM(worker2ID, "pv1-1")); err != nil {
		t.Fatal(err)
	}
	if next := w.lease(worker2ID); next.VMID != 1001 || next.Address != "10.1.1.51" {
		t.Errorf("the next got %+v", next)
	}
}

// TestAMachineWhoseRecordIsGoneIsReleased wherever its host was.
func TestAMachineWhoseRecordIsGoneIsReleased(t *testing.T) {
	w := leased(t)
	if err := w.kube.Delete(t.Context(), w.vm(workerID)); err != nil {
		t.Fatal(err)
	}
	w.twice("ReleaseMachine", func() error { return w.machines().ReleaseMachine(t.Context(), refOf(workerID)) })
	w.nothingHeld(workerID)
}

func (w *world) nothingHeld(id string) {
	w.t.Helper()
	held, err := w.leases.Held(w.t.Context(), id)
	if err != nil || len(held) != 0 {
		w.t.Errorf("held %+v, %v", held, err)
	}
	for _, host := range []string{"pv1-1", "pv1-2"} {
		book, err := w.leases.Ledger(w.t.Context(), lease.Host{Cluster: "homelab", Name: host})
		if err != nil || slices.ContainsFunc(book, func(r lease.Reservation) bool { return r.Machine == id }) {
			w.t.Errorf("ledger of %s: %+v, %v", host, book, err)
		}
	}
}

func TestListMachines(t *testing.T) {
	other := workerVM(worker2ID, "pv1-1")
	other.Labels[domain.TenantLabel] = "other"
	w := newWorld(t, proxyVM(), workerVM(workerID, "pv1-1"), other)
	got, err := w.machines().ListMachines(t.Context(), TenantRef{Tenant: "demo"})
	if err != nil || !slices.Equal(got.MachineIDs, []string{workerID, proxyID}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestForgetMachine(t *testing.T) {
	object := aetherMachine(workerID)
	object.Finalizers = []string{v1alpha1.MachineFinalizer}
	w := newWorld(t, workerVM(workerID, "pv1-1"), object)
	if err := w.kube.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	w.twice("ForgetMachine", func() error { return w.machines().ForgetMachine(t.Context(), refOf(workerID)) })
	for _, gone := range []client.Object{object, workerVM(workerID, "pv1-1")} {
		if err := w.kube.Get(t.Context(), client.ObjectKeyFromObject(gone), gone); client.IgnoreNotFound(err) != nil || err == nil {
			t.Errorf("%T is there: %v", gone, err)
		}
	}
	// A machine that nobody deletes keeps its finalizer.
	kept := aetherMachine(worker2ID)
	kept.Finalizers = []string{v1alpha1.MachineFinalizer}
	w = newWorld(t, workerVM(worker2ID, "pv1-1"), kept)
	w.twice("ForgetMachine", func() error { return w.machines().ForgetMachine(t.Context(), refOf(worker2ID)) })
	if err := w.kube.Get(t.Context(), client.ObjectKeyFromObject(kept), kept); err != nil || len(kept.Finalizers) != 1 {
		t.Errorf("finalizers %v, %v", kept.Finalizers, err)
	}
}

func TestReports(t *testing.T) {
	w := leased(t, aetherMachine(workerID))
	ctx, m := t.Context(), w.machines()
	read := func() *v1alpha1.AetherMachine {
		object := aetherMachine(workerID)
		if err := w.kube.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			t.Fatal(err)
		}
		return object
	}
	w.twice("ReportProvisioned", func() error { return m.ReportProvisioned(ctx, refOf(workerID)) })
	object := read()
	if object.Spec.ProviderID != "aether://demo/"+workerID || !*object.Status.Initialization.Provisioned || object.Status.FailureDomain != "pv1-1" ||
		!slices.Contains(object.Status.Addresses, v1alpha1.MachineAddress{Type: "InternalIP", Address: "10.1.1.50"}) ||
		!meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.VMReadyCondition) {
		t.Errorf("provisioned: %+v %+v", object.Spec, object.Status)
	}
	if meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ReadyCondition) != nil {
		t.Error("it says Ready before the node is usable")
	}
	w.twice("ReportUsable", func() error { return m.ReportUsable(ctx, refOf(workerID)) })
	if object = read(); !meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ReadyCondition) || w.vm(workerID).Status.Phase != phaseUsable {
		t.Errorf("usable: %+v", object.Status.Conditions)
	}
	failed := FailedMachine{MachineID: workerID, Message: strings.Repeat("reason ", 10000)}
	w.twice("ReportFailed", func() error { return m.ReportFailed(ctx, failed) })
	ready := meta.FindStatusCondition(read().Status.Conditions, v1alpha1.ReadyCondition)
	if ready.Reason != v1alpha1.ReasonFailed || len(ready.Message) > 32768 || w.vm(workerID).Status.Phase != phaseFailed {
		t.Errorf("failed: %s, %d bytes", ready.Reason, len(ready.Message))
	}
	if err := m.ReportFailed(ctx, FailedMachine{MachineID: workerID, Cancelled: true, Message: "cancelled"}); err != nil {
		t.Fatal(err)
	}
	ready = meta.FindStatusCondition(read().Status.Conditions, v1alpha1.ReadyCondition)
	if ready.Reason != v1alpha1.ReasonCancelled || ready.Message != "cancelled; delete the Machine to have it replaced" {
		t.Errorf("cancelled: %+v", ready)
	}
	// Objects that are gone are no reason to fail.
	if err := errors.Join(w.kube.Delete(ctx, object), m.ReportFailed(ctx, failed), m.ReportUsable(ctx, refOf(workerID))); err != nil {
		t.Error(err)
	}
	if err := m.ReportFailed(ctx, FailedMachine{MachineID: worker2ID}); err != nil {
		t.Error(err)
	}
}
