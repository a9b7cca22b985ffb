package kamaji

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

const (
	conditionValid     = "kamaji.clastix.io/DataStoreValidation"
	conditionDeletable = "kamaji.clastix.io/DataStoreAllowedDeletion"
	reasonStoreValid   = "DataStoreIsValid"
	reasonStoreInvalid = "TLSConfigurationValidationFailed"
	reasonStoreUsed    = "DataStoreStillUsed"
	messageStoreUsed   = "The DataStore is still used and referenced by one (or more) TenantControlPlane objects."
)

// stores validates DataStores and keeps the used ones from deletion.
type stores struct{ *Kamaji }

func (k *Kamaji) setUpDataStores(mgr ctrl.Manager) error {
	s := &stores{k}
	err := ctrl.NewControllerManagedBy(mgr).Named("datastore").
		For(&v1alpha1.DataStore{}).
		Watches(&v1alpha1.TenantControlPlane{}, handler.EnqueueRequestsFromMapFunc(s.usedBy)).
		Complete(quiet{s})
	if err != nil {
		return fmt.Errorf("set up the datastores: %w", err)
	}
	return nil
}

func (s *stores) usedBy(_ context.Context, object client.Object) []reconcile.Request {
	tcp, ok := object.(*v1alpha1.TenantControlPlane)
	if !ok || tcp.Status.Storage.DataStoreName == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: tcp.Status.Storage.DataStoreName}}}
}

// Reconcile looks whether the contents are there (it does not dial), and who
// uses the store.
func (s *stores) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	object := &v1alpha1.DataStore{}
	if err := s.api.Get(ctx, req.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	users, err := s.users(ctx, object.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	changed := controllerutil.AddFinalizer(object, dataStoreFinalizer)
	if !object.DeletionTimestamp.IsZero() {
		changed = len(users) == 0 && controllerutil.RemoveFinalizer(object, dataStoreFinalizer)
		if changed {
			return ctrl.Result{}, client.IgnoreNotFound(s.api.Update(ctx, object))
		}
	}
	if changed {
		if err := s.api.Update(ctx, object); err != nil {
			return ctrl.Result{}, fmt.Errorf("add finalizer: %w", err)
		}
	}
	again := ctrl.Result{}
	if err := s.tell(ctx, object, users); err != nil {
		return again, err
	}
	if !object.Status.Ready {
		again.RequeueAfter = s.cfg.Clock.Scale(retryAfter)
	}
	return again, nil
}

func (s *stores) tell(ctx context.Context, object *v1alpha1.DataStore, users []string) error {
	before := object.Status.DeepCopy()
	object.Status.ObservedGeneration, object.Status.UsedBy = object.Generation, users
	condition := metav1.Condition{Type: conditionValid, Status: metav1.ConditionTrue, Reason: reasonStoreValid, ObservedGeneration: object.Generation}
	_, err := s.openStore(ctx, object)
	object.Status.Ready = err == nil
	if err != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, reasonStoreInvalid, err.Error()
	}
	meta.SetStatusCondition(&object.Status.Conditions, condition)
	if !object.DeletionTimestamp.IsZero() {
		meta.SetStatusCondition(&object.Status.Conditions, metav1.Condition{
			Type: conditionDeletable, Status: metav1.ConditionFalse, Reason: reasonStoreUsed, Message: messageStoreUsed, ObservedGeneration: object.Generation,
		})
	}
	if equality.Semantic.DeepEqual(before, &object.Status) {
		return nil
	}
	if err := s.api.Status().Update(ctx, object); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}

func (s *stores) users(ctx context.Context, name string) ([]string, error) {
	list := &v1alpha1.TenantControlPlaneList{}
	if err := s.api.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list control planes: %w", err)
	}
	var users []string
	for _, tcp := range list.Items {
		if tcp.Status.Storage.DataStoreName == name {
			users = append(users, client.ObjectKeyFromObject(&tcp).String())
		}
	}
	slices.Sort(users)
	return users, nil
}

// content reads what a reference of a DataStore stands for.
func (k *Kamaji) content(ctx context.Context, what string, ref *v1alpha1.ContentRef) ([]byte, error) {
	if len(ref.Content) > 0 {
		return ref.Content, nil
	}
	if ref.SecretReference == nil {
		return nil, fmt.Errorf("%s is not valid, it has neither content nor secretReference", what)
	}
	key := types.NamespacedName{Namespace: ref.SecretReference.Namespace, Name: ref.SecretReference.Name}
	secret := &corev1.Secret{}
	err := k.api.Get(ctx, key, secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%s is not valid, secret %s is not found", what, key)
	case err != nil:
		return nil, fmt.Errorf("%s: read secret %s: %w", what, key, err)
	case len(secret.Data[ref.SecretReference.KeyPath]) == 0:
		return nil, fmt.Errorf("%s is not valid, secret %s has no key %s", what, key, ref.SecretReference.KeyPath)
	}
	return secret.Data[ref.SecretReference.KeyPath], nil
}
