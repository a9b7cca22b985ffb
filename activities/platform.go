package activities

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/proxmox"
	"aether.internal/aether/internal/site"
)

// Platform is what all activities share: the management cluster, read past any
// cache, and the site.
type Platform struct {
	Kube client.WithWatch
	Site *site.Site
	// Proxmox returns the client of a Proxmox cluster of the site.
	Proxmox func(cluster string) (*proxmox.Client, error)
}

// machine reads an AetherVM with its place in the site.
func (p *Platform) machine(ctx context.Context, id string) (*machine, error) {
	vm := &v1alpha1.AetherVM{}
	err := p.Kube.Get(ctx, client.ObjectKey{Namespace: domain.SystemNamespace, Name: id}, vm)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("machine %s: %w: its AetherVM was deleted", id, errGone)
	}
	if err != nil {
		return nil, fmt.Errorf("read AetherVM %s: %w", id, err)
	}
	m := &machine{AetherVM: vm}
	for _, cluster := range p.Site.Spec.Proxmox {
		if cluster.Name != vm.Spec.ProxmoxCluster {
			continue
		}
		m.cluster = cluster
		for _, host := range cluster.Hosts {
			if host.Name == vm.Spec.Host {
				m.host = host
				return m, nil
			}
		}
	}
	return nil, refused("machine %s is to be on host %s of Proxmox cluster %s, which the site does not have; put it back into the site", id, vm.Spec.Host, vm.Spec.ProxmoxCluster)
}

// machine is an AetherVM with its place in the site.
type machine struct {
	*v1alpha1.AetherVM
	cluster site.Cluster
	host    site.Host
}

// ref names the machine's VM in Proxmox.
func (m *machine) ref() proxmox.Ref {
	return proxmox.Ref{Node: m.Spec.Host, VMID: int(m.Spec.VMID), Machine: m.Name}
}

// mark is what the VM carries to say that it is this machine's.
func (m *machine) mark() proxmox.Mark {
	role := proxmox.RoleWorker
	if m.Spec.Role == v1alpha1.RoleProxy {
		role = proxmox.RoleProxy
	}
	return proxmox.Mark{Machine: m.Name, Tenant: m.Spec.Tenant, Role: role}
}

// template is the VMID of the template to clone.
func (m *machine) template() int {
	if m.Spec.Role == v1alpha1.RoleProxy {
		return m.host.Templates.Proxy
	}
	return m.host.Templates.Worker
}

// address returns the address of the machine in a network of that kind.
func (m *machine) address(s *site.Site, kind site.NetworkKind) (netip.Prefix, bool) {
	for _, nic := range m.Spec.NICs {
		network, ok := networkOf(s, nic.Network)
		if !ok || network.Kind != kind {
			continue
		}
		prefix, err := netip.ParsePrefix(nic.Address)
		return prefix, err == nil
	}
	return netip.Prefix{}, false
}

// networkOf returns the site's network of that name.
func networkOf(s *site.Site, name string) (site.Network, bool) {
	i := slices.IndexFunc(s.Spec.Networks, func(n site.Network) bool { return n.Name == name })
	if i < 0 {
		return site.Network{}, false
	}
	return s.Spec.Networks[i], true
}

// tenant reads a tenant's AetherCluster.
func (p *Platform) tenant(ctx context.Context, name string) (*v1alpha1.AetherCluster, error) {
	tenant := &v1alpha1.AetherCluster{}
	err := p.Kube.Get(ctx, client.ObjectKey{Namespace: domain.TenantNamespace(name), Name: name}, tenant)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("tenant %s: %w: its AetherCluster was deleted", name, errGone)
	}
	if err != nil {
		return nil, fmt.Errorf("read AetherCluster %s: %w", name, err)
	}
	return tenant, nil
}

// machinesOf lists a tenant's AetherVMs of a role, by name.
func (p *Platform) machinesOf(ctx context.Context, tenant string, role v1alpha1.Role) ([]v1alpha1.AetherVM, error) {
	list := &v1alpha1.AetherVMList{}
	if err := p.Kube.List(ctx, list, client.InNamespace(domain.SystemNamespace), client.MatchingLabels{domain.TenantLabel: tenant}); err != nil {
		return nil, fmt.Errorf("list AetherVMs of tenant %s: %w", tenant, err)
	}
	list.Items = slices.DeleteFunc(list.Items, func(vm v1alpha1.AetherVM) bool { return vm.Spec.Role != role })
	return list.Items, nil
}

// phase records where a machine is, for people.
func (p *Platform) phase(ctx context.Context, m *machine, phase string) error {
	if m.Status.Phase == phase {
		return nil
	}
	patch := client.MergeFrom(m.DeepCopy())
	m.Status.Phase = phase
	if err := p.Kube.Status().Patch(ctx, m.AetherVM, patch); err != nil {
		return fmt.Errorf("record phase of machine %s: %w", m.Name, err)
	}
	return nil
}
