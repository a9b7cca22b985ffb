package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/site"
)

// Plan is what would be made for a tenant, and whether it can be.
type Plan struct {
	Tenant string `json:"tenant"`
	// Versions that would run.
	Versions Versions `json:"versions"`
	// VMs in the order they would be made: proxy, then workers by pool and host.
	VMs []VM `json:"vms"`
	// Shares are the MachineDeployments, one per pool and host.
	Shares []Share `json:"shares"`
	// Checks, all of them, in the order they were made.
	Checks []Check `json:"checks"`
}

// Versions of a tenant.
type Versions struct {
	Kubernetes   string `json:"kubernetes"`
	Talos        string `json:"talos"`
	Cilium       string `json:"cilium"`
	CoreDNS      string `json:"coredns"`
	Konnectivity string `json:"konnectivity"`
}

// VM is one virtual machine that would be made.
type VM struct {
	Name      string `json:"name"`
	Role      string `json:"role"`
	Pool      string `json:"pool,omitempty"`
	Host      string `json:"host"`
	VMIDs     string `json:"vmids"`
	Cores     int    `json:"cores"`
	MemoryMiB int    `json:"memoryMiB"`
	DiskGiB   int    `json:"diskGiB"`
	Storage   string `json:"storage"`
	Template  int    `json:"template"`
	NICs      []NIC  `json:"nics"`
}

// NIC is one network card of a planned VM.
type NIC struct {
	Network string `json:"network"`
	Bridge  string `json:"bridge"`
	VLAN    int    `json:"vlan,omitempty"`
	// Addresses is the range one will be leased from.
	Addresses string `json:"addresses"`
	MTU       int    `json:"mtu,omitempty"`
}

// Check is one question and its answer.
type Check struct {
	Name   string `json:"name"`
	Passed bool   `json:"passed"`
	Found  string `json:"found"`
	Needed string `json:"needed,omitempty"`
	Do     string `json:"do,omitempty"`
}

// Accepted tells whether all checks passed.
func (p Plan) Accepted() bool {
	return !slices.ContainsFunc(p.Checks, func(c Check) bool { return !c.Passed })
}

// Refusal tells every failed check, one a line: what was found, what is
// needed, and what to do.
func (p Plan) Refusal() string {
	var lines []string
	for _, c := range p.Checks {
		if !c.Passed {
			lines = append(lines, fmt.Sprintf("%s: found %s; needed: %s; %s", c.Name, c.Found, c.Needed, c.Do))
		}
	}
	return strings.Join(lines, "\n")
}

// ProxyHost returns the host of the planned proxy.
func (p Plan) ProxyHost() string {
	for _, vm := range p.VMs {
		if vm.Role == "proxy" {
			return vm.Host
		}
	}
	return ""
}

// Make plans a tenant whose defaults are filled in and which is valid.
func Make(s *site.Site, tenant domain.Tenant, observed Observed) Plan {
	v := s.Spec.Versions
	p := Plan{
		Tenant: tenant.Name, VMs: []VM{}, Shares: []Share{},
		Versions: Versions{Kubernetes: tenant.Spec.Version, Talos: v.Talos, Cilium: v.Cilium, CoreDNS: v.CoreDNS, Konnectivity: v.Konnectivity},
	}
	room := newRoom(observed)
	for _, pool := range tenant.Spec.Pools {
		shares := Shares(pool)
		p.Shares = append(p.Shares, shares...)
		for _, share := range shares {
			vms := planWorkers(s, tenant, pool.Class, share, observed)
			p.VMs = append(p.VMs, vms...)
			room.take(share.Host, vms)
		}
	}
	// Workers must go where their pools say; the proxy goes where room is left.
	if !observed.ExistingProxy {
		if vm, ok := planProxy(s, tenant, observed, room); ok {
			p.VMs = slices.Insert(p.VMs, 0, vm)
		}
	}
	p.Checks = checks(s, tenant, observed, p)
	return p
}

// planProxy puts the proxy on the host with the most memory left; of equals,
// the first by name.
func planProxy(s *site.Site, tenant domain.Tenant, observed Observed, room *room) (VM, bool) {
	host, ok := room.most()
	if !ok {
		return VM{}, false
	}
	class := s.Spec.ProxyClass
	_, siteHost := findHost(s, host)
	vm := VM{
		Name: domain.ProxyName(tenant.Name, 1), Role: "proxy", Host: host, VMIDs: observed.VMIDRange,
		Cores: class.Cores, MemoryMiB: class.MemoryMiB, Storage: siteHost.Storage.Disks, Template: siteHost.Templates.Proxy,
		NICs: []NIC{nic(s, s.Spec.Defaults.Networks.Management, proxies), nic(s, tenant.Spec.Network, proxies)},
	}
	return vm, true
}

func planWorkers(s *site.Site, tenant domain.Tenant, className string, share Share, observed Observed) []VM {
	class, _ := domain.Class(s, className)
	_, siteHost := findHost(s, share.Host)
	nics := []NIC{nic(s, tenant.Spec.Network, workers)}
	if storage := s.Spec.Defaults.Networks.Storage; storage != "" {
		nics = append(nics, nic(s, storage, workers))
	}
	missing := share.Replicas
	for _, existing := range observed.ExistingWorkers {
		if existing.Pool == share.Pool && existing.Host == share.Host {
			missing -= existing.Count
		}
	}
	var vms []VM
	for range max(missing, 0) {
		vms = append(vms, VM{
			Name: fmt.Sprintf("%s-%s-<id>", tenant.Name, share.Pool), Role: "worker", Pool: share.Pool, Host: share.Host,
			VMIDs: observed.VMIDRange, Cores: class.Cores, MemoryMiB: class.MemoryMiB, DiskGiB: class.DiskGiB,
			Storage: siteHost.Storage.Disks, Template: siteHost.Templates.Worker, NICs: nics,
		})
	}
	return vms
}

// findHost returns the site's cluster and host of that name.
func findHost(s *site.Site, name string) (site.Cluster, site.Host) {
	for _, cluster := range s.Spec.Proxmox {
		for _, host := range cluster.Hosts {
			if host.Name == name {
				return cluster, host
			}
		}
	}
	return site.Cluster{}, site.Host{}
}

// purpose chooses one of a network's ranges.
type purpose int

const (
	proxies purpose = iota
	workers
)

func nic(s *site.Site, network string, use purpose) NIC {
	for _, n := range s.Spec.Networks {
		if n.Name != network {
			continue
		}
		ranges := n.Ranges.Proxies
		if use == workers {
			ranges = n.Ranges.Workers
		}
		texts := make([]string, 0, len(ranges))
		for _, r := range ranges {
			texts = append(texts, r.String())
		}
		return NIC{Network: n.Name, Bridge: n.Bridge, VLAN: n.VLAN, MTU: n.MTU, Addresses: strings.Join(texts, ", ")}
	}
	return NIC{Network: network}
}

// room is the memory left on the hosts that answer.
type room struct{ memoryMiB map[string]int64 }

func newRoom(observed Observed) *room {
	r := &room{memoryMiB: map[string]int64{}}
	for _, host := range observed.Hosts {
		if host.Problem == "" {
			r.memoryMiB[host.Name] = host.MemoryFreeMiB()
		}
	}
	return r
}

// take counts VMs that are planned on a host.
func (r *room) take(host string, vms []VM) {
	if _, answers := r.memoryMiB[host]; !answers {
		return
	}
	for _, vm := range vms {
		r.memoryMiB[host] -= int64(vm.MemoryMiB)
	}
}

// most returns the host with the most memory left. One with none left is
// returned too: the check of its memory says what holds it.
func (r *room) most() (string, bool) {
	best := ""
	for _, host := range slices.Sorted(maps.Keys(r.memoryMiB)) {
		if best == "" || r.memoryMiB[host] > r.memoryMiB[best] {
			best = host
		}
	}
	return best, best != ""
}
