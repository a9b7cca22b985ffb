package activities

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/internal/proxmox"
	"aether.internal/aether/internal/site"
)

// Proxmox makes and removes virtual machines.
type Proxmox struct {
	Platform
	Leases *lease.Store
	// Door returns the SSH door of a Proxmox cluster, or nil when the site has
	// none.
	Door func(cluster string) (*proxmox.Door, error)
}

const (
	// systemDisk is the slot of the template's only disk.
	systemDisk = "scsi0"
	// cloudInitDrive is the slot of Proxmox's cloud-init drive, or of a proxy's
	// own medium.
	cloudInitDrive = "ide2"
	nicModel       = "virtio"
)

func slotPool(m *machine) lease.SlotPool {
	return lease.SlotPool{Cluster: m.cluster.Name, Host: m.host.Name, Storage: m.host.Storage.Disks, Size: m.host.Storage.CloneSlots}
}

// beat tells a wait's progress in the activity's heartbeats.
func beat(ctx context.Context) proxmox.Beat {
	return func(p proxmox.Progress) { tellTask(ctx, p.Waits, p.Detail, string(p.UPID)) }
}

// CloneVM clones the host's template to the machine's VMID, within the bound
// of clones in flight on the storage, and reads the new VM back. It is
// repeatable: a finished clone or one in flight is found by mark, lock and
// task. A VMID that something else took is exchanged for another. A failed
// task is repeated.
func (a *Proxmox) CloneVM(ctx context.Context, in MachineRef) error {
	return classify(a.cloneVM(ctx, in.MachineID))
}

func (a *Proxmox) cloneVM(ctx context.Context, id string) error {
	m, err := a.machine(ctx, id)
	if err != nil {
		return err
	}
	pve, err := a.Proxmox(m.cluster.Name)
	if err != nil {
		return err
	}
	if err := a.phase(ctx, m, "Cloning"); err != nil {
		return err
	}
	pool := slotPool(m)
	err = a.Leases.Acquire(ctx, pool, holder(m), func(w lease.Waiting) {
		tell(ctx, fmt.Sprintf("a clone slot on %s", pool), fmt.Sprintf("position %d", w.Position))
	})
	if err != nil {
		return err
	}
	stop := a.renew(ctx, pool, holder(m))
	err = a.cloneInSlot(ctx, pve, m)
	stop()
	if inFlight(ctx, err) {
		return err // the next attempt has the slot still
	}
	return errors.Join(err, a.Leases.ReleaseSlot(ctx, pool, id))
}

// inFlight tells whether a clone may go on although its activity ended with
// err: we stopped looking, or lost the host.
func inFlight(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || errors.Is(err, proxmox.ErrUnreachable) && !errors.Is(err, proxmox.ErrTaskFailed))
}

// renew keeps the clone slot until the returned function is called.
func (a *Proxmox) renew(ctx context.Context, pool lease.SlotPool, who lease.Holder) (stop func()) {
	rctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(lease.SlotTTL / 4)
		defer ticker.Stop()
		for {
			select {
			case <-rctx.Done():
				return
			case <-ticker.C:
				// One that cannot be renewed is taken again by the next attempt;
				// the clone in flight goes on.
				if _, err := a.Leases.RenewSlot(rctx, pool, who); err != nil {
					tell(rctx, "a clone slot to be renewed", err.Error())
				}
			}
		}
	}()
	return func() { cancel(); <-done }
}

func (a *Proxmox) cloneInSlot(ctx context.Context, pve *proxmox.Client, m *machine) error {
	if err := a.followVMID(ctx, pve, m); err != nil {
		return err
	}
	upid, err := pve.Clone(ctx, proxmox.CloneSpec{
		Node: m.Spec.Host, Template: m.template(), VMID: int(m.Spec.VMID), Name: m.Spec.VMName, Mark: m.mark(), Pool: m.cluster.Pool,
		Full: m.host.Storage.CloneMode == site.FullClone, Storage: m.host.Storage.Disks,
	})
	if errors.Is(err, proxmox.ErrAlreadyExists) || errors.Is(err, proxmox.ErrLocked) {
		return a.exchangeVMID(ctx, m, err)
	}
	if err != nil {
		return err
	}
	if _, err := pve.WaitTask(ctx, upid, beat(ctx)); err != nil {
		return err
	}
	seen, err := pve.VM(ctx, m.Spec.Host, int(m.Spec.VMID))
	if errors.Is(err, proxmox.ErrNotFound) {
		return waiting("VM %d on %s is not there although its clone ended well; it is cloned again", m.Spec.VMID, m.Spec.Host)
	}
	if err != nil {
		return err
	}
	return seen.Belongs(m.Name)
}

// followVMID keeps the machine's reservation in the host's ledger at its VMID:
// after an exchange its own VM would count as a stranger's, and the stranger's
// not at all.
func (a *Proxmox) followVMID(ctx context.Context, pve *proxmox.Client, m *machine) error {
	host := lease.Host{Cluster: m.cluster.Name, Name: m.host.Name}
	book, err := a.Leases.Ledger(ctx, host)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(book, func(r lease.Reservation) bool { return r.Machine == m.Name && r.VMID == int(m.Spec.VMID) }) {
		return nil
	}
	return reserve(ctx, a.Leases, pve, m)
}

// exchangeVMID gives up a VMID that something else has, or that a dead clone
// blocks, and leases another for the next attempt.
func (a *Proxmox) exchangeVMID(ctx context.Context, m *machine, cause error) error {
	lost := m.Spec.VMID
	release := a.Leases.AbandonVMID
	if errors.Is(cause, proxmox.ErrLocked) {
		release = a.Leases.ReleaseVMID // a dead clone blocks it: not soon again
	}
	if err := release(ctx, m.cluster.Name, int(lost), m.Name); err != nil {
		return err
	}
	if err := takeVMID(ctx, &a.Platform, a.Leases, m); err != nil {
		return err
	}
	// An attempt of its own for the new VMID, so that each is seen in the history.
	return waiting("VMID %d cannot be used (%v), VMID %d is leased in its place", lost, cause, m.Spec.VMID)
}

// ConfigureVM gives the VM its UUID, size, cards, addresses and mark, and reads
// them back. It is repeatable: what is so already is not written.
func (a *Proxmox) ConfigureVM(ctx context.Context, in MachineRef) error {
	return classify(a.configureVM(ctx, in.MachineID))
}

func (a *Proxmox) configureVM(ctx context.Context, id string) error {
	m, err := a.machine(ctx, id)
	if err != nil {
		return err
	}
	pve, err := a.Proxmox(m.cluster.Name)
	if err != nil {
		return err
	}
	nics, err := cards(a.Site, m)
	if err != nil {
		return err
	}
	mark := m.mark()
	wish := proxmox.ConfigWish{
		Name: m.Spec.VMName, Mark: &mark, UUID: m.Name, Cores: int(m.Spec.Cores), MemoryMiB: int(m.Spec.MemoryMiB),
		Agent: new(true), OnBoot: new(true), NICs: nics, Boot: []string{systemDisk},
	}
	if m.Spec.Role == v1alpha1.RoleWorker {
		wish.CloudInit, err = cloudInit(a.Site, m)
		if err != nil {
			return err
		}
	}
	tell(ctx, "the configuration of "+m.Spec.VMName+" to be written", "")
	if err := pve.WriteConfig(ctx, m.ref(), wish); err != nil {
		return err
	}
	if m.Spec.DiskGiB == 0 {
		return nil // the template's size
	}
	return pve.Grow(ctx, m.ref(), systemDisk, int(m.Spec.DiskGiB), beat(ctx))
}

// cards are the VM's network cards as Proxmox shall have them.
func cards(s *site.Site, m *machine) ([]proxmox.NIC, error) {
	list := make([]proxmox.NIC, 0, len(m.Spec.NICs))
	for i, nic := range m.Spec.NICs {
		network, ok := networkOf(s, nic.Network)
		if !ok {
			return nil, refused("network %s is not in the site", nic.Network)
		}
		mac, err := net.ParseMAC(nic.MAC)
		if err != nil {
			return nil, fmt.Errorf("card %d of machine %s: %w", i, m.Name, err)
		}
		list = append(list, proxmox.NIC{Index: i, Model: nicModel, MAC: mac, Bridge: network.Bridge, VLAN: network.VLAN, MTU: network.MTU})
	}
	return list, nil
}

// cloudInit gives each card its address before Talos has a configuration, and
// again whenever it is reset to maintenance mode.
func cloudInit(s *site.Site, m *machine) (*proxmox.CloudInit, error) {
	wish := &proxmox.CloudInit{Slot: cloudInitDrive, Storage: m.host.Storage.Disks, Addresses: map[int]proxmox.AddressConfig{}}
	for i, nic := range m.Spec.NICs {
		network, _ := networkOf(s, nic.Network)
		prefix, err := netip.ParsePrefix(nic.Address)
		if err != nil {
			return nil, fmt.Errorf("card %d of machine %s: %w", i, m.Name, err)
		}
		config := proxmox.AddressConfig{Address: prefix}
		if i == 0 {
			config.Gateway = network.Gateway
			wish.Nameservers = network.DNS
		}
		wish.Addresses[i] = config
	}
	return wish, nil
}

// StartVM starts the VM and sees it run. It is repeatable: a running VM is
// left alone.
func (a *Proxmox) StartVM(ctx context.Context, in MachineRef) error {
	return classify(a.startVM(ctx, in.MachineID))
}

func (a *Proxmox) startVM(ctx context.Context, id string) error {
	m, err := a.machine(ctx, id)
	if err != nil {
		return err
	}
	pve, err := a.Proxmox(m.cluster.Name)
	if err != nil {
		return err
	}
	if err := a.phase(ctx, m, "Booting"); err != nil {
		return err
	}
	_, err = pve.Start(ctx, m.ref(), beat(ctx))
	return err
}

// FlushNeighbours makes the hosts of the machine's Proxmox cluster forget what
// MAC its addresses had before. It is repeatable. A host that does not answer
// is passed over: its entries age while it is off.
func (a *Proxmox) FlushNeighbours(ctx context.Context, in MachineRef) error {
	return classify(a.flushNeighbours(ctx, in.MachineID))
}

func (a *Proxmox) flushNeighbours(ctx context.Context, id string) error {
	m, err := a.machine(ctx, id)
	if err != nil {
		return err
	}
	door, err := a.Door(m.cluster.Name)
	if err != nil || door == nil {
		return err
	}
	for _, nic := range m.Spec.NICs {
		network, ok := networkOf(a.Site, nic.Network)
		if !ok {
			return refused("network %s is not in the site", nic.Network)
		}
		prefix, err := netip.ParsePrefix(nic.Address)
		if err != nil {
			return fmt.Errorf("address of machine %s: %w", id, err)
		}
		for _, host := range m.cluster.Hosts {
			if !network.On(host.Name) {
				continue // no such bridge there
			}
			tell(ctx, fmt.Sprintf("host %s to forget %s", host.Name, prefix.Addr()), "")
			err := door.FlushNeighbour(ctx, host.Address, network.Bridge, prefix.Addr())
			if errors.Is(err, proxmox.ErrUnreachable) && host.Name != m.Spec.Host {
				continue
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// DestroyVM stops and destroys the machine's VM and its medium and returns
// once they are seen gone. It is repeatable. A VM that carries another's mark
// is not touched: ours is gone then. A host that cannot be asked is not
// absence; it is repeated until the host answers.
func (a *Proxmox) DestroyVM(ctx context.Context, in MachineRef) error {
	return insist(a.destroyVM(ctx, in.MachineID))
}

func (a *Proxmox) destroyVM(ctx context.Context, id string) error {
	m, err := a.machine(ctx, id)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	if m.Spec.VMID == 0 {
		return nil // nothing was ever leased, so nothing was made
	}
	pve, err := a.Proxmox(m.cluster.Name)
	if err != nil {
		return err
	}
	if err := a.phase(ctx, m, "Removing"); err != nil {
		return err
	}
	// A clone in flight shows no VM yet, or one without a mark.
	upid, err := pve.CloneInFlight(ctx, m.Spec.Host, m.template(), int(m.Spec.VMID))
	if err != nil {
		return err
	}
	if _, err := pve.WaitTask(ctx, upid, beat(ctx)); err != nil && !errors.Is(err, proxmox.ErrTaskFailed) {
		return err
	}
	err = pve.Destroy(ctx, m.ref(), beat(ctx))
	if err != nil && !errors.Is(err, proxmox.ErrNotOurs) {
		return err
	}
	if err == nil {
		if err := a.destroyElsewhere(ctx, pve, m); err != nil {
			return err
		}
	}
	return a.deleteSeed(ctx, pve, m)
}

// destroyElsewhere destroys the machine's VM on the host that someone moved it
// to. Absent from its own host is not yet gone.
func (a *Proxmox) destroyElsewhere(ctx context.Context, pve *proxmox.Client, m *machine) error {
	taken, err := pve.VMIDTaken(ctx, int(m.Spec.VMID))
	if err != nil || !taken {
		return err
	}
	seen, err := pve.FindVM(ctx, int(m.Spec.VMID))
	if errors.Is(err, proxmox.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	ref := m.ref()
	ref.Node = seen.VM.Node
	err = pve.Destroy(ctx, ref, beat(ctx))
	if errors.Is(err, proxmox.ErrNotOurs) {
		return nil
	}
	return err
}

// RemoveSeed takes a proxy's medium out of its drive and deletes it: the
// one-time token on it was used. It is repeatable.
func (a *Proxmox) RemoveSeed(ctx context.Context, in MachineRef) error {
	return classify(a.removeSeed(ctx, in.MachineID))
}

func (a *Proxmox) removeSeed(ctx context.Context, id string) error {
	m, err := a.machine(ctx, id)
	if err != nil {
		return err
	}
	pve, err := a.Proxmox(m.cluster.Name)
	if err != nil {
		return err
	}
	if err := pve.DetachISO(ctx, m.ref(), cloudInitDrive); err != nil {
		return err
	}
	return a.deleteSeed(ctx, pve, m)
}

func (a *Proxmox) deleteSeed(ctx context.Context, pve *proxmox.Client, m *machine) error {
	if m.Spec.Role != v1alpha1.RoleProxy {
		return nil
	}
	return pve.DeleteISO(ctx, m.Spec.Host, m.host.Storage.ISO, seedName(m), beat(ctx))
}

// seedName is the file name of a proxy's medium.
func seedName(m *machine) string { return "aether-" + m.Name + ".iso" }
