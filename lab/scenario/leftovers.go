package scenario

import (
	"context"
	"fmt"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/lease"
)

// leftovers is an error that names everything that is still there of a tenant.
func (t *T) leftovers(ctx context.Context, name string) error {
	found, err := t.remains(ctx, name)
	if err == nil && len(found) > 0 {
		return unexpected("left of tenant %s: %s", name, strings.Join(found, ", "))
	}
	return err
}

// remains lists what is there of a tenant: VMs, records, leases that are held,
// reservations, namespace, pods, control planes.
func (t *T) remains(ctx context.Context, name string) ([]string, error) {
	var found []string
	for _, vm := range t.World.Proxmox.VMs() {
		if strings.Contains(vm.Config["description"], name) || strings.HasPrefix(vm.Name, name+"-") {
			found = append(found, fmt.Sprintf("VM %d %s", vm.VMID, vm.Name))
		}
	}
	for _, look := range []func(context.Context, string) ([]string, error){
		t.recordsOf, t.leasesOf, t.reservationsOf, t.namespaceOf, t.podsOf, t.controlPlanesOf,
	} {
		more, err := look(ctx, name)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return found, nil
}

func (t *T) recordsOf(ctx context.Context, name string) ([]string, error) {
	list := &v1alpha1.AetherVMList{}
	if err := t.Kube.List(ctx, list, kubeclient.InNamespace(domain.SystemNamespace)); err != nil {
		return nil, fmt.Errorf("list AetherVMs: %w", err)
	}
	var found []string
	for _, vm := range list.Items {
		if vm.Spec.Tenant == name {
			found = append(found, "AetherVM "+vm.Name)
		}
	}
	return found, nil
}

// leasesOf lists leases that a tenant holds. Released ones rest for a while and
// are nobody's.
func (t *T) leasesOf(ctx context.Context, name string) ([]string, error) {
	list := &coordinationv1.LeaseList{}
	if err := t.Kube.List(ctx, list, kubeclient.InNamespace(domain.SystemNamespace), kubeclient.MatchingLabels{lease.LabelTenant: name}); err != nil {
		return nil, fmt.Errorf("list Leases: %w", err)
	}
	var found []string
	for _, l := range list.Items {
		if l.Annotations[lease.AnnotationReleasedAt] == "" {
			found = append(found, "Lease "+l.Name)
		}
	}
	return found, nil
}

// reservationsOf looks for the tenant in the hosts' ledgers.
func (t *T) reservationsOf(ctx context.Context, name string) ([]string, error) {
	list := &corev1.ConfigMapList{}
	if err := t.Kube.List(ctx, list, kubeclient.InNamespace(domain.SystemNamespace)); err != nil {
		return nil, fmt.Errorf("list ConfigMaps: %w", err)
	}
	var found []string
	for _, object := range list.Items {
		for key, value := range object.Data {
			if strings.Contains(value, `"`+name+`"`) {
				found = append(found, fmt.Sprintf("ConfigMap %s key %s", object.Name, key))
			}
		}
	}
	return found, nil
}

func (t *T) namespaceOf(ctx context.Context, name string) ([]string, error) {
	object := &corev1.Namespace{}
	err := t.Kube.Get(ctx, kubeclient.ObjectKey{Name: domain.TenantNamespace(name)}, object)
	if kubeclient.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read namespace: %w", err)
	}
	if err != nil {
		return nil, nil
	}
	return []string{"namespace " + object.Name}, nil
}

func (t *T) podsOf(ctx context.Context, name string) ([]string, error) {
	list := &corev1.PodList{}
	if err := t.Kube.List(ctx, list, kubeclient.InNamespace(domain.TenantNamespace(name))); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	var found []string
	for _, pod := range list.Items {
		found = append(found, "pod "+pod.Name)
	}
	return found, nil
}

func (t *T) controlPlanesOf(ctx context.Context, name string) ([]string, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: "kamaji.clastix.io", Version: "v1alpha1", Kind: "TenantControlPlaneList"})
	if err := t.Kube.List(ctx, list, kubeclient.InNamespace(domain.TenantNamespace(name))); err != nil {
		return nil, fmt.Errorf("list TenantControlPlanes: %w", err)
	}
	var found []string
	for _, object := range list.Items {
		found = append(found, "TenantControlPlane "+object.GetName())
	}
	return found, nil
}
