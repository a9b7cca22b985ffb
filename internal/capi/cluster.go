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
	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/workflows"
)

// clusterReconciler turns a changed AetherCluster into a run of CreateTenant or
// ApplyTenant, and a deleted one, or a deleted Cluster, into DeleteTenant.
type clusterReconciler struct {
	client    client.Client
	processes Processes
	events    events.EventRecorder
}

func (r *clusterReconciler) setup(manager ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(manager).
		Named("aethercluster").
		For(&v1alpha1.AetherCluster{}).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			cluster, ok := o.(*clusterv1.Cluster)
			if !ok || cluster.Spec.InfrastructureRef.Kind != domain.AetherClusterKind {
				return nil
			}
			return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: cluster.Namespace, Name: cluster.Spec.InfrastructureRef.Name}}}
		})).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *clusterReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	tenant := &v1alpha1.AetherCluster{}
	if err := r.client.Get(ctx, request.NamespacedName, tenant); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	cluster, err := r.owner(ctx, tenant)
	if err != nil {
		return ctrl.Result{}, err
	}
	if isManagedByOthers(tenant) || paused(cluster, tenant) {
		return ctrl.Result{}, nil
	}
	if problem := misplaced(tenant, cluster); problem != "" {
		return ctrl.Result{}, r.refuse(ctx, tenant, problem)
	}
	if !tenant.DeletionTimestamp.IsZero() || (cluster != nil && !cluster.DeletionTimestamp.IsZero()) {
		return r.delete(ctx, tenant)
	}
	if cluster == nil {
		// Core sets the owner once the Cluster exists; its creation wakes us.
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(tenant, v1alpha1.ClusterFinalizer) {
		return ctrl.Result{}, r.client.Update(ctx, tenant)
	}
	return r.apply(ctx, tenant)
}

// misplaced says why an AetherCluster is no tenant. Its names are those of
// everything beneath it, so one of a tenant's name in another namespace would
// otherwise be taken for the tenant, and its deletion for the tenant's.
func misplaced(tenant *v1alpha1.AetherCluster, cluster *clusterv1.Cluster) string {
	var p domain.Problems
	if wanted := domain.TenantNamespace(tenant.Name); tenant.Namespace != wanted {
		p.Add("metadata.namespace", domain.Shown(tenant.Namespace), wanted, "each tenant has a namespace of its own: make the object there")
	}
	if cluster != nil && cluster.Name != tenant.Name {
		p.Add("metadata.name", domain.Shown(tenant.Name), cluster.Name+", the name of its Cluster", "a tenant's Cluster and AetherCluster have one name")
	}
	return p.Error()
}

// refuse says on the object why nothing is done about it. It has no finalizer
// of ours, since nothing is made for it.
func (r *clusterReconciler) refuse(ctx context.Context, tenant *v1alpha1.AetherCluster, problem string) error {
	patch := client.MergeFrom(tenant.DeepCopy())
	changed := meta.SetStatusCondition(&tenant.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonRefused, Message: problem, ObservedGeneration: tenant.Generation,
	})
	if !changed {
		return nil
	}
	return client.IgnoreNotFound(r.client.Status().Patch(ctx, tenant, patch))
}

// owner returns the Cluster the AetherCluster belongs to: the owner core has
// set, which for clusters without topology is no controller owner, or the
// Cluster of the same name before it is set.
func (r *clusterReconciler) owner(ctx context.Context, tenant *v1alpha1.AetherCluster) (*clusterv1.Cluster, error) {
	name := tenant.Name
	for _, ref := range tenant.OwnerReferences {
		if ref.Kind == "Cluster" {
			name = ref.Name
		}
	}
	cluster := &clusterv1.Cluster{}
	err := r.client.Get(ctx, client.ObjectKey{Namespace: tenant.Namespace, Name: name}, cluster)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // no owner yet is an answer
	}
	return cluster, err
}

// settled tells whether this generation, and this wish to retry, was dealt
// with, be it that it was refused.
func settled(tenant *v1alpha1.AetherCluster) bool {
	ready := meta.FindStatusCondition(tenant.Status.Conditions, v1alpha1.ReadyCondition)
	if ready == nil || ready.ObservedGeneration != tenant.Generation {
		return false
	}
	if ready.Status == metav1.ConditionTrue {
		return true
	}
	return failedFor(ready) && tenant.Annotations[domain.RetryAnnotation] == tenant.Annotations[retriedAnnotation]
}

// failedFor tells whether a condition gives the reason for which a run ended.
func failedFor(ready *metav1.Condition) bool {
	return ready != nil && ready.Status == metav1.ConditionFalse &&
		(ready.Reason == v1alpha1.ReasonRefused || ready.Reason == v1alpha1.ReasonFailed || ready.Reason == v1alpha1.ReasonCancelled)
}

// retriedAnnotation holds the value of the retry annotation that was acted on.
const retriedAnnotation = domain.RetryAnnotation + "-done"

func (r *clusterReconciler) apply(ctx context.Context, tenant *v1alpha1.AetherCluster) (ctrl.Result, error) {
	if settled(tenant) {
		return ctrl.Result{}, nil
	}
	kind := "CreateTenant"
	if p := tenant.Status.Initialization.Provisioned; p != nil && *p {
		kind = "ApplyTenant"
	}
	id := workflows.TenantWorkflowID(tenant.Name)
	if !failedFor(meta.FindStatusCondition(tenant.Status.Conditions, v1alpha1.ReadyCondition)) {
		// A run that ended without a word on the object is not a wish that was
		// changed since.
		last, found, err := r.processes.Latest(ctx, id)
		if err != nil {
			return ctrl.Result{}, err
		}
		if found && !last.Open() && resting(last, kind) {
			return after(lookAgain), nil
		}
	}
	document := domain.Tenant{Name: tenant.Name, Spec: tenant.Spec}.Document()
	run, err := r.processes.Start(ctx, temporalclient.Request{
		ID: id, Type: kind, Input: document,
		Tenant: tenant.Name, Summary: kind + " " + tenant.Name,
	})
	var running *temporalclient.RunningError
	if errors.As(err, &running) {
		// The run may have begun with an older generation: look again when it
		// has ended.
		return after(lookAgainSoon), nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	r.events.Eventf(tenant, nil, corev1.EventTypeNormal, "Started", kind, "Started workflow %s (%s)", run.ID, kind)
	if err := r.markRetried(ctx, tenant); err != nil {
		return ctrl.Result{}, err
	}
	return after(lookAgainSoon), nil
}

func (r *clusterReconciler) markRetried(ctx context.Context, tenant *v1alpha1.AetherCluster) error {
	wish := tenant.Annotations[domain.RetryAnnotation]
	if wish == "" || tenant.Annotations[retriedAnnotation] == wish {
		return nil
	}
	patch := client.MergeFrom(tenant.DeepCopy())
	tenant.Annotations[retriedAnnotation] = wish
	return r.client.Patch(ctx, tenant, patch)
}

// delete has DeleteTenant run until the AetherCluster is gone. A creation or
// change in progress is cancelled first; it undoes its own work.
func (r *clusterReconciler) delete(ctx context.Context, tenant *v1alpha1.AetherCluster) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(tenant, v1alpha1.ClusterFinalizer) && !tenant.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	run, open, err := replace(ctx, r.processes, temporalclient.Request{
		ID: workflows.TenantWorkflowID(tenant.Name), Type: "DeleteTenant",
		Input: workflows.DeleteTenantInput{Tenant: tenant.Name}, Tenant: tenant.Name, Summary: "DeleteTenant " + tenant.Name,
	}, "CreateTenant", "ApplyTenant")
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("delete tenant %s: %w", tenant.Name, err)
	}
	if !open {
		r.events.Eventf(tenant, nil, corev1.EventTypeNormal, "Waiting", "Delete", "Waiting for workflow %s (%s) to end before the deletion begins", run.ID, run.Type)
	}
	return after(lookAgainSoon), nil
}
