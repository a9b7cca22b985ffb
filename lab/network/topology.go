package network

import (
	"fmt"
	"net/netip"
)

// Topology describes a site's networks.
type Topology struct {
	Segments []Segment
	Hosts    []Host
	Platform Platform
}

// Segment is a layer-2 network with its subnet: what the site's physical
// switches carry as one VLAN.
type Segment struct {
	Name   string
	Prefix netip.Prefix
	// Gateway is the router's address. The zero value means that the segment
	// is not routed.
	Gateway netip.Addr
	MTU     int // 0: 1500
}

// Host is a PVE node.
type Host struct {
	Name    string
	Bridges []Bridge
}

// Bridge is a Linux bridge of a host.
type Bridge struct {
	Name string
	// Address is the host's own on the bridge; the zero value is none.
	Address netip.Prefix
	// Segment is what untagged frames of the bridge reach; empty is nothing.
	Segment string
	// VLANs maps tags to segments. They are reached only if VLANAware: without
	// it a tagged card gets a bridge that leads nowhere, and no error.
	VLANs     map[int]string
	VLANAware bool
	// Gateway of the host's default route by this bridge; the zero value is none.
	Gateway netip.Addr
}

// Platform is where the process's own namespace is plugged in. Without a
// segment it is not.
type Platform struct {
	Segment string
	Link    string
	Address netip.Addr
}

// DefaultTopology is the origin's homelab: two hosts, four segments, the
// platform at 192.168.0.2.
func DefaultTopology() Topology {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	host := func(name, mgmt, tenant string) Host {
		return Host{Name: name, Bridges: []Bridge{
			{
				Name: "vmbr0", Address: prefix(mgmt), Gateway: addr("192.168.0.1"),
				Segment: "mgmt", VLANs: map[int]string{4: "vlan4"}, VLANAware: true,
			},
			// The hosts have addresses among the tenants, and so ARP caches
			// that can be stale, as the origin's had.
			{Name: "vmbr1", Address: prefix(tenant), Segment: "tenant"},
			{Name: "vmbr2", Segment: "storage"},
		}}
	}
	return Topology{
		Segments: []Segment{
			{Name: "mgmt", Prefix: prefix("192.168.0.0/24"), Gateway: addr("192.168.0.1")},
			{Name: "tenant", Prefix: prefix("10.1.1.0/24"), Gateway: addr("10.1.1.1")},
			{Name: "storage", Prefix: prefix("10.1.2.0/24")},
			{Name: "vlan4", Prefix: prefix("192.168.4.0/24"), Gateway: addr("192.168.4.1")},
		},
		Hosts: []Host{
			host("pv1-1", "192.168.0.8/24", "10.1.1.2/24"),
			host("pv1-2", "192.168.0.10/24", "10.1.1.3/24"),
		},
		Platform: Platform{Segment: "mgmt", Link: "mgmt0", Address: addr("192.168.0.2")},
	}
}

// Validate says what in the topology cannot be built.
func (t Topology) Validate() error {
	segments := map[string]Segment{}
	for _, s := range t.Segments {
		if err := s.validate(); err != nil {
			return err
		}
		if _, twice := segments[s.Name]; twice {
			return fmt.Errorf("segments: name %q is used twice; names are unique", s.Name)
		}
		segments[s.Name] = s
	}
	hosts := map[string]bool{}
	for _, h := range t.Hosts {
		if h.Name == "" || hosts[h.Name] {
			return fmt.Errorf("hosts: name %q is empty or used twice; names are unique", h.Name)
		}
		hosts[h.Name] = true
		if err := h.validate(segments); err != nil {
			return err
		}
	}
	return t.Platform.validate(segments)
}

func (s Segment) validate() error {
	// The name becomes that of a kernel interface in the switch.
	if s.Name == "" || len(s.Name) > maxLinkName-len(segmentLink("")) {
		return fmt.Errorf("segments: name %q has %d characters; allowed are 1 to %d", s.Name, len(s.Name), maxLinkName-len(segmentLink("")))
	}
	if !s.Prefix.IsValid() || !s.Prefix.Addr().Is4() {
		return fmt.Errorf("segments: prefix of %s is %q; give an IPv4 subnet, as 10.1.1.0/24", s.Name, s.Prefix)
	}
	if s.Gateway.IsValid() && !s.Prefix.Contains(s.Gateway) {
		return fmt.Errorf("segments: gateway %s of %s is not in %s", s.Gateway, s.Name, s.Prefix)
	}
	return nil
}

func (h Host) validate(segments map[string]Segment) error {
	names := map[string]bool{}
	for _, b := range h.Bridges {
		if b.Name == "" || len(b.Name) > 8 || names[b.Name] {
			return fmt.Errorf("hosts: bridge %q of %s is empty, longer than 8 characters or there twice", b.Name, h.Name)
		}
		names[b.Name] = true
		if _, ok := segments[b.Segment]; !ok && b.Segment != "" {
			return fmt.Errorf("hosts: bridge %s of %s leads to segment %q, which is not defined", b.Name, h.Name, b.Segment)
		}
		for tag, name := range b.VLANs {
			if _, ok := segments[name]; !ok || tag < 1 || tag > 4094 {
				return fmt.Errorf("hosts: tag %d of bridge %s of %s leads to segment %q; tags are 1 to 4094 and the segment must be defined", tag, b.Name, h.Name, name)
			}
		}
	}
	return nil
}

func (p Platform) validate(segments map[string]Segment) error {
	if p.Segment == "" {
		return nil
	}
	s, ok := segments[p.Segment]
	if !ok {
		return fmt.Errorf("platform: segment %q is not defined", p.Segment)
	}
	if !s.Prefix.Contains(p.Address) {
		return fmt.Errorf("platform: address %s is not in %s of segment %s", p.Address, s.Prefix, s.Name)
	}
	if p.Link == "" || len(p.Link) > maxLinkName {
		return fmt.Errorf("platform: link %q is not an interface name; give 1 to %d characters", p.Link, maxLinkName)
	}
	return nil
}
