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
	reader    client.Reader
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
	failed := ready.Reason == v1alpha1.ReasonRefused || ready.Reason == v1alpha1.ReasonFailed || ready.Reason == v1alpha1.ReasonCancelled
	return failed && tenant.Annotations[domain.RetryAnnotation] == tenant.Annotations[retriedAnnotation]
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
	document := domain.Tenant{Name: tenant.Name, Spec: tenant.Spec}.Document()
	run, err := r.processes.Start(ctx, temporalclient.Request{
		ID: workflows.TenantWorkflowID(tenant.Name), Type: kind, Input: document,
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
