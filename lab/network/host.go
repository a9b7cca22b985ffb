package network

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"aether.internal/aether/lab/machine"
)

// ErrNoBridge says that a host has no bridge of that name.
var ErrNoBridge = errors.New("bridge does not exist")

// HostNet is the network side of a PVE node: its namespace with its bridges.
type HostNet struct {
	fabric  *Fabric
	host    Host
	bridges map[string]Bridge
	ns      *Namespace

	mu    sync.Mutex
	built map[string]bool // kernel bridges, by name
	ups   []string        // uplinks
	down  bool
}

func (f *Fabric) newHost(h Host) (*HostNet, error) {
	ns, err := newBridging(h.Name)
	if err != nil {
		return nil, err
	}
	built := &HostNet{fabric: f, host: h, bridges: map[string]Bridge{}, ns: ns, built: map[string]bool{}}
	for _, b := range h.Bridges {
		built.bridges[b.Name] = b
		if err := built.setUpBridge(b); err != nil {
			return nil, errors.Join(err, ns.Close())
		}
	}
	return built, nil
}

func (h *HostNet) setUpBridge(b Bridge) error {
	if _, err := h.bridgeFor(b.Name, 0); err != nil {
		return err
	}
	if b.VLANAware {
		for _, tag := range slices.Sorted(maps.Keys(b.VLANs)) {
			if _, err := h.bridgeFor(b.Name, tag); err != nil {
				return err
			}
		}
	}
	if b.Address.IsValid() {
		if err := h.ns.AddAddress(b.Name, b.Address); err != nil {
			return err
		}
	}
	if b.Gateway.IsValid() {
		return h.ns.AddRoute(netip.PrefixFrom(netip.IPv4Unspecified(), 0), b.Gateway)
	}
	return nil
}

// Name of the host.
func (h *HostNet) Name() string { return h.host.Name }

// Namespace is the host's own network stack.
func (h *HostNet) Namespace() *Namespace { return h.ns }

// bridgeFor returns the name of the kernel bridge of a (bridge, tag) pair, made
// on first use as PVE does. Where the tag is not carried, it has no uplink:
// cards on it reach one another on this host and nothing else.
func (h *HostNet) bridgeFor(name string, tag int) (string, error) {
	b, ok := h.bridges[name]
	if !ok {
		return "", fmt.Errorf("bridge %q on host %s: %w; it has %v", name, h.host.Name, ErrNoBridge, slices.Sorted(maps.Keys(h.bridges)))
	}
	kernel, segment := name, b.Segment
	if tag != 0 {
		kernel, segment = fmt.Sprintf("%sv%d", name, tag), ""
		if b.VLANAware {
			segment = b.VLANs[tag]
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.built[kernel] {
		return kernel, nil
	}
	s := h.fabric.segments[segment]
	if err := h.ns.addBridge(kernel, s.MTU); err != nil {
		return "", err
	}
	if segment != "" {
		if err := h.uplink(s, kernel); err != nil {
			return "", err
		}
	}
	h.built[kernel] = true
	return kernel, nil
}

func (h *HostNet) uplink(s Segment, bridge string) error {
	link := "up" + bridge
	if err := h.fabric.cable(s, h.ns, link); err != nil {
		return err
	}
	if err := h.ns.enslave(link, bridge); err != nil {
		return err
	}
	h.ups = append(h.ups, link)
	return h.ns.SetLinkUp(link, !h.down)
}

// SetDown cuts all uplinks of the host, or joins them again: nobody reaches the
// host nor the machines on it, and it reaches nobody.
func (h *HostNet) SetDown(down bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = down
	var errs []error
	for _, link := range h.ups {
		errs = append(errs, h.ns.SetLinkUp(link, !down))
	}
	return errors.Join(errs...)
}

// Port is a network card's place on a host's bridge.
type Port struct {
	host *HostNet
	link string
}

// Attach plugs a virtual machine's card into its bridge: guestName in the
// guest's namespace, tap<vmid>i<index> on the host.
func (h *HostNet) Attach(nic machine.NIC, vmid int, guest *Namespace, guestName string) (*Port, error) {
	bridge, err := h.bridgeFor(nic.Bridge, nic.VLAN)
	if err != nil {
		return nil, fmt.Errorf("net%d of VM %d: %w", nic.Index, vmid, err)
	}
	mtu := nic.MTU
	if mtu <= 1 { // 1 is PVE's word for the bridge's
		link, err := h.ns.link(bridge)
		if err != nil {
			return nil, err
		}
		mtu = link.Attrs().MTU
	}
	p := &Port{host: h, link: fmt.Sprintf("tap%di%d", vmid, nic.Index)}
	if err := Veth(h.ns, p.link, guest, guestName, VethOptions{MAC: nic.MAC, MTU: mtu}); err != nil {
		return nil, fmt.Errorf("net%d of VM %d: %w", nic.Index, vmid, err)
	}
	err = h.ns.enslave(p.link, bridge)
	if err == nil && nic.LinkDown {
		err = p.SetDown(true)
	}
	if err != nil {
		return nil, errors.Join(err, p.Detach())
	}
	return p, nil
}

// Link is the name of the port's interface on the host.
func (p *Port) Link() string { return p.link }

// SetDown pulls or plugs the cable: the guest's side loses carrier or gets it
// back.
func (p *Port) SetDown(down bool) error { return p.host.ns.SetLinkUp(p.link, !down) }

// Detach removes the card from host and guest.
func (p *Port) Detach() error { return p.host.ns.DelLink(p.link) }
