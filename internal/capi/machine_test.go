package capi

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/workflows"
)

// machine is core's Machine with its bootstrap data named.
func machine() *clusterv1.Machine {
	m := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-demo", Name: "demo-workers-abc"}}
	m.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{Kind: "AetherMachine", Name: "demo-workers-abc"}
	m.Spec.Bootstrap.DataSecretName = new("aether-has-no-bootstrap-data")
	return m
}

func aetherMachine() *v1alpha1.AetherMachine {
	return owned(&v1alpha1.AetherMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-demo", Name: "demo-workers-abc", UID: "uid-1", Labels: map[string]string{clusterv1.ClusterNameLabel: "demo"}},
		Spec:       v1alpha1.AetherMachineSpec{Pool: "workers", Class: "small", Host: "pv1-1"},
	}, "Machine", "demo-workers-abc")
}

func TestAMachineIsWrittenDownClaimedAndJoined(t *testing.T) {
	w := newWorld(t, cluster(), machine(), aetherMachine())
	if result := w.reconcileMachine(); result.RequeueAfter != lookAgain {
		t.Errorf("looks again after %s", result.RequeueAfter)
	}
	vms := w.vms()
	if len(vms) != 1 {
		t.Fatalf("%d AetherVMs", len(vms))
	}
	vm := vms[0]
	if _, err := domain.ParseMachineID(vm.Name); err != nil {
		t.Error(err)
	}
	if s := vm.Spec; s.Tenant != "demo" || s.Role != v1alpha1.RoleWorker || s.Pool != "workers" || s.ProxmoxCluster != "homelab" || s.Host != "pv1-1" ||
		s.Cores != 2 || s.MemoryMiB != 2048 || s.DiskGiB != 20 || s.VMID != 0 || s.VMName != domain.WorkerName("demo", "workers", domain.MachineID(vm.Name)) {
		t.Errorf("spec %+v", s)
	}
	if ref := vm.Spec.ClaimRef; ref.Namespace != "tenant-demo" || ref.Name != "demo-workers-abc" || ref.UID != "uid-1" {
		t.Errorf("claim %+v", ref)
	}
	if vm.Labels[domain.TenantLabel] != "demo" || vm.Labels[domain.PoolLabel] != "workers" {
		t.Errorf("labels %v", vm.Labels)
	}
	object := &v1alpha1.AetherMachine{}
	w.get(machineKey(), object)
	if object.Status.MachineID != vm.Name || object.Status.FailureDomain != "pv1-1" || !controllerutil.ContainsFinalizer(object, v1alpha1.MachineFinalizer) {
		t.Errorf("status %+v, finalizers %v", object.Status, object.Finalizers)
	}
	if got := w.processes.started(); !slices.Equal(got, []string{"JoinWorker"}) {
		t.Fatalf("started %v", got)
	}
	r := w.processes.requests[0]
	if input, ok := r.Input.(workflows.JoinWorkerInput); r.ID != "machine/"+vm.Name || !ok || input.MachineID != vm.Name || input.Tenant != "demo" || input.Pool != "workers" {
		t.Errorf("request %+v", r)
	}
}

// TestWhatTheContractWantsFirst: until then there is neither a VM nor a run.
func TestWhatTheContractWantsFirst(t *testing.T) {
	unprovisioned, paused := cluster(), cluster()
	unprovisioned.Status.Initialization.InfrastructureProvisioned = nil
	paused.Spec.Paused = new(true)
	noBootstrap := machine()
	noBootstrap.Spec.Bootstrap.DataSecretName = nil
	orphan, annotated, managed, unlabelled, failed, usable := aetherMachine(), aetherMachine(), aetherMachine(), aetherMachine(), aetherMachine(), aetherMachine()
	orphan.OwnerReferences, unlabelled.Labels = nil, nil
	annotated.Annotations = map[string]string{clusterv1.PausedAnnotation: "true"}
	managed.Labels[clusterv1.ManagedByAnnotation] = ""
	failed.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonFailed}}
	usable.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady}}
	unknownClass, unknownHost := aetherMachine(), aetherMachine()
	unknownClass.Spec.Class, unknownHost.Spec.Host = "huge", "pv9"
	for _, test := range []struct {
		name    string
		objects []client.Object
		says    string // in the Ready condition
	}{
		{"no owner yet", []client.Object{cluster(), machine(), orphan}, ""},
		{"no Machine", []client.Object{cluster(), aetherMachine()}, ""},
		{"no Cluster", []client.Object{machine(), aetherMachine()}, ""},
		{"no label", []client.Object{cluster(), machine(), unlabelled}, ""},
		{"Cluster paused", []client.Object{paused, machine(), aetherMachine()}, ""},
		{"machine paused", []client.Object{cluster(), machine(), annotated}, ""},
		{"managed by another", []client.Object{cluster(), machine(), managed}, ""},
		{"infrastructure not provisioned", []client.Object{unprovisioned, machine(), aetherMachine()}, "infrastructure to be provisioned"},
		{"no bootstrap data", []client.Object{cluster(), noBootstrap, aetherMachine()}, "bootstrap data"},
		{"failed for good", []client.Object{cluster(), machine(), failed}, ""},
		{"usable", []client.Object{cluster(), machine(), usable}, ""},
		{"unknown class", []client.Object{cluster(), machine(), unknownClass}, `spec.class: found "huge"; allowed: a machine class of the site`},
		{"unknown host", []client.Object{cluster(), machine(), unknownHost}, `spec.host: found "pv9"; allowed: a host of the site`},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, test.objects...)
			w.reconcileMachine()
			if vms, started := w.vms(), w.processes.started(); len(vms)+len(started) > 0 {
				t.Errorf("%d AetherVMs, started %v", len(vms), started)
			}
			object := &v1alpha1.AetherMachine{}
			w.get(machineKey(), object)
			ready := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ReadyCondition)
			if test.says != "" && (ready == nil || ready.Reason != v1alpha1.ReasonWaiting || !strings.Contains(ready.Message, test.says)) {
				t.Errorf("condition %+v", ready)
			}
		})
	}
}

func TestAMachineInAnotherNamespaceIsNotMade(t *testing.T) {
	c, m, object := cluster(), machine(), aetherMachine()
	c.Namespace, m.Namespace, object.Namespace = "default", "default", "default"
	w := newWorld(t, c, m, object)
	r := w.machineReconciler()
	for range 3 {
		if _, err := r.Reconcile(t.Context(), request(client.ObjectKeyFromObject(object))); err != nil {
			t.Fatal(err)
		}
	}
	if len(w.vms())+len(w.processes.started()) > 0 {
		t.Error("a VM of the tenant is made for it")
	}
}

// TestAClaimIsMadeOnce: wherever the shim dies, the next one finds the VM.
func TestAClaimIsMadeOnce(t *testing.T) {
	boom := errors.New("killed here")
	for _, place := range []string{"patch status", "start"} {
		t.Run(place, func(t *testing.T) {
			w := newWorld(t, cluster(), machine(), aetherMachine())
			good := w.client
			if place == "start" {
				w.processes.err = boom
			} else {
				w.failing(func(verb string, object client.Object) error {
					if _, isMachine := object.(*v1alpha1.AetherMachine); isMachine && verb == place {
						return boom
					}
					return nil
				})
			}
			r := w.machineReconciler()
			for range 4 {
				if _, err := r.Reconcile(t.Context(), request(machineKey())); err != nil && !errors.Is(err, boom) {
					t.Fatal(err)
				}
			}
			first := w.vms()
			if len(first) != 1 {
				t.Fatalf("%d AetherVMs", len(first))
			}
			w.client, w.processes.err = good, nil
			w.reconcileMachine()
			if second := w.vms(); len(second) != 1 || second[0].Name != first[0].Name {
				t.Errorf("%d AetherVMs", len(second))
			}
			object := &v1alpha1.AetherMachine{}
			if w.get(machineKey(), object); object.Status.MachineID != first[0].Name {
				t.Errorf("machine ID %q", object.Status.MachineID)
			}
			if got := w.processes.started(); !slices.Equal(got, []string{"JoinWorker"}) {
				t.Errorf("started %v", got)
			}
		})
	}
}

// TestAClaimSurvivesAMove: clusterctl move and restores make objects anew, with
// other UIDs and without status.
func TestAClaimSurvivesAMove(t *testing.T) {
	w := newWorld(t, cluster(), machine(), aetherMachine())
	w.reconcileMachine()
	id := w.vms()[0].Name
	object := &v1alpha1.AetherMachine{}
	w.get(machineKey(), object)
	object.Finalizers = nil
	if err := errors.Join(w.client.Update(t.Context(), object), w.client.Delete(t.Context(), object)); err != nil {
		t.Fatal(err)
	}
	moved := aetherMachine()
	moved.UID = "uid-2"
	if err := w.client.Create(t.Context(), moved); err != nil {
		t.Fatal(err)
	}
	w.reconcileMachine()
	if vms := w.vms(); len(vms) != 1 || vms[0].Name != id {
		t.Errorf("%d AetherVMs", len(vms))
	}
	if w.get(machineKey(), object); object.Status.MachineID != id {
		t.Errorf("machine ID %q, want %q", object.Status.MachineID, id)
	}
}

func TestAJoinThatEndedWithoutAWordIsTakenUpAgain(t *testing.T) {
	w := newWorld(t, cluster(), machine(), aetherMachine())
	w.reconcileMachine()
	id := "machine/" + w.vms()[0].Name
	w.processes.end(id, enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, time.Second)
	if w.reconcileMachine(); len(w.processes.started()) != 1 {
		t.Error("it does not rest")
	}
	w.processes.end(id, enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, time.Minute)
	if w.reconcileMachine(); len(w.processes.started()) != 2 || len(w.vms()) != 1 {
		t.Errorf("started %v for %d VMs", w.processes.started(), len(w.vms()))
	}
}

// TestDeletionCancelsTheJoinThenRemoves: never both at once.
func TestDeletionCancelsTheJoinThenRemoves(t *testing.T) {
	w := newWorld(t, cluster(), machine(), aetherMachine())
	w.reconcileMachine()
	vm := w.vms()[0]
	id := "machine/" + vm.Name
	object := &v1alpha1.AetherMachine{}
	w.get(machineKey(), object)
	if err := w.client.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	w.reconcileMachine()
	if !slices.Contains(w.processes.cancels, id) || !slices.Equal(w.processes.started(), []string{"JoinWorker"}) {
		t.Fatalf("cancelled %v, started %v", w.processes.cancels, w.processes.started())
	}
	w.processes.end(id, enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED, 0)
	w.reconcileMachine()
	if !slices.Equal(w.processes.started(), []string{"JoinWorker", "RemoveWorker"}) {
		t.Fatalf("started %v", w.processes.started())
	}
	if input, ok := w.processes.requests[1].Input.(workflows.RemoveWorkerInput); !ok || input.MachineID != vm.Name {
		t.Errorf("input %+v", w.processes.requests[1].Input)
	}
	cancels := len(w.processes.cancels)
	w.reconcileMachine()
	if len(w.processes.cancels) != cancels || len(w.processes.started()) != 2 {
		t.Error("a removal that runs is disturbed")
	}
	if w.get(machineKey(), object); !controllerutil.ContainsFinalizer(object, v1alpha1.MachineFinalizer) {
		t.Error("the finalizer was released by one who has not seen the VM gone")
	}
}

func TestAMachineThatNeverClaimedIsReleasedAtOnce(t *testing.T) {
	w := newWorld(t, cluster(), deleted(aetherMachine(), v1alpha1.MachineFinalizer))
	w.reconcileMachine()
	if object := (&v1alpha1.AetherMachine{}); w.get(machineKey(), object) {
		t.Errorf("it has finalizers %v", object.Finalizers)
	}
	if got := w.processes.started(); len(got) > 0 {
		t.Errorf("started %v", got)
	}
}

// TestATenantWakesItsMachines: infrastructure that becomes ready must not wait
// for the next resync.
func TestATenantWakesItsMachines(t *testing.T) {
	w := newWorld(t, aetherMachine(), tenant())
	requests := w.machineReconciler().machinesOf(t.Context(), tenant())
	if len(requests) != 1 || requests[0].NamespacedName != machineKey() {
		t.Errorf("wakes %v", requests)
	}
}
