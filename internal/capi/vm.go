package capi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/site"
)

// newVM writes down the virtual machine that a machine needs, with a fresh
// machine ID. VMID and addresses are leased later.
func newVM(s *site.Site, object *v1alpha1.AetherMachine, tenant string) (*v1alpha1.AetherVM, error) {
	var problems domain.Problems
	class, ok := domain.Class(s, object.Spec.Class)
	if !ok {
		problems.Add("spec.class", domain.Shown(object.Spec.Class), "a machine class of the site", "correct the pool, or put the class into the site")
	}
	cluster, ok := clusterOfHost(s, object.Spec.Host)
	if !ok {
		problems.Add("spec.host", domain.Shown(object.Spec.Host), "a host of the site", "correct the pool, or put the host into the site")
	}
	if err := problems.Err(); err != nil {
		return nil, err
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
