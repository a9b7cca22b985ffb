package activities

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/site"
)

// ReportProvisioned tells Cluster API core that the machine is there: provider
// ID, addresses, then provisioned. It is repeatable.
func (a *Machines) ReportProvisioned(ctx context.Context, in MachineRef) error {
	m, err := a.machine(ctx, in.MachineID)
	if err != nil {
		return classify(err)
	}
	if err := a.phase(ctx, m, "Joining"); err != nil {
		return classify(err)
	}
	return classify(a.onClaimant(ctx, m.AetherVM, func(object *v1alpha1.AetherMachine) error {
		object.Spec.ProviderID = domain.ProviderID(m.Spec.Tenant, domain.MachineID(m.Name))
		return nil
	}, func(object *v1alpha1.AetherMachine) {
		address, _ := m.address(a.Site, site.TenantNetwork)
		object.Status.Addresses = []v1alpha1.MachineAddress{
			{Type: "Hostname", Address: m.Spec.VMName},
			{Type: "InternalIP", Address: address.Addr().String()},
		}
		object.Status.FailureDomain = m.Spec.Host
		object.Status.MachineID = m.Name
		object.Status.Initialization.Provisioned = new(true)
		meta.SetStatusCondition(&object.Status.Conditions, metav1.Condition{
			Type: v1alpha1.VMReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady,
			Message: fmt.Sprintf("VM %d runs on host %s and has its configuration", m.Spec.VMID, m.Spec.Host), ObservedGeneration: object.Generation,
		})
	}))
}

// ReportUsable records that the machine's Node can be used. It is repeatable.
func (a *Machines) ReportUsable(ctx context.Context, in MachineRef) error {
	m, err := a.machine(ctx, in.MachineID)
	if err != nil {
		return classify(err)
	}
	if err := a.phase(ctx, m, phaseUsable); err != nil {
		return classify(err)
	}
	return classify(a.onClaimant(ctx, m.AetherVM, nil, func(object *v1alpha1.AetherMachine) {
		for _, kind := range []string{v1alpha1.NodeUsableCondition, v1alpha1.ReadyCondition} {
			meta.SetStatusCondition(&object.Status.Conditions, metav1.Condition{
				Type: kind, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady,
				Message: "Node " + m.Spec.VMName + " is Ready, untainted, and a pod on it answered logs and exec", ObservedGeneration: object.Generation,
			})
		}
	}))
}

// Phases of an AetherVM that activities act on.
const (
	phaseUsable = "Usable"
	phaseFailed = "Failed"
)

// ReportFailed records why a join ended, on the AetherMachine and the AetherVM.
// It is repeatable; deleted objects are fine.
func (a *Machines) ReportFailed(ctx context.Context, in FailedMachine) error {
	vm := &v1alpha1.AetherVM{}
	err := a.Kube.Get(ctx, client.ObjectKey{Namespace: domain.SystemNamespace, Name: in.MachineID}, vm)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return classify(fmt.Errorf("read AetherVM %s: %w", in.MachineID, err))
	}
	reason := v1alpha1.ReasonFailed
	if in.Cancelled {
		reason = v1alpha1.ReasonCancelled
	}
	condition := metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: reason,
		Message: cut(in.Message + "; delete the Machine to have it replaced"), ObservedGeneration: vm.Generation,
	}
	patch := client.MergeFrom(vm.DeepCopy())
	vm.Status.Phase = phaseFailed
	meta.SetStatusCondition(&vm.Status.Conditions, condition)
	if err := a.Kube.Status().Patch(ctx, vm, patch); client.IgnoreNotFound(err) != nil {
		return classify(fmt.Errorf("record failure of machine %s: %w", in.MachineID, err))
	}
	return classify(a.onClaimant(ctx, vm, nil, func(object *v1alpha1.AetherMachine) {
		condition.ObservedGeneration = object.Generation
		meta.SetStatusCondition(&object.Status.Conditions, condition)
	}))
}

// cut keeps a message within what a condition may hold, 32768 bytes.
func cut(message string) string {
	const most = 30000
	if len(message) > most {
		return message[:most] + "…"
	}
	return message
}

// onClaimant changes spec and status of the AetherMachine that claimed the VM.
// A VM without claimant, or one that was deleted, is fine.
func (a *Machines) onClaimant(ctx context.Context, vm *v1alpha1.AetherVM, spec func(*v1alpha1.AetherMachine) error, status func(*v1alpha1.AetherMachine)) error {
	ref := vm.Spec.ClaimRef
	if ref.Name == "" {
		return nil
	}
	object := &v1alpha1.AetherMachine{}
	err := a.Kube.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, object)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read AetherMachine %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	if spec != nil {
		patch := client.MergeFrom(object.DeepCopy())
		if err := spec(object); err != nil {
			return err
		}
		if err := a.Kube.Patch(ctx, object, patch); err != nil {
			return fmt.Errorf("write AetherMachine %s/%s: %w", ref.Namespace, ref.Name, err)
		}
	}
	// The shim writes conditions of the same object: a lock keeps each from
	// undoing the other's.
	patch := client.MergeFromWithOptions(object.DeepCopy(), client.MergeFromWithOptimisticLock{})
	status(object)
	slices.SortFunc(object.Status.Conditions, func(x, y metav1.Condition) int { return strings.Compare(x.Type, y.Type) })
	if err := a.Kube.Status().Patch(ctx, object, patch); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write status of AetherMachine %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	return nil
}
