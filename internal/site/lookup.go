package site

import (
	"net/netip"
	"slices"
)

// Cluster returns the Proxmox cluster of that name.
func (s *Site) Cluster(name string) (*Cluster, bool) {
	for i := range s.Spec.Proxmox {
		if s.Spec.Proxmox[i].Name == name {
			return &s.Spec.Proxmox[i], true
		}
	}
	return nil, false
}

// Host returns the host of that name.
func (c *Cluster) Host(name string) (*Host, bool) {
	for i := range c.Hosts {
		if c.Hosts[i].Name == name {
			return &c.Hosts[i], true
		}
	}
	return nil, false
}

// Network returns the network of that name.
func (s *Site) Network(name string) (*Network, bool) {
	for i := range s.Spec.Networks {
		if s.Spec.Networks[i].Name == name {
			return &s.Spec.Networks[i], true
		}
	}
	return nil, false
}

// NetworksOf returns the networks of a kind in the order of the file.
func (s *Site) NetworksOf(kind NetworkKind) []Network {
	var list []Network
	for _, n := range s.Spec.Networks {
		if n.Kind == kind {
			list = append(list, n)
		}
	}
	return list
}

// MachineClass returns the class of that name.
func (s *Site) MachineClass(name string) (MachineClass, bool) {
	for _, class := range s.Spec.MachineClasses {
		if class.Name == name {
			return class, true
		}
	}
	return MachineClass{}, false
}

// On tells whether the host carries the network.
func (n *Network) On(host string) bool {
	return len(n.Hosts) == 0 || slices.Contains(n.Hosts, host)
}

// Prefix returns an address of the network with the network's length, as an
// interface is configured with it.
func (n *Network) Prefix(address netip.Addr) netip.Prefix {
	return netip.PrefixFrom(address, n.CIDR.Bits())
}

// Forbidden returns, with a name for each, the ranges no tenant's pods or
// services may overlap.
func (s *Site) Forbidden() []NamedRange {
	list := make([]NamedRange, 0, len(s.Spec.Networks)+len(s.Spec.ReservedCIDRs)+2)
	for _, n := range s.Spec.Networks {
		list = append(list, NamedRange{Name: "network " + n.Name, CIDR: n.CIDR})
	}
	list = append(list,
		NamedRange{Name: "pods of the management cluster", CIDR: s.Spec.Management.PodCIDR},
		NamedRange{Name: "services of the management cluster", CIDR: s.Spec.Management.ServiceCIDR})
	for _, prefix := range s.Spec.ReservedCIDRs {
		list = append(list, NamedRange{Name: "reserved", CIDR: prefix})
	}
	return list
}

// NamedRange is a range of addresses with what it is used for.
type NamedRange struct {
	Name string
	CIDR netip.Prefix
}
