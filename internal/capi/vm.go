package capi

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/site"
)

// newVM writes down the virtual machine that a machine needs, with a fresh
// machine ID. VMID and addresses are leased later.
func newVM(s *site.Site, object *v1alpha1.AetherMachine, tenant string) (*v1alpha1.AetherVM, error) {
	class, ok := domain.Class(s, object.Spec.Class)
	if !ok {
		return nil, fmt.Errorf("spec.class: found %q; allowed: a machine class of the site; correct the pool", object.Spec.Class)
	}
	cluster, ok := clusterOfHost(s, object.Spec.Host)
	if !ok {
		return nil, fmt.Errorf("spec.host: found %q; allowed: a host of the site; correct the pool", object.Spec.Host)
	}
	id := domain.NewMachineID()
	vm := &v1alpha1.AetherVM{
		ObjectMeta: metav1.ObjectMeta{
			Name: string(id), Namespace: domain.SystemNamespace,
			Labels: map[string]string{
				domain.TenantLabel: tenant, domain.PoolLabel: object.Spec.Pool,
				domain.HostLabel: object.Spec.Host, domain.RoleLabel: "worker",
			},
		},
		Spec: v1alpha1.AetherVMSpec{
			Tenant: tenant, Role: v1alpha1.RoleWorker, Pool: object.Spec.Pool, Class: class.Name,
			ProxmoxCluster: cluster, Host: object.Spec.Host, VMName: domain.WorkerName(tenant, object.Spec.Pool, id),
			Cores: int32(class.Cores), MemoryMiB: int32(class.MemoryMiB), DiskGiB: int32(class.DiskGiB), //nolint:gosec // bounded by the site's validation
			ClaimRef: v1alpha1.ClaimReference{Namespace: object.Namespace, Name: object.Name, UID: string(object.UID)},
		},
	}
	return vm, nil
}

// clusterOfHost returns the name of the Proxmox cluster that has the host.
func clusterOfHost(s *site.Site, host string) (string, bool) {
	for _, cluster := range s.Spec.Proxmox {
		for _, h := range cluster.Hosts {
			if h.Name == host {
				return cluster.Name, true
			}
		}
	}
	return "", false
}
