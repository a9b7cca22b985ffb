package capi

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/site"
)

// templateReconciler publishes what a worker made from a template offers, so
// that the autoscaler can count with pools of size zero.
type templateReconciler struct {
	client client.Client
	site   *site.Site
}

func (r *templateReconciler) setup(manager ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(manager).Named("aethermachinetemplate").For(&v1alpha1.AetherMachineTemplate{}).Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *templateReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	template := &v1alpha1.AetherMachineTemplate{}
	if err := r.client.Get(ctx, request.NamespacedName, template); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	class, ok := domain.Class(r.site, template.Spec.Template.Spec.Class)
	if !ok {
		return ctrl.Result{}, fmt.Errorf("template %s: class %q is not in the site", template.Name, template.Spec.Template.Spec.Class)
	}
	wanted := v1alpha1.AetherMachineTemplateStatus{
		Capacity: capacity(class),
		NodeInfo: v1alpha1.NodeInfo{Architecture: "amd64", OperatingSystem: "linux"},
	}
	if equality.Semantic.DeepEqual(template.Status, wanted) {
		return ctrl.Result{}, nil
	}
	patch := client.MergeFrom(template.DeepCopy())
	template.Status = wanted
	return ctrl.Result{}, r.client.Status().Patch(ctx, template, patch)
}

// What Talos and the kubelet keep of a machine for themselves: kernel, init,
// containerd and kubelet. The autoscaler takes capacity for allocatable, so
// the capacity told is what pods can really use.
const (
	systemMemoryMiB = 240
	systemDiskGiB   = 4
	maxPods         = 110
)

func capacity(class site.MachineClass) corev1.ResourceList {
	const mib, gib = 1 << 20, 1 << 30
	return corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(class.Cores), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(int64(class.MemoryMiB-systemMemoryMiB)*mib, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(int64(class.DiskGiB-systemDiskGiB)*gib, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(maxPods, resource.DecimalSI),
	}
}
