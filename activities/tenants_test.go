package activities

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "aether.internal/aether/api/controlplane/v1alpha1"
	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/proxmox"
	"aether.internal/aether/lab/faults"
)

func demo() TenantRef { return TenantRef{Tenant: "demo"} }

// wanted is the tenant as the door gives it, with defaults.
func (w *world) wanted() domain.Tenant {
	spec := tenantObject().Spec
	spec.ControlPlaneEndpoint = v1alpha1.APIEndpoint{}
	return domain.Tenant{Name: "demo", Spec: spec}.WithDefaults(w.site)
}

func (w *world) tenant() *v1alpha1.AetherCluster {
	w.t.Helper()
	object := &v1alpha1.AetherCluster{}
	if err := w.kube.Get(w.t.Context(), client.ObjectKey{Namespace: "tenant-demo", Name: "demo"}, object); err != nil {
		w.t.Fatal(err)
	}
	return object
}

func TestWriteTenant(t *testing.T) {
	w := newWorld(t)
	var result *WriteTenantResult
	w.twice("WriteTenant", func() (err error) {
		result, err = w.tenants().WriteTenant(t.Context(), WriteTenantInput{Tenant: w.wanted()})
		if err == nil && !result.Created {
			err = errors.New("it does not know its own work")
		}
		return err
	})
	namespace := &corev1.Namespace{}
	if err := w.kube.Get(t.Context(), client.ObjectKey{Name: "tenant-demo"}, namespace); err != nil || namespace.Labels[domain.CreatedByLabel] != domain.FieldManager {
		t.Errorf("namespace %v, %v", namespace.Labels, err)
	}
	object := w.tenant()
	if object.Spec.Version != "v1.35.4" || object.Spec.Pools[0].Name != "workers" || object.Spec.ControlPlaneEndpoint.Host != "" || object.Labels[domain.TenantLabel] != "demo" {
		t.Errorf("AetherCluster %+v", object.Spec)
	}
	key := client.ObjectKey{Namespace: "tenant-demo", Name: "demo"}
	cluster, controlPlane := &clusterv1.Cluster{}, &controlplanev1.AetherControlPlane{}
	if err := errors.Join(w.kube.Get(t.Context(), key, cluster), w.kube.Get(t.Context(), key, controlPlane)); err != nil {
		t.Fatal(err)
	}
	if cluster.Spec.InfrastructureRef.Kind != "AetherCluster" || cluster.Spec.ControlPlaneRef.Kind != "AetherControlPlane" || !slices.Equal(cluster.Spec.ClusterNetwork.Pods.CIDRBlocks, []string{"10.244.0.0/16"}) {
		t.Errorf("Cluster %+v", cluster.Spec)
	}
	if controlPlane.Spec.Version != "v1.35.4" || !slices.Contains(controlPlane.Finalizers, controlplanev1.Finalizer) {
		t.Errorf("AetherControlPlane %+v", controlPlane)
	}
}

// TestAKubectlTenantIsNotOurs: what kubectl created is never called a
// workflow's own, so that a cancellation does not delete it.
func TestFindTenant(t *testing.T) {
	w := newWorld(t)
	want := func(when string, ours bool) {
		t.Helper()
		if got, err := w.tenants().FindTenant(t.Context(), demo()); err != nil || got.Created != ours {
			t.Errorf("%s: ours is %+v, %v, want %t", when, got, err, ours)
		}
	}
	want("nothing is there", false)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tenant-demo", Labels: map[string]string{domain.CreatedByLabel: domain.FieldManager}}}
	if err := w.kube.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	want("an attempt ended after the namespace", true)
	if _, err := w.tenants().WriteTenant(t.Context(), WriteTenantInput{Tenant: w.wanted()}); err != nil {
		t.Fatal(err)
	}
	want("a workflow wrote it", true)
	object := w.tenant()
	delete(object.Annotations, ownAnnotation)
	if err := w.kube.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	want("a person wrote it", false)
}

func TestAKubectlTenantIsNotOurs(t *testing.T) {
	w := newWorld(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tenant-demo"}}, tenantObject())
	w.twice("WriteTenant", func() error {
		result, err := w.tenants().WriteTenant(t.Context(), WriteTenantInput{Tenant: w.wanted()})
		if err == nil && result.Created {
			err = errors.New("it calls another's work its own")
		}
		return err
	})
	namespace := &corev1.Namespace{}
	if err := w.kube.Get(t.Context(), client.ObjectKey{Name: "tenant-demo"}, namespace); err != nil || namespace.Labels[domain.CreatedByLabel] != "" {
		t.Errorf("namespace %v, %v", namespace.Labels, err)
	}
	if host := w.tenant().Spec.ControlPlaneEndpoint.Host; host != "10.1.1.10" {
		t.Errorf("the endpoint is now %q", host)
	}
}

func TestWriteTenantWaitsForAnOlderOneToBeGone(t *testing.T) {
	now := metav1.Now()
	w := newWorld(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tenant-demo", DeletionTimestamp: &now, Finalizers: []string{"kubernetes"}}})
	_, err := w.tenants().WriteTenant(t.Context(), WriteTenantInput{Tenant: w.wanted()})
	if err := errorIs(err, WaitingType, false, "tenant-demo", "still being deleted"); err != nil {
		t.Error(err)
	}
}

func TestLeaseProxy(t *testing.T) {
	w := newWorld(t)
	if _, err := w.tenants().WriteTenant(t.Context(), WriteTenantInput{Tenant: w.wanted()}); err != nil {
		t.Fatal(err)
	}
	in := LeaseProxyInput{Tenant: "demo", Network: "tenant", Host: "pv1-2"}
	first, err := w.tenants().LeaseProxy(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	second, err := w.tenants().LeaseProxy(t.Context(), in)
	if err != nil || *second != *first {
		t.Errorf("first %+v, second %+v, %v", first, second, err)
	}
	if first.Address != "10.1.1.10" || first.Generation != 1 {
		t.Errorf("got %+v", first)
	}
	vm := w.vm(first.MachineID)
	if vm.Spec.Host != "pv1-2" || vm.Spec.Role != v1alpha1.RoleProxy || vm.Spec.VMName != "demo-proxy-1" || vm.Spec.ProxmoxCluster != "homelab" || vm.Spec.DiskGiB != 0 {
		t.Errorf("proxy %+v", vm.Spec)
	}
	object := w.tenant()
	if e := object.Spec.ControlPlaneEndpoint; e.Host != "10.1.1.10" || e.Port != 6443 || object.Status.Proxy.Machine != first.MachineID {
		t.Errorf("endpoint %+v, status %+v", e, object.Status.Proxy)
	}
	held, err := w.leases.HeldByTenant(t.Context(), "demo")
	if err != nil || len(held) != 1 || held[0].Value != "10.1.1.10" {
		t.Fatalf("held %+v, %v", held, err)
	}
	// Its holder is a label's value too.
	if problems := validation.IsValidLabelValue(held[0].Holder.ID); len(problems) > 0 {
		t.Errorf("holder %q: %v", held[0].Holder.ID, problems)
	}
	// Writing the tenant again must not take the endpoint away.
	if _, err := w.tenants().WriteTenant(t.Context(), WriteTenantInput{Tenant: w.wanted()}); err != nil {
		t.Fatal(err)
	}
	if host := w.tenant().Spec.ControlPlaneEndpoint.Host; host != "10.1.1.10" {
		t.Errorf("the endpoint is now %q", host)
	}
}

func TestLeaseProxyRefuses(t *testing.T) {
	w := newWorld(t, tenantObject())
	in := LeaseProxyInput{Tenant: "demo", Network: "tenant", Host: ""}
	_, err := w.tenants().LeaseProxy(t.Context(), in)
	if err := errorIs(err, RefusedType, true, "has no host"); err != nil {
		t.Error(err)
	}
	_, err = w.tenants().LeaseProxy(t.Context(), LeaseProxyInput{Tenant: "demo", Network: "lan"})
	if err := errorIs(err, RefusedType, true, "network lan"); err != nil {
		t.Error(err)
	}
	other := tenantObject()
	other.Spec.ControlPlaneEndpoint.Host = "10.1.1.44"
	w = newWorld(t, other)
	_, err = w.tenants().LeaseProxy(t.Context(), in)
	if err := errorIs(err, RefusedType, true, "10.1.1.44", "10.1.1.10", "cannot be changed"); err != nil {
		t.Error(err)
	}
}

func TestCompleteTenant(t *testing.T) {
	usable, joining := workerVM(workerID, "pv1-1"), workerVM(worker2ID, "pv1-2")
	usable.Status.Phase, joining.Status.Phase = phaseUsable, "Joining"
	for name, test := range map[string]struct {
		machines []client.Object
		nodes    int
		reason   string
	}{
		"with a node":  {[]client.Object{usable, joining}, 1, v1alpha1.ReasonReady},
		"without node": {nil, 0, v1alpha1.ReasonUnproven},
	} {
		t.Run(name, func(t *testing.T) {
			object := tenantObject()
			object.Status.KubeconfigSecret = "demo-user-kubeconfig"
			w := newWorld(t, append(test.machines, object)...)
			w.twice("CompleteTenant", func() error {
				got, err := w.tenants().CompleteTenant(t.Context(), demo())
				if err == nil && (got.Nodes != test.nodes || got.KubeconfigSecret != "tenant-demo/demo-user-kubeconfig") {
					t.Errorf("got %+v", got)
				}
				return err
			})
			ready := meta.FindStatusCondition(w.tenant().Status.Conditions, v1alpha1.ReadyCondition)
			if ready.Status != metav1.ConditionTrue || ready.Reason != test.reason || ready.ObservedGeneration != w.tenant().Generation {
				t.Errorf("condition %+v", ready)
			}
		})
	}
}

// TestAWishDuringTheRunIsNotCalledDone: someone changed the spec after the run
// had written what it works with.
func TestAWishDuringTheRunIsNotCalledDone(t *testing.T) {
	w := newWorld(t)
	if _, err := w.tenants().WriteTenant(t.Context(), WriteTenantInput{Tenant: w.wanted()}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.tenants().LeaseProxy(t.Context(), LeaseProxyInput{Tenant: "demo", Network: "tenant", Host: "pv1-1"}); err != nil {
		t.Fatal(err)
	}
	observed := func() int64 {
		t.Helper()
		if _, err := w.tenants().CompleteTenant(t.Context(), demo()); err != nil {
			t.Fatal(err)
		}
		return w.tenant().Status.ObservedGeneration - w.tenant().Generation
	}
	if behind := observed(); behind != 0 {
		t.Errorf("Aether's own endpoint counts as a wish: %d", behind)
	}
	object := w.tenant()
	object.Spec.Pools[0].MaxSize = new(int32(9))
	if err := w.kube.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	if behind := observed(); behind >= 0 {
		t.Errorf("the wish is called done: %d", behind)
	}
}

func TestReportFailedTenant(t *testing.T) {
	for _, test := range []struct {
		name   string
		in     FailedTenant
		reason string
		parts  []string
	}{
		{"failed", FailedTenant{Tenant: "demo", Message: "no room"}, v1alpha1.ReasonFailed, []string{"no room", "aether tenant create", domain.RetryAnnotation}},
		{"refused", FailedTenant{Tenant: "demo", Refused: true, Message: "spec.version: found nothing"}, v1alpha1.ReasonRefused, []string{"spec.version"}},
		{"cancelled", FailedTenant{Tenant: "demo", Cancelled: true, Message: "cancelled"}, v1alpha1.ReasonCancelled, nil},
		{"a change", FailedTenant{Tenant: "demo", Change: true, Message: "no room"}, v1alpha1.ReasonFailed, []string{"aether tenant apply"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			object := tenantObject()
			object.Status.Initialization.Provisioned = new(true)
			w := newWorld(t, object)
			w.twice("ReportFailedTenant", func() error { return w.tenants().ReportFailedTenant(t.Context(), test.in) })
			got := w.tenant()
			ready := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ReadyCondition)
			if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != test.reason {
				t.Fatalf("condition %+v", ready)
			}
			for _, part := range test.parts {
				if !strings.Contains(ready.Message, part) {
					t.Errorf("%q does not hold %q", ready.Message, part)
				}
			}
			if *got.Status.Initialization.Provisioned != test.in.Change {
				t.Errorf("provisioned %t", *got.Status.Initialization.Provisioned)
			}
			if plan := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.PlanAcceptedCondition); test.in.Refused != (plan != nil) {
				t.Errorf("plan condition %+v", plan)
			}
		})
	}
	w := newWorld(t)
	if err := w.tenants().ReportFailedTenant(t.Context(), FailedTenant{Tenant: "demo"}); err != nil {
		t.Errorf("a tenant that is gone: %v", err)
	}
}

// TestARefusedCreationLeavesAStandingTenantAlone: a second `create` must not
// tell core that the tenant is no more, nor the proxy that its servers are gone.
func TestARefusedCreationLeavesAStandingTenantAlone(t *testing.T) {
	object := tenantObject()
	object.Status.Initialization.Provisioned = new(true)
	object.Status.ManagementEndpoint = v1alpha1.APIEndpoint{Host: "192.168.0.100", Port: 6443}
	object.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady}}
	w := newWorld(t, object, proxyVM())
	in := FailedTenant{Tenant: "demo", Refused: true, Message: "metadata.name: found demo, which exists"}
	if err := w.tenants().ReportFailedTenant(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	got := w.tenant().Status
	if !*got.Initialization.Provisioned || got.ManagementEndpoint.Host != "192.168.0.100" || !meta.IsStatusConditionTrue(got.Conditions, v1alpha1.ReadyCondition) {
		t.Errorf("status %+v", got)
	}
}

func TestDeletionOfATenant(t *testing.T) {
	w := newWorld(t)
	if _, err := w.tenants().WriteTenant(t.Context(), WriteTenantInput{Tenant: w.wanted()}); err != nil {
		t.Fatal(err)
	}
	leased, err := w.tenants().LeaseProxy(t.Context(), LeaseProxyInput{Tenant: "demo", Network: "tenant", Host: "pv1-1"})
	if err != nil {
		t.Fatal(err)
	}
	object := w.tenant()
	object.Finalizers = []string{v1alpha1.ClusterFinalizer}
	if err := errors.Join(w.kube.Update(t.Context(), object), w.kube.Delete(t.Context(), w.vm(leased.MachineID))); err != nil {
		t.Fatal(err)
	}
	w.twice("DeleteCluster", func() error { return w.tenants().DeleteCluster(t.Context(), demo()) })
	if _, err := w.tenants().SweepTenant(t.Context(), demo()); errorIs(err, WaitingType, false, "lease of 10.1.1.10 in tenant") != nil {
		t.Errorf("sweep before the end: %v", err)
	}
	w.twice("FinishDeletion", func() error { return w.tenants().FinishDeletion(t.Context(), demo()) })
	for _, gone := range []client.Object{&v1alpha1.AetherCluster{}, &controlplanev1.AetherControlPlane{}, &clusterv1.Cluster{}} {
		if err := w.kube.Get(t.Context(), client.ObjectKey{Namespace: "tenant-demo", Name: "demo"}, gone); !apierrors.IsNotFound(err) {
			t.Errorf("%T: %v", gone, err)
		}
	}
	if err := w.kube.Get(t.Context(), client.ObjectKey{Name: "tenant-demo"}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
		t.Errorf("namespace: %v", err)
	}
	w.twice("SweepTenant", func() error {
		got, err := w.tenants().SweepTenant(t.Context(), demo())
		if err == nil && got.Places < 5 {
			t.Errorf("it looked at %d places", got.Places)
		}
		return err
	})
}

// TestFinishDeletionWaitsForCore and leaves a namespace that is not ours.
func TestFinishDeletionWaitsForCore(t *testing.T) {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-demo", Name: "demo", Finalizers: []string{"cluster.cluster.x-k8s.io"}}}
	w := newWorld(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tenant-demo"}}, cluster)
	if err := w.tenants().DeleteCluster(t.Context(), demo()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.tenants().FinishDeletion(ctx, demo()) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "cluster.cluster.x-k8s.io") {
		t.Fatalf("it ended with %v", err)
	}
	if err := w.kube.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster); err != nil || len(cluster.Finalizers) != 1 {
		t.Errorf("core's finalizer was stripped: %v, %v", cluster.Finalizers, err)
	}
	cluster.Finalizers = nil
	if err := errors.Join(w.kube.Update(t.Context(), cluster), w.tenants().FinishDeletion(t.Context(), demo())); err != nil {
		t.Fatal(err)
	}
	if err := w.kube.Get(t.Context(), client.ObjectKey{Name: "tenant-demo"}, &corev1.Namespace{}); err != nil {
		t.Errorf("a namespace that we did not make: %v", err)
	}
}

// TestSweepFindsEverything that could be left, and does not take a host that is
// off for an empty one.
func TestSweepFindsEverything(t *testing.T) {
	w := leased(t)
	w.foreign(1500, proxmox.Mark{Machine: worker2ID, Tenant: "demo", Role: proxmox.RoleWorker})
	ref := proxmox.Ref{Node: "pv1-1", VMID: 1500, Machine: worker2ID}
	mark := proxmox.Mark{Machine: worker2ID, Tenant: "demo", Role: proxmox.RoleWorker}
	if err := w.pve.WriteConfig(t.Context(), ref, proxmox.ConfigWish{Mark: &mark}); err != nil {
		t.Fatal(err)
	}
	_, err := w.tenants().SweepTenant(t.Context(), demo())
	if err := errorIs(err, WaitingType, false, "AetherVM "+workerID, "lease of 1000 in homelab", "lease of 10.1.1.50 in tenant", "VM 1500 (stranger) on pv1-1", "reservation of machine "+workerID+" on pv1-1"); err != nil {
		t.Error(err)
	}
	if got, err := w.tenants().SweepTenant(t.Context(), TenantRef{Tenant: "other"}); err != nil || got.Places == 0 {
		t.Errorf("another tenant: %+v, %v", got, err)
	}
	w.inject(faults.Fault{Kind: faults.HostOff, Place: "pve/host/pv1-2"})
	eventually(t, "host off", func() bool { _, err := w.pve.NodeStatus(t.Context(), "pv1-2"); return err != nil })
	if _, err := w.tenants().SweepTenant(t.Context(), TenantRef{Tenant: "other"}); errorIs(err, UnavailableType, false) != nil {
		t.Errorf("with a host off: %v", err)
	}
}
