package site

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
)

func (r *report) networks(s *Site) {
	names := make([]string, 0, len(s.Spec.Networks))
	for i := range s.Spec.Networks {
		n, field := &s.Spec.Networks[i], fmt.Sprintf("spec.networks[%d]", i)
		names = append(names, n.Name)
		r.network(field, n)
		r.networkHosts(field, n, s)
	}
	r.unique("spec.networks", names)
	for _, kind := range []NetworkKind{ManagementNetwork, TenantNetwork} {
		r.atLeastOne("spec.networks", len(s.NetworksOf(kind)), "network of kind "+string(kind))
	}
}

func (r *report) network(field string, n *Network) {
	r.label(field+".name", n.Name)
	r.oneOf(field+".kind", string(n.Kind), []string{string(ManagementNetwork), string(TenantNetwork), string(StorageNetwork)}, "choose one")
	access := []string{string(AccessLocal), string(AccessRouted), string(AccessNone)}
	if n.Kind != StorageNetwork {
		access = access[:2]
	}
	r.oneOf(field+".platformAccess", string(n.PlatformAccess), access,
		"the platform pushes a worker's configuration to its port 50000 and must reach it")
	r.bridge(field+".bridge", n.Bridge)
	r.between(field+".vlan", n.VLAN, 0, 4094, "leave it out for untagged")
	r.between(field+".mtu", n.MTU, 1280, 65520, "")
	for i, server := range n.DNS {
		if !server.IsValid() || server.IsUnspecified() {
			r.add(fmt.Sprintf("%s.dns[%d]", field, i), shown(server), "the address of a resolver", "state its address")
		}
	}
	for i, server := range n.NTP {
		if !regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?$`).MatchString(server) {
			r.add(fmt.Sprintf("%s.ntp[%d]", field, i), shown(server), "the name or address of a time server", "correct it")
		}
	}
	if n.Kind == TenantNetwork {
		r.atLeastOne(field+".ntp", len(n.NTP), "time server: Talos starts no kubelet before the clock is right")
		r.atLeastOne(field+".dns", len(n.DNS), "resolver for the workers")
	}
	if r.cidr(field+".cidr", n.CIDR, 30) {
		r.gateway(field+".gateway", n)
		r.addressRanges(field+".ranges", n)
	}
}

func (r *report) gateway(field string, n *Network) {
	switch {
	case !n.Gateway.IsValid():
		if n.PlatformAccess != AccessNone {
			r.add(field, "nothing", "the address of the network's router", "fill the field")
		}
	case !n.CIDR.Contains(n.Gateway):
		r.add(field, shown(n.Gateway), "an address in "+n.CIDR.String(), "correct the gateway or the range")
	}
}

func (r *report) networkHosts(field string, n *Network, s *Site) {
	var known []string
	for i := range s.Spec.Proxmox {
		for j := range s.Spec.Proxmox[i].Hosts {
			known = append(known, s.Spec.Proxmox[i].Hosts[j].Name)
		}
	}
	for i, host := range n.Hosts {
		r.oneOf(fmt.Sprintf("%s.hosts[%d]", field, i), host, known, "name a host of spec.proxmox")
	}
	for i := range s.Spec.Proxmox {
		for j := range s.Spec.Proxmox[i].Hosts {
			host := s.Spec.Proxmox[i].Hosts[j].Address
			purpose, inside := n.Ranges.holding(host)
			if inside && n.On(s.Spec.Proxmox[i].Hosts[j].Name) {
				r.add(field+".ranges."+purpose, fmt.Sprintf("a range with %s, the address of host %s", host, s.Spec.Proxmox[i].Hosts[j].Name),
					"addresses nothing else has", "shrink the range")
			}
		}
	}
	for _, address := range []netip.AddrPort{s.Spec.Proxy.XDS, s.Spec.Proxy.Enrolment} {
		if purpose, inside := n.Ranges.holding(address.Addr()); inside && purpose != "loadBalancers" {
			r.add(field+".ranges."+purpose, fmt.Sprintf("a range with %s, an address under spec.proxy", address.Addr()),
				"addresses nothing else has", "shrink the range")
		}
	}
}

// holding returns the purpose of the range the address lies in.
func (r *Ranges) holding(address netip.Addr) (string, bool) {
	for _, p := range r.byPurpose() {
		if slices.ContainsFunc(p.list, func(one AddressRange) bool { return one.Contains(address) }) {
			return p.name, address.IsValid()
		}
	}
	return "", false
}

type purpose struct {
	name string
	list []AddressRange
}

func (r *Ranges) byPurpose() []purpose {
	return []purpose{{"proxies", r.Proxies}, {"workers", r.Workers}, {"loadBalancers", r.LoadBalancers}}
}

func (r *report) addressRanges(field string, n *Network) {
	needed := map[NetworkKind][]string{
		ManagementNetwork: {"proxies", "loadBalancers"},
		TenantNetwork:     {"proxies", "workers"},
		StorageNetwork:    {"workers"},
	}[n.Kind]
	type placed struct {
		field string
		AddressRange
	}
	var all []placed
	for _, p := range n.Ranges.byPurpose() {
		at := field + "." + p.name
		if slices.Contains(needed, p.name) {
			r.atLeastOne(at, len(p.list), "range, as {from: 10.1.1.50, to: 10.1.1.249}")
		} else if len(p.list) > 0 && n.Kind != "" {
			r.add(at, "a range", fmt.Sprintf("nothing in a network of kind %s", n.Kind), "remove it or move it to another network")
		}
		for i, one := range p.list {
			here := fmt.Sprintf("%s[%d]", at, i)
			if !r.addressRange(here, one, n) {
				continue
			}
			for _, other := range all {
				if one.overlaps(other.AddressRange) {
					r.add(here, one.String()+", which overlaps "+other.field+" "+other.String(), "ranges that do not overlap", "shrink one of them")
				}
			}
			all = append(all, placed{here, one})
		}
	}
}

func (r *report) addressRange(field string, one AddressRange, n *Network) bool {
	first, last := n.CIDR.Addr(), lastAddress(n.CIDR)
	for _, end := range []struct {
		name    string
		address netip.Addr
	}{{"from", one.From}, {"to", one.To}} {
		if !end.address.IsValid() || !n.CIDR.Contains(end.address) || end.address == first || end.address == last {
			r.add(field+"."+end.name, shown(end.address), fmt.Sprintf("an address between %s and %s", first.Next(), last.Prev()), "choose an address of the network")
			return false
		}
	}
	if one.To.Less(one.From) {
		r.add(field, one.String(), "from at most to", "exchange them")
		return false
	}
	taken := map[string]netip.Addr{"the gateway": n.Gateway}
	for i, server := range n.DNS {
		taken[fmt.Sprintf("resolver dns[%d]", i)] = server
	}
	for i, server := range n.NTP {
		if address, err := netip.ParseAddr(server); err == nil {
			taken[fmt.Sprintf("time server ntp[%d]", i)] = address
		}
	}
	ok := true
	for what, address := range taken {
		if address.IsValid() && one.Contains(address) {
			r.add(field, fmt.Sprintf("%s, which holds %s, %s", one, address, what), "addresses nothing else has", "shrink the range")
			ok = false
			break
		}
	}
	return ok
}

// lastAddress is the broadcast address of an IPv4 range.
func lastAddress(prefix netip.Prefix) netip.Addr {
	bytes := prefix.Addr().As4()
	for i := prefix.Bits(); i < 32; i++ {
		bytes[i/8] |= 1 << (7 - i%8)
	}
	return netip.AddrFrom4(bytes)
}
