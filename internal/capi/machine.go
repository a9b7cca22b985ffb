package capi

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/site"
	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/workflows"
)

// machineReconciler has a virtual machine joined for each AetherMachine, and
// removed for each deleted one.
type machineReconciler struct {
	client    client.Client
	reader    client.Reader // past the cache: a claim must not be made twice
	processes Processes
	site      *site.Site
	events    events.EventRecorder
}

func (r *machineReconciler) setup(manager ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(manager).
		Named("aethermachine").
		For(&v1alpha1.AetherMachine{}).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			machine, ok := o.(*clusterv1.Machine)
			if !ok || machine.Spec.InfrastructureRef.Kind != "AetherMachine" {
				return nil
			}
			return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.InfrastructureRef.Name}}}
		})).
		Watches(&v1alpha1.AetherCluster{}, handler.EnqueueRequestsFromMapFunc(r.machinesOf)).
		Complete(r)
}

// machinesOf wakes a tenant's machines when the tenant changes.
func (r *machineReconciler) machinesOf(ctx context.Context, tenant client.Object) []reconcile.Request {
	list := &v1alpha1.AetherMachineList{}
	if err := r.client.List(ctx, list, client.InNamespace(tenant.GetNamespace())); err != nil {
		return nil
	}
	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// Reconcile implements reconcile.Reconciler.
func (r *machineReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	object := &v1alpha1.AetherMachine{}
	if err := r.client.Get(ctx, request.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	machine, err := ownerMachine(ctx, r.client, object)
	if err != nil {
		return ctrl.Result{}, err
	}
	cluster, err := clusterOf(ctx, r.client, object)
	if err != nil {
		return ctrl.Result{}, err
	}
	if isManagedByOthers(object) || paused(cluster, object) {
		return ctrl.Result{}, nil
	}
	if !object.DeletionTimestamp.IsZero() {
		return r.delete(ctx, object)
	}
	if machine == nil || cluster == nil {
		return ctrl.Result{}, nil // core sets the owner; that wakes us
	}
	if controllerutil.AddFinalizer(object, v1alpha1.MachineFinalizer) {
		return ctrl.Result{}, r.client.Update(ctx, object)
	}
	if reason := notYet(cluster, machine); reason != "" {
		return ctrl.Result{}, r.waiting(ctx, object, reason)
	}
	if wanted := domain.TenantNamespace(cluster.Name); object.Namespace != wanted {
		return ctrl.Result{}, r.waiting(ctx, object, fmt.Sprintf("nothing is made for it: it is in namespace %s, machines of tenant %s are in %s", object.Namespace, cluster.Name, wanted))
	}
	return r.join(ctx, object, cluster)
}

// ownerMachine returns the Machine that core made the object for, or nil
// before core has set itself as owner.
func ownerMachine(ctx context.Context, c client.Client, object client.Object) (*clusterv1.Machine, error) {
	for _, ref := range object.GetOwnerReferences() {
		if ref.Kind != "Machine" {
			continue
		}
		machine := &clusterv1.Machine{}
		err := c.Get(ctx, client.ObjectKey{Namespace: object.GetNamespace(), Name: ref.Name}, machine)
		if apierrors.IsNotFound(err) {
			return nil, nil //nolint:nilnil // no owner is an answer
		}
		return machine, err
	}
	return nil, nil //nolint:nilnil // no owner is an answer
}

// clusterOf returns the Cluster that the object's label names, or nil.
func clusterOf(ctx context.Context, c client.Client, object client.Object) (*clusterv1.Cluster, error) {
	name := object.GetLabels()[clusterv1.ClusterNameLabel]
	if name == "" {
		return nil, nil //nolint:nilnil // no cluster is an answer
	}
	cluster := &clusterv1.Cluster{}
	err := c.Get(ctx, client.ObjectKey{Namespace: object.GetNamespace(), Name: name}, cluster)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // no cluster is an answer
	}
	return cluster, err
}

// notYet says what the contract wants to have happened first: infra-machine.md,
// "InfraMachine: initialization completed".
func notYet(cluster *clusterv1.Cluster, machine *clusterv1.Machine) string {
	if p := cluster.Status.Initialization.InfrastructureProvisioned; p == nil || !*p {
		return "waits for the Cluster's infrastructure to be provisioned"
	}
	if machine.Spec.Bootstrap.DataSecretName == nil {
		return "waits for the Machine's bootstrap data"
	}
	return ""
}

func (r *machineReconciler) waiting(ctx context.Context, object *v1alpha1.AetherMachine, reason string) error {
	patch := client.MergeFrom(object.DeepCopy())
	changed := meta.SetStatusCondition(&object.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaiting, Message: reason, ObservedGeneration: object.Generation,
	})
	if !changed {
		return nil
	}
	return r.client.Status().Patch(ctx, object, patch)
}

// failedForGood tells whether a join ended with a reason. The machine is then
// replaced, by a health check or by a person who deletes the Machine.
func failedForGood(object *v1alpha1.AetherMachine) bool {
	return failedFor(meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ReadyCondition))
}

// join has JoinWorker run for the machine's VM until it is usable.
func (r *machineReconciler) join(ctx context.Context, object *v1alpha1.AetherMachine, cluster *clusterv1.Cluster) (ctrl.Result, error) {
	if failedForGood(object) || meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ReadyCondition) {
		return ctrl.Result{}, nil
	}
	vm, err := r.claim(ctx, object, cluster.Name)
	var problems domain.Problems
	if errors.As(err, &problems) {
		// The site may get what is missing: this is not the machine's end.
		return after(lookAgain), r.waiting(ctx, object, problems.Error())
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	run, open, err := replace(ctx, r.processes, temporalclient.Request{
		ID:   workflows.MachineWorkflowID(vm.Name),
		Type: "JoinWorker", Tenant: vm.Spec.Tenant,
		Input:   workflows.JoinWorkerInput{MachineID: vm.Name, Tenant: vm.Spec.Tenant, Pool: vm.Spec.Pool},
		Summary: fmt.Sprintf("JoinWorker %s on %s", vm.Spec.VMName, vm.Spec.Host),
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	if open {
		r.events.Eventf(object, vm, corev1.EventTypeNormal, "Joining", "Join", "Workflow %s joins VM %s on host %s", run.ID, vm.Spec.VMName, vm.Spec.Host)
	}
	return after(lookAgain), nil
}

// claim returns the AetherVM that the machine has claimed. A new one is
// written before anything else, so that whatever happens next can be found.
func (r *machineReconciler) claim(ctx context.Context, object *v1alpha1.AetherMachine, tenant string) (*v1alpha1.AetherVM, error) {
	vm, err := findClaimed(ctx, r.reader, tenant, object.Namespace, object.Name)
	if err != nil {
		return nil, err
	}
	if vm == nil {
		vm, err = newVM(r.site, object, tenant)
		if err != nil {
			return nil, err
		}
		if err := r.client.Create(ctx, vm); err != nil {
			return nil, fmt.Errorf("write AetherVM: %w", err)
		}
	}
	if object.Status.MachineID != vm.Name {
		patch := client.MergeFrom(object.DeepCopy())
		object.Status.MachineID = vm.Name
		object.Status.FailureDomain = vm.Spec.Host
		if err := r.client.Status().Patch(ctx, object, patch); err != nil {
			return nil, fmt.Errorf("record machine ID: %w", err)
		}
	}
	return vm, nil
}

// findClaimed returns the AetherVM that an AetherMachine has claimed, or nil.
func findClaimed(ctx context.Context, reader client.Reader, tenant, namespace, name string) (*v1alpha1.AetherVM, error) {
	list := &v1alpha1.AetherVMList{}
	if err := reader.List(ctx, list, client.InNamespace(domain.SystemNamespace), client.MatchingLabels{domain.TenantLabel: tenant}); err != nil {
		return nil, fmt.Errorf("list AetherVMs: %w", err)
	}
	for i := range list.Items {
		ref := list.Items[i].Spec.ClaimRef
		if ref.Namespace == namespace && ref.Name == name {
			return &list.Items[i], nil
		}
	}
	return nil, nil //nolint:nilnil // no claim is an answer
}

// delete has RemoveWorker run until the finalizer is gone. A join in progress
// is cancelled first; it undoes its own work. Without a claim there is nothing
// to remove.
func (r *machineReconciler) delete(ctx context.Context, object *v1alpha1.AetherMachine) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(object, v1alpha1.MachineFinalizer) {
		return ctrl.Result{}, nil
	}
	tenant := object.Labels[clusterv1.ClusterNameLabel]
	vm, err := findClaimed(ctx, r.reader, tenant, object.Namespace, object.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	if vm == nil {
		controllerutil.RemoveFinalizer(object, v1alpha1.MachineFinalizer)
		return ctrl.Result{}, r.client.Update(ctx, object)
	}
	_, _, err = replace(ctx, r.processes, temporalclient.Request{
		ID:   workflows.MachineWorkflowID(vm.Name),
		Type: "RemoveWorker", Tenant: vm.Spec.Tenant,
		Input:   workflows.RemoveWorkerInput{MachineID: vm.Name, Tenant: vm.Spec.Tenant, Pool: vm.Spec.Pool},
		Summary: fmt.Sprintf("RemoveWorker %s on %s", vm.Spec.VMName, vm.Spec.Host),
	}, "JoinWorker")
	if err != nil {
		return ctrl.Result{}, err
	}
	return after(lookAgainSoon), nil
}
