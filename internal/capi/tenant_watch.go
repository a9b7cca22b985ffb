package capi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"aether.internal/aether/internal/domain"
)

// KubeconfigKey is the key of a kubeconfig in its Secret, as core reads it.
const KubeconfigKey = "value"

// tenantWatcher keeps the approver watching those tenants that have a
// management-side kubeconfig.
type tenantWatcher struct {
	client   client.Client
	approver *approver
}

func (w *tenantWatcher) setup(manager ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(manager).
		Named("kubeconfig").
		For(&corev1.Secret{}).
		WithEventFilter(predicate.NewPredicateFuncs(func(o client.Object) bool {
			tenant, labelled := o.GetLabels()[domain.TenantLabel]
			return labelled && o.GetName() == tenant+"-kubeconfig" && o.GetLabels()[clusterv1.ClusterNameLabel] == tenant
		})).
		Complete(w)
}

// Reconcile implements reconcile.Reconciler.
func (w *tenantWatcher) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	secret := &corev1.Secret{}
	err := w.client.Get(ctx, request.NamespacedName, secret)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return ctrl.Result{}, err
	}
	if missing || !secret.DeletionTimestamp.IsZero() {
		w.approver.forget(request.Name[:len(request.Name)-len("-kubeconfig")])
		return ctrl.Result{}, nil
	}
	sum := sha256.Sum256(secret.Data[KubeconfigKey])
	return ctrl.Result{}, w.approver.watch(secret.Labels[domain.TenantLabel], hex.EncodeToString(sum[:]), secret.Data[KubeconfigKey])
}
