package site

import "net/netip"

// NetworkKind is what a network is for.
type NetworkKind string

// The kinds of networks.
const (
	// ManagementNetwork joins the platform, the control planes' load
	// balancer addresses and the back side of the proxies.
	ManagementNetwork NetworkKind = "management"
	// TenantNetwork joins workers and the front of the proxies.
	TenantNetwork NetworkKind = "tenant"
	// StorageNetwork is the workers' second card.
	StorageNetwork NetworkKind = "storage"
)

// Access is how the platform reaches the addresses of a network.
type Access string

// The ways the platform reaches a network.
const (
	// AccessLocal: the platform has an address in the network.
	AccessLocal Access = "local"
	// AccessRouted: over the network's gateway.
	AccessRouted Access = "routed"
	// AccessNone: not at all.
	AccessNone Access = "none"
)

// Network is one network VMs are attached to.
type Network struct {
	// Name is a DNS label. Leases carry it, so it never changes.
	Name string `json:"name"`
	// Kind is management, tenant or storage.
	Kind NetworkKind `json:"kind"`
	// CIDR is the network's IPv4 range.
	CIDR netip.Prefix `json:"cidr"`
	// Gateway is the router. Required unless platformAccess is none.
	Gateway netip.Addr `json:"gateway,omitzero"`
	// PlatformAccess is how the platform reaches the addresses: local,
	// routed or none. A tenant network may not be none, for a worker is
	// given its configuration over port 50000.
	PlatformAccess Access `json:"platformAccess"`
	// Bridge of the hosts that carries the network.
	Bridge string `json:"bridge"`
	// VLAN tag, 1 to 4094. 0 or absent: untagged. The bridge must be VLAN
	// aware on each host.
	VLAN int `json:"vlan,omitempty"`
	// MTU of the network, 1280 to 65520. Default 1500.
	MTU int `json:"mtu,omitempty"`
	// Hosts that carry the network. Empty: all.
	Hosts []string `json:"hosts,omitempty"`
	// Ranges are the addresses Aether may use.
	Ranges Ranges `json:"ranges,omitempty"`
	// DNS are the resolvers of machines in this network.
	DNS []netip.Addr `json:"dns,omitempty"`
	// NTP are the time servers of machines in this network, addresses or
	// names. A tenant network needs one: Talos starts no kubelet before the
	// clock is right.
	NTP []string `json:"ntp,omitempty"`
}

// Ranges are the addresses of a network that Aether may use, by purpose.
type Ranges struct {
	// Proxies: a proxy's management side in a management network, the
	// tenants' API addresses in a tenant network.
	Proxies []AddressRange `json:"proxies,omitempty"`
	// Workers: in tenant and storage networks.
	Workers []AddressRange `json:"workers,omitempty"`
	// LoadBalancers: the addresses the management cluster's load balancer
	// hands out to control planes, in a management network. Aether does not
	// allocate from it; it keeps clear of it.
	LoadBalancers []AddressRange `json:"loadBalancers,omitempty"`
}

// AddressRange is a range of addresses, both ends included.
type AddressRange struct {
	// From is the first address.
	From netip.Addr `json:"from"`
	// To is the last address.
	To netip.Addr `json:"to"`
}

// Contains tells whether the address lies in the range.
func (r AddressRange) Contains(address netip.Addr) bool {
	return r.From.Compare(address) <= 0 && address.Compare(r.To) <= 0
}

// overlaps tells whether the two ranges share an address.
func (r AddressRange) overlaps(other AddressRange) bool {
	return r.From.Compare(other.To) <= 0 && other.From.Compare(r.To) <= 0
}

// String shows the range.
func (r AddressRange) String() string { return r.From.String() + "-" + r.To.String() }
