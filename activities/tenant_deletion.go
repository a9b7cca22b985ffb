package activities

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	controlplanev1 "aether.internal/aether/api/controlplane/v1alpha1"
	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/lease"
)

// DeleteCluster deletes the tenant's Cluster, so that core begins its order:
// Machines, control plane, infrastructure. It is repeatable; one that is gone,
// or was never written, is fine.
func (a *Tenants) DeleteCluster(ctx context.Context, in TenantRef) error {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: in.Tenant, Namespace: domain.TenantNamespace(in.Tenant)}}
	if err := a.Kube.Delete(ctx, cluster); client.IgnoreNotFound(err) != nil {
		return classify(fmt.Errorf("delete Cluster %s: %w", in.Tenant, err))
	}
	return nil
}

// FinishDeletion releases the finalizers of the AetherControlPlane and the
// AetherCluster once core deletes them, waits for the Cluster to be gone, gives
// the tenant's address back and deletes the namespace if Aether made it. It
// must only run once pods, VMs and leases are seen gone. It is repeatable.
func (a *Tenants) FinishDeletion(ctx context.Context, in TenantRef) error {
	return insist(a.finishDeletion(ctx, in.Tenant))
}

func (a *Tenants) finishDeletion(ctx context.Context, tenant string) error {
	key := client.ObjectKey{Namespace: domain.TenantNamespace(tenant), Name: tenant}
	err := until(ctx, a.Kube, &clusterv1.ClusterList{}, []client.ListOption{client.InNamespace(key.Namespace)}, func(ctx context.Context) (string, error) {
		for _, owned := range []struct {
			object    client.Object
			finalizer string
		}{
			{&controlplanev1.AetherControlPlane{}, controlplanev1.Finalizer},
			{&v1alpha1.AetherCluster{}, v1alpha1.ClusterFinalizer},
		} {
			if err := a.release(ctx, key, owned.object, owned.finalizer); err != nil {
				return "", err
			}
		}
		return a.objectsLeft(ctx, key)
	})
	if err != nil {
		return err
	}
	if err := a.Leases.ReleaseAll(ctx, addressHolder(tenant).ID); err != nil {
		return err
	}
	return a.deleteNamespace(ctx, tenant)
}

// release deletes the object if nothing has, now that what it stands for is
// gone, and releases our finalizer.
func (a *Tenants) release(ctx context.Context, key client.ObjectKey, object client.Object, finalizer string) error {
	err := a.Kube.Get(ctx, key, object)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %T %s: %w", object, key, err)
	}
	if object.GetDeletionTimestamp().IsZero() {
		if err := a.Kube.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %T %s: %w", object, key, err)
		}
	}
	before, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("copy %T: not an object", object)
	}
	if !controllerutil.RemoveFinalizer(object, finalizer) {
		return nil
	}
	if err := a.Kube.Patch(ctx, object, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("release finalizer of %T %s: %w", object, key, err)
	}
	return nil
}

func (a *Tenants) objectsLeft(ctx context.Context, key client.ObjectKey) (waitsFor string, err error) {
	for _, object := range []client.Object{&clusterv1.Cluster{}, &v1alpha1.AetherCluster{}, &controlplanev1.AetherControlPlane{}} {
		err := a.Kube.Get(ctx, key, object)
		if err == nil {
			return fmt.Sprintf("%T %s to be gone; it has finalizers %v", object, key, object.GetFinalizers()), nil
		}
		if !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("read %T %s: %w", object, key, err)
		}
	}
	return "", nil
}

// deleteNamespace deletes the tenant's namespace and waits until it is gone,
// but only one that Aether made.
func (a *Tenants) deleteNamespace(ctx context.Context, tenant string) error {
	namespace := &corev1.Namespace{}
	key := client.ObjectKey{Name: domain.TenantNamespace(tenant)}
	err := a.Kube.Get(ctx, key, namespace)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read Namespace %s: %w", key.Name, err)
	}
	if namespace.Labels[domain.CreatedByLabel] != domain.FieldManager {
		return nil
	}
	if err := a.Kube.Delete(ctx, namespace); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Namespace %s: %w", key.Name, err)
	}
	return until(ctx, a.Kube, &corev1.NamespaceList{}, nil, func(ctx context.Context) (string, error) {
		err := a.Kube.Get(ctx, key, namespace)
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", fmt.Errorf("read Namespace %s: %w", key.Name, err)
		}
		return "Namespace " + key.Name + " to be gone", nil
	})
}

// SweepTenant looks at every place that could hold something of the tenant:
// records, leases, ledgers, and the VMs of every host. What is found is named;
// the attempt is repeated until nothing is. A host that cannot be asked is not
// a host without VMs.
func (a *Tenants) SweepTenant(ctx context.Context, in TenantRef) (*SweepResult, error) {
	result := &SweepResult{}
	left, err := a.sweep(ctx, in.Tenant, result)
	if err != nil {
		return nil, classify(err)
	}
	if len(left) > 0 {
		return nil, classify(waiting("still there of tenant %s: %s", in.Tenant, strings.Join(left, ", ")))
	}
	return result, nil
}

func (a *Tenants) sweep(ctx context.Context, tenant string, result *SweepResult) (left []string, err error) {
	for _, role := range []v1alpha1.Role{v1alpha1.RoleProxy, v1alpha1.RoleWorker} {
		vms, err := a.machinesOf(ctx, tenant, role)
		if err != nil {
			return nil, err
		}
		result.Places++
		for _, vm := range vms {
			left = append(left, "AetherVM "+vm.Name)
		}
	}
	held, err := a.Leases.HeldByTenant(ctx, tenant)
	if err != nil {
		return nil, err
	}
	result.Places++
	for _, h := range held {
		left = append(left, "lease of "+h.Value+" in "+h.Pool)
	}
	for _, cluster := range a.Site.Spec.Proxmox {
		pve, err := a.Proxmox(cluster.Name)
		if err != nil {
			return nil, err
		}
		for _, host := range cluster.Hosts {
			tell(ctx, "host "+host.Name+" to tell its VMs", "")
			vms, err := pve.VMs(ctx, host.Name)
			if err != nil {
				return nil, err
			}
			book, err := a.Leases.Ledger(ctx, lease.Host{Cluster: cluster.Name, Name: host.Name})
			if err != nil {
				return nil, err
			}
			result.Places += 2
			for _, vm := range vms {
				if slices.Contains(vm.Tags, "tenant-"+tenant) {
					left = append(left, fmt.Sprintf("VM %d (%s) on %s", vm.VMID, vm.Name, host.Name))
				}
			}
			for _, r := range book {
				if r.Tenant == tenant {
					left = append(left, "reservation of machine "+r.Machine+" on "+host.Name)
				}
			}
		}
	}
	return left, nil
}
