package network

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
)

// maxLinkName is how long a name of a kernel interface can be.
const maxLinkName = 15

// segmentLink names the bridge of a segment in the switch.
func segmentLink(segment string) string { return "seg-" + segment }

// Fabric is a built topology: switch, router, hosts, platform.
type Fabric struct {
	topology Topology
	segments map[string]Segment
	hosts    map[string]*HostNet

	wired    *Namespace // the switch
	router   *Namespace
	platform *Namespace

	mu      sync.Mutex
	cables  int
	members []*Namespace
}

// NewFabric builds the topology. Close takes it down again; so does the end of
// the process.
func NewFabric(t Topology) (*Fabric, error) {
	if err := t.Validate(); err != nil {
		return nil, fmt.Errorf("topology: %w", err)
	}
	f := &Fabric{topology: t, segments: map[string]Segment{}, hosts: map[string]*HostNet{}}
	for _, s := range t.Segments {
		f.segments[s.Name] = s
	}
	if err := f.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("build the lab's networks: %w", err), f.Close())
	}
	return f, nil
}

func (f *Fabric) build() error {
	steps := []func() error{f.buildSwitch, f.buildRouter, f.buildPlatform, f.buildHosts}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fabric) buildSwitch() error {
	var err error
	if f.wired, err = newBridging("switch"); err != nil {
		return err
	}
	for _, s := range f.topology.Segments {
		if err := f.wired.addBridge(segmentLink(s.Name), s.MTU); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fabric) buildRouter() error {
	var err error
	if f.router, err = NewNamespace("router"); err != nil {
		return err
	}
	if err := f.router.Sysctl("net/ipv4/ip_forward", "1"); err != nil {
		return err
	}
	for _, s := range f.topology.Segments {
		if !s.Gateway.IsValid() {
			continue
		}
		if err := f.plug(s, f.router, segmentLink(s.Name), s.Gateway); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fabric) buildPlatform() error {
	var err error
	if f.platform, err = Here(); err != nil {
		return err
	}
	p := f.topology.Platform
	if p.Segment == "" {
		return nil
	}
	s := f.segments[p.Segment]
	if err := f.plug(s, f.platform, p.Link, p.Address); err != nil {
		return err
	}
	return f.routeOut(s, f.platform)
}

func (f *Fabric) buildHosts() error {
	for _, h := range f.topology.Hosts {
		built, err := f.newHost(h)
		if err != nil {
			return fmt.Errorf("host %s: %w", h.Name, err)
		}
		f.hosts[h.Name] = built
	}
	return nil
}

// cable lays a veth from a new port of a segment's bridge to an interface.
func (f *Fabric) cable(s Segment, to *Namespace, link string) error {
	f.mu.Lock()
	f.cables++
	port := fmt.Sprintf("port%d", f.cables)
	f.mu.Unlock()
	if err := Veth(f.wired, port, to, link, VethOptions{MTU: s.MTU}); err != nil {
		return err
	}
	return f.wired.enslave(port, segmentLink(s.Name))
}

// plug is a cable with an address at its end.
func (f *Fabric) plug(s Segment, to *Namespace, link string, ip netip.Addr) error {
	if err := f.cable(s, to, link); err != nil {
		return err
	}
	return to.AddAddress(link, netip.PrefixFrom(ip, s.Prefix.Bits()))
}

// routeOut sends everything else by the segment's router, if it has one.
func (f *Fabric) routeOut(s Segment, n *Namespace) error {
	if !s.Gateway.IsValid() {
		return nil
	}
	return n.AddRoute(netip.PrefixFrom(netip.IPv4Unspecified(), 0), s.Gateway)
}

// Host returns the network side of a PVE node.
func (f *Fabric) Host(name string) (*HostNet, bool) {
	h, ok := f.hosts[name]
	return h, ok
}

// Platform is the process's own namespace.
func (f *Fabric) Platform() *Namespace { return f.platform }

// Router is the namespace that has the gateway addresses.
func (f *Fabric) Router() *Namespace { return f.router }

// AddSubnetMember makes a machine of its own on a segment, for a lab service
// that needs an address there: a namespace with eth0 at ip and a default route
// by the segment's router. It lives as long as the fabric.
func (f *Fabric) AddSubnetMember(segment, name string, ip netip.Addr) (*Namespace, error) {
	s, ok := f.segments[segment]
	if !ok {
		return nil, fmt.Errorf("segment: %q is not in the topology", segment)
	}
	if !s.Prefix.Contains(ip) {
		return nil, fmt.Errorf("address: %s of %s is not in %s of segment %s", ip, name, s.Prefix, segment)
	}
	n, err := NewNamespace(name)
	if err != nil {
		return nil, err
	}
	err = f.plug(s, n, "eth0", ip)
	if err == nil {
		err = f.routeOut(s, n)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("add %s to segment %s: %w", name, segment, err), n.Close())
	}
	f.mu.Lock()
	f.members = append(f.members, n)
	f.mu.Unlock()
	return n, nil
}

// Close takes the fabric down. Namespaces of guests are their owners' to close.
func (f *Fabric) Close() error {
	var errs []error
	if f.platform != nil && f.topology.Platform.Segment != "" {
		errs = append(errs, f.platform.DelLink(f.topology.Platform.Link))
	}
	f.mu.Lock()
	closing := append([]*Namespace{f.platform, f.router, f.wired}, f.members...)
	f.members = nil
	f.mu.Unlock()
	for _, h := range f.hosts {
		closing = append(closing, h.ns)
	}
	for _, n := range closing {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	return errors.Join(errs...)
}

// newBridging makes a namespace that only switches frames.
func newBridging(name string) (*Namespace, error) {
	n, err := NewNamespace(name)
	if err != nil {
		return nil, err
	}
	// Bridges are deaf to IPv6 and to the firewall of the machine they are on.
	for key, value := range map[string]string{
		"net/ipv6/conf/all/disable_ipv6":      "1",
		"net/ipv6/conf/default/disable_ipv6":  "1",
		"net/bridge/bridge-nf-call-iptables":  "0",
		"net/bridge/bridge-nf-call-arptables": "0",
	} {
		if err := n.sysctlIfKnown(key, value); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	return n, nil
}

func (n *Namespace) addBridge(name string, mtu int) error {
	if mtu == 0 {
		mtu = defaultMTU
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	snooping := false // learns from IGMP queriers, of which there are none
	bridge := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}
	if err := n.nl.LinkAdd(bridge); err != nil {
		return fmt.Errorf("add bridge %s in %s: %w; the kernel needs its bridge module (modprobe bridge)", name, n.name, err)
	}
	// Set explicitly, or the bridge follows the smallest of its ports.
	if err := n.nl.LinkSetMTU(bridge, mtu); err != nil {
		return fmt.Errorf("set MTU of bridge %s in %s to %d: %w", name, n.name, mtu, err)
	}
	return n.setUp(name)
}

const defaultMTU = 1500

func (n *Namespace) enslave(port, bridge string) error {
	link, err := n.link(port)
	if err != nil {
		return err
	}
	master, err := n.link(bridge)
	if err != nil {
		return err
	}
	if err := n.nl.LinkSetMaster(link, master); err != nil {
		return fmt.Errorf("plug %s into bridge %s in %s: %w", port, bridge, n.name, err)
	}
	return nil
}
