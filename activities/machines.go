package activities

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/internal/proxmox"
	"aether.internal/aether/internal/site"
)

// Machines keeps the records of virtual machines and what they hold.
type Machines struct {
	Platform
	Leases *lease.Store
}

// LeaseMachine takes a VMID, addresses and the host's memory for a machine and
// writes them into its AetherVM. It is repeatable: what the machine holds
// already is found by holder. Exhausted ranges and full hosts are repeated.
func (a *Machines) LeaseMachine(ctx context.Context, in MachineRef) (*LeasedMachine, error) {
	leased, err := a.leaseMachine(ctx, in.MachineID)
	return leased, classify(err)
}

func (a *Machines) leaseMachine(ctx context.Context, id string) (*LeasedMachine, error) {
	m, err := a.machine(ctx, id)
	if err != nil {
		return nil, err
	}
	tell(ctx, "a free VMID of Proxmox cluster "+m.cluster.Name, "")
	if err := a.leaseVMID(ctx, m); err != nil {
		return nil, err
	}
	tell(ctx, "room on host "+m.Spec.Host, "")
	pve, err := a.Proxmox(m.cluster.Name)
	if err != nil {
		return nil, err
	}
	if err := reserve(ctx, a.Leases, pve, m); err != nil {
		return nil, err
	}
	tell(ctx, "free addresses", "")
	nics, err := a.leaseAddresses(ctx, m)
	if err != nil {
		return nil, err
	}
	patch := client.MergeFromWithOptions(m.DeepCopy(), client.MergeFromWithOptimisticLock{})
	m.Spec.NICs = nics
	if err := a.Kube.Patch(ctx, m.AetherVM, patch); err != nil {
		return nil, fmt.Errorf("write leases of machine %s: %w", id, err)
	}
	if err := a.phase(ctx, m, "Leased"); err != nil {
		return nil, err
	}
	address, _ := m.address(a.Site, site.TenantNetwork)
	return &LeasedMachine{
		Name: m.Spec.VMName, VMID: m.Spec.VMID, Host: m.Spec.Host, Address: address.Addr().String(),
		ProviderID: domain.ProviderID(m.Spec.Tenant, domain.MachineID(id)), FlushNeighbours: m.cluster.SSH != nil,
	}, nil
}

func holder(m *machine) lease.Holder {
	return lease.Holder{ID: m.Name, Tenant: m.Spec.Tenant, Purpose: string(m.Spec.Role) + " " + m.Spec.VMName}
}

// leaseVMID holds a VMID and records it before anything is cloned to it.
func (a *Machines) leaseVMID(ctx context.Context, m *machine) error {
	if m.Spec.VMID != 0 {
		return nil
	}
	return takeVMID(ctx, &a.Platform, a.Leases, m)
}

func takeVMID(ctx context.Context, p *Platform, leases *lease.Store, m *machine) error {
	pve, err := p.Proxmox(m.cluster.Name)
	if err != nil {
		return err
	}
	within := lease.VMIDRange{From: m.cluster.VMIDs.From, To: m.cluster.VMIDs.To}
	vmid, err := leases.VMID(ctx, m.cluster.Name, within, holder(m), func(ctx context.Context, value string) (bool, error) {
		number, err := strconv.Atoi(value)
		if err != nil {
			return false, fmt.Errorf("VMID %q: %w", value, err)
		}
		return pve.VMIDTaken(ctx, number)
	})
	if err != nil {
		return err
	}
	patch := client.MergeFromWithOptions(m.DeepCopy(), client.MergeFromWithOptimisticLock{})
	m.Spec.VMID = int32(vmid) //nolint:gosec // bounded by Proxmox, 999999999
	if err := p.Kube.Patch(ctx, m.AetherVM, patch); err != nil {
		return fmt.Errorf("record VMID %d of machine %s: %w", vmid, m.Name, err)
	}
	return nil
}

// reserve enters the machine into its host's ledger.
func reserve(ctx context.Context, leases *lease.Store, pve *proxmox.Client, m *machine) error {
	capacity, err := hostCapacity(ctx, pve, m.host)
	if err != nil {
		return err
	}
	return leases.Reserve(ctx, lease.Host{Cluster: m.cluster.Name, Name: m.host.Name}, lease.Reservation{
		Machine: m.Name, Tenant: m.Spec.Tenant, Purpose: m.Spec.VMName, VMID: int(m.Spec.VMID),
		Cores: int(m.Spec.Cores), MemoryMiB: int(m.Spec.MemoryMiB),
	}, capacity)
}

// hostCapacity reads what a host has and what stands on it, live.
func hostCapacity(ctx context.Context, pve *proxmox.Client, host site.Host) (lease.Capacity, error) {
	status, err := pve.NodeStatus(ctx, host.Name)
	if err != nil {
		return lease.Capacity{}, err
	}
	vms, err := pve.VMs(ctx, host.Name)
	if err != nil {
		return lease.Capacity{}, err
	}
	const mib = 1 << 20
	c := lease.Capacity{
		MemoryMiB:        int(status.MemoryBytes / mib),
		VCPUs:            status.Cores * host.VCPUsPerCore,
		ReserveMemoryMiB: host.Reserve.MemoryMiB,
		ReserveVCPUs:     host.Reserve.Cores * host.VCPUsPerCore,
	}
	for _, vm := range vms {
		c.Guests = append(c.Guests, lease.Guest{
			VMID: vm.VMID, Name: vm.Name, Cores: vm.Cores, MemoryMiB: int(vm.MemoryBytes / mib), Running: vm.Running, Template: vm.Template,
		})
	}
	return c, nil
}

// leaseAddresses holds an address for each card of the machine.
func (a *Machines) leaseAddresses(ctx context.Context, m *machine) ([]v1alpha1.NIC, error) {
	if m.Spec.Role == v1alpha1.RoleProxy {
		return a.proxyNICs(ctx, m)
	}
	tenant, err := a.tenant(ctx, m.Spec.Tenant)
	if err != nil {
		return nil, err
	}
	names := []string{tenant.Spec.Network}
	if storage := a.Site.Spec.Defaults.Networks.Storage; storage != "" {
		names = append(names, storage)
	}
	var nics []v1alpha1.NIC
	for i, name := range names {
		network, ok := networkOf(a.Site, name)
		if !ok {
			return nil, refused("network %s is not in the site", name)
		}
		address, err := a.Leases.Address(ctx, name, ranges(network.Ranges.Workers), holder(m), nil)
		if err != nil {
			return nil, err
		}
		nics = append(nics, newNIC(network, domain.WorkerMAC(domain.MachineID(m.Name), i), address))
	}
	return nics, nil
}

// proxyNICs gives the proxy its own management address and the tenant's
// address with the MAC that goes with it.
func (a *Machines) proxyNICs(ctx context.Context, m *machine) ([]v1alpha1.NIC, error) {
	tenant, err := a.tenant(ctx, m.Spec.Tenant)
	if err != nil {
		return nil, err
	}
	front, err := netip.ParseAddr(tenant.Spec.ControlPlaneEndpoint.Host)
	if err != nil {
		return nil, fmt.Errorf("the proxy address of tenant %s is not leased yet: %w", m.Spec.Tenant, errWaiting)
	}
	management, ok := networkOf(a.Site, a.Site.Spec.Defaults.Networks.Management)
	if !ok {
		return nil, refused("network %s is not in the site", a.Site.Spec.Defaults.Networks.Management)
	}
	network, ok := networkOf(a.Site, tenant.Spec.Network)
	if !ok {
		return nil, refused("network %s is not in the site", tenant.Spec.Network)
	}
	back, err := a.Leases.Address(ctx, management.Name, ranges(management.Ranges.Proxies), holder(m), nil)
	if err != nil {
		return nil, err
	}
	return []v1alpha1.NIC{
		newNIC(management, domain.WorkerMAC(domain.MachineID(m.Name), 0), back),
		newNIC(network, domain.ProxyMAC(front), front),
	}, nil
}

func newNIC(network site.Network, mac net.HardwareAddr, address netip.Addr) v1alpha1.NIC {
	return v1alpha1.NIC{Network: network.Name, MAC: mac.String(), Address: netip.PrefixFrom(address, network.CIDR.Bits()).String()}
}

func ranges(all []site.AddressRange) []lease.AddressRange {
	list := make([]lease.AddressRange, 0, len(all))
	for _, r := range all {
		list = append(list, lease.AddressRange{From: r.From, To: r.To})
	}
	return list
}

// ReleaseMachine gives back all a machine holds. It is repeatable; what is not
// held is fine. It must only run once the VM is seen gone.
func (a *Machines) ReleaseMachine(ctx context.Context, in MachineRef) error {
	return insist(a.releaseMachine(ctx, in.MachineID))
}

func (a *Machines) releaseMachine(ctx context.Context, id string) error {
	m, err := a.machine(ctx, id)
	if errors.Is(err, errGone) {
		return a.releaseForgotten(ctx, id)
	}
	if err != nil {
		return err
	}
	if err := a.Leases.ReleaseSlot(ctx, slotPool(m), id); err != nil {
		return err
	}
	if err := a.Leases.Unreserve(ctx, lease.Host{Cluster: m.cluster.Name, Name: m.host.Name}, id); err != nil {
		return err
	}
	if err := a.Leases.ReleaseAll(ctx, id); err != nil {
		return err
	}
	patch := client.MergeFrom(m.DeepCopy())
	m.Spec.VMID, m.Spec.NICs = 0, nil
	delete(m.Annotations, configuredAnnotation)
	if err := a.Kube.Patch(ctx, m.AetherVM, patch); err != nil {
		return fmt.Errorf("clear leases of machine %s: %w", id, err)
	}
	return a.phase(ctx, m, "Removed")
}

// releaseForgotten gives back what a machine without a record holds, wherever
// it may be.
func (a *Machines) releaseForgotten(ctx context.Context, id string) error {
	for _, cluster := range a.Site.Spec.Proxmox {
		for _, host := range cluster.Hosts {
			if err := a.Leases.Unreserve(ctx, lease.Host{Cluster: cluster.Name, Name: host.Name}, id); err != nil {
				return err
			}
		}
	}
	return a.Leases.ReleaseAll(ctx, id)
}

// ListMachines lists the machines a tenant still has, proxies and workers.
func (a *Machines) ListMachines(ctx context.Context, in TenantRef) (*TenantMachines, error) {
	list := &v1alpha1.AetherVMList{}
	if err := a.Kube.List(ctx, list, client.InNamespace(domain.SystemNamespace), client.MatchingLabels{domain.TenantLabel: in.Tenant}); err != nil {
		return nil, classify(fmt.Errorf("list AetherVMs of tenant %s: %w", in.Tenant, err))
	}
	result := &TenantMachines{}
	for _, vm := range list.Items {
		result.MachineIDs = append(result.MachineIDs, vm.Name)
	}
	return result, nil
}

// ForgetMachine releases the finalizer of the AetherMachine that claimed a
// machine, if it is being deleted, and deletes the AetherVM. It must only run
// once the machine's VM and leases are gone. It is repeatable.
func (a *Machines) ForgetMachine(ctx context.Context, in MachineRef) error {
	return insist(a.forgetMachine(ctx, in.MachineID))
}

func (a *Machines) forgetMachine(ctx context.Context, id string) error {
	vm := &v1alpha1.AetherVM{}
	err := a.Kube.Get(ctx, client.ObjectKey{Namespace: domain.SystemNamespace, Name: id}, vm)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read AetherVM %s: %w", id, err)
	}
	if ref := vm.Spec.ClaimRef; ref.Name != "" {
		object := &v1alpha1.AetherMachine{}
		err := a.Kube.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, object)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read AetherMachine %s/%s: %w", ref.Namespace, ref.Name, err)
		}
		if err == nil && !object.DeletionTimestamp.IsZero() && controllerutil.ContainsFinalizer(object, v1alpha1.MachineFinalizer) {
			patch := client.MergeFromWithOptions(object.DeepCopy(), client.MergeFromWithOptimisticLock{})
			controllerutil.RemoveFinalizer(object, v1alpha1.MachineFinalizer)
			if err := a.Kube.Patch(ctx, object, patch); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("release finalizer of AetherMachine %s/%s: %w", ref.Namespace, ref.Name, err)
			}
		}
	}
	if err := a.Kube.Delete(ctx, vm); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete AetherVM %s: %w", id, err)
	}
	return nil
}
