package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/site"
)

// checks answers every question that must be settled before anything is made.
func checks(s *site.Site, tenant domain.Tenant, observed Observed, p Plan) []Check {
	c := &checker{site: s, tenant: tenant, observed: observed, plan: p}
	c.hosts()
	c.quorum()
	c.privileges()
	c.templates()
	c.bridges()
	c.memory()
	c.cpus()
	c.disks()
	c.vmids()
	c.addresses()
	c.ranges()
	c.images()
	return c.done
}

type checker struct {
	site     *site.Site
	tenant   domain.Tenant
	observed Observed
	plan     Plan
	done     []Check
}

func (c *checker) pass(name, found string) {
	c.done = append(c.done, Check{Name: name, Passed: true, Found: found})
}

func (c *checker) fail(name, found, needed, do string) {
	c.done = append(c.done, Check{Name: name, Found: found, Needed: needed, Do: do})
}

// used lists the hosts the plan puts VMs on, sorted.
func (c *checker) used() []string {
	var names []string
	for _, vm := range c.plan.VMs {
		if !slices.Contains(names, vm.Host) {
			names = append(names, vm.Host)
		}
	}
	slices.Sort(names)
	return names
}

// asked lists the used hosts that told what they have. Of the others, their own
// check says all there is to say.
func (c *checker) asked() []string {
	return slices.DeleteFunc(c.used(), func(name string) bool {
		host, known := c.host(name)
		return !known || host.Problem != ""
	})
}

func (c *checker) host(name string) (Host, bool) {
	i := slices.IndexFunc(c.observed.Hosts, func(h Host) bool { return h.Name == name })
	if i < 0 {
		return Host{}, false
	}
	return c.observed.Hosts[i], true
}

func (c *checker) hosts() {
	if c.plan.ProxyHost() == "" && !c.observed.ExistingProxy {
		c.fail("hosts", "no Proxmox host that answers", "one for the proxy VM", "bring a host back, or look at the site's endpoints")
	}
	for _, name := range c.used() {
		check := "host " + name
		host, known := c.host(name)
		switch {
		case !known:
			c.fail(check, "a name that Proxmox does not know", "a node name as in `pvecm nodes`", "correct the name in the site; a full domain name is not a node name")
		case host.Problem != "":
			c.fail(check, host.Problem, "a host that answers", "bring the host back, or take it out of the pool's hosts")
		default:
			c.pass(check, "answers")
		}
	}
}

func (c *checker) quorum() {
	if c.observed.Quorate {
		c.pass("quorum", "quorate")
		return
	}
	c.fail("quorum", "cluster not ready - no quorum", "a quorate Proxmox cluster", "bring back the nodes that are off; nothing can be written until then")
}

func (c *checker) privileges() {
	if len(c.observed.MissingPrivileges) == 0 {
		c.pass("privileges", "all that Aether uses")
		return
	}
	for _, missing := range c.observed.MissingPrivileges {
		privilege, path, _ := strings.Cut(missing, " on ")
		c.fail("privilege "+missing, "not granted to the token", missing, fmt.Sprintf("pveum acl modify %s --tokens <token> --roles <a role with %s>", path, privilege))
	}
}

func (c *checker) templates() {
	for _, name := range c.asked() {
		host, _ := c.host(name)
		if len(host.TemplateProblems) == 0 {
			c.pass("templates on "+name, "usable")
		}
		for _, problem := range host.TemplateProblems {
			c.fail("template on "+name, problem, "a template on the same host with the guest agent enabled and a cloud-init drive", "deploy/proxmox says how to make one; Proxmox cannot clone from another host's local storage")
		}
	}
}

func (c *checker) bridges() {
	seen, asked := map[string]bool{}, c.asked()
	for _, vm := range c.plan.VMs {
		if !slices.Contains(asked, vm.Host) {
			continue
		}
		host, _ := c.host(vm.Host)
		for _, card := range vm.NICs {
			check := fmt.Sprintf("bridge %s on %s", card.Bridge, vm.Host)
			if card.VLAN != 0 {
				check += fmt.Sprintf(" with VLAN %d", card.VLAN)
			}
			if seen[check] {
				continue
			}
			seen[check] = true
			i := slices.IndexFunc(host.Bridges, func(b Bridge) bool { return b.Name == card.Bridge })
			network, known := c.site.Network(card.Network)
			switch {
			case known && !network.On(vm.Host):
				c.fail(check, "network "+card.Network+" is not on this host", "a host that carries it", "add the host to hosts of the network in the site, or take it out of the pool's hosts")
			case i < 0:
				c.fail(check, "no such bridge", "the bridge of network "+card.Network, "make the bridge on the host, or correct the site")
			case card.VLAN != 0 && !host.Bridges[i].VLANAware:
				c.fail(check, "a bridge that is not VLAN aware", "bridge-vlan-aware yes", "set bridge-vlan-aware yes and bridge-vids in /etc/network/interfaces and run ifreload -a")
			default:
				c.pass(check, "present")
			}
		}
	}
}

// memory checks the sum of what the plan puts on each host.
func (c *checker) memory() {
	for _, name := range c.asked() {
		host, _ := c.host(name)
		var needed int64
		for _, vm := range c.plan.VMs {
			if vm.Host == name {
				needed += int64(vm.MemoryMiB)
			}
		}
		free := host.MemoryFreeMiB()
		found := fmt.Sprintf("%d MiB of %d MiB free", free, host.MemoryMiB)
		if needed <= free {
			c.pass("memory on "+name, fmt.Sprintf("%s, %d MiB needed", found, needed))
			continue
		}
		c.fail("memory on "+name, found+" ("+holders(host)+")", fmt.Sprintf("%d MiB", needed), "delete or shrink what holds it (stopped VMs hold memory too), choose a smaller class, fewer replicas or another host")
	}
}

func holders(host Host) string {
	if len(host.Holders) == 0 {
		return "nothing holds any"
	}
	sorted := slices.SortedFunc(slices.Values(host.Holders), func(a, b Holder) int {
		if a.MemoryMiB != b.MemoryMiB {
			return int(b.MemoryMiB - a.MemoryMiB)
		}
		return strings.Compare(a.Name, b.Name)
	})
	const most = 8
	var texts []string
	for i, holder := range sorted {
		if i == most {
			texts = append(texts, fmt.Sprintf("and %d more", len(sorted)-most))
			break
		}
		text := fmt.Sprintf("%s holds %d MiB", holder.Name, holder.MemoryMiB)
		if holder.Stopped {
			text += " though stopped"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

func (c *checker) cpus() {
	for _, name := range c.asked() {
		host, _ := c.host(name)
		var needed int64
		for _, vm := range c.plan.VMs {
			if vm.Host == name {
				needed += int64(vm.Cores)
			}
		}
		found := fmt.Sprintf("%d of %d virtual CPUs free", host.VCPUsFree(), host.VCPUs)
		if needed <= host.VCPUsFree() {
			c.pass("cpus on "+name, fmt.Sprintf("%s, %d needed", found, needed))
			continue
		}
		c.fail("cpus on "+name, found, fmt.Sprintf("%d", needed), "choose a smaller class or another host, or raise vcpusPerCore in the site")
	}
}

func (c *checker) disks() {
	for _, name := range c.asked() {
		host, _ := c.host(name)
		var needed int64
		told := map[string]bool{}
		for _, vm := range c.plan.VMs {
			if vm.Host != name {
				continue
			}
			needed += int64(vm.DiskGiB)
			if vm.Role == "worker" && host.TemplateDiskGiB > int64(vm.DiskGiB) && !told[vm.Pool] {
				told[vm.Pool] = true
				c.fail("disk of pool "+vm.Pool+" on "+name, fmt.Sprintf("%d GiB", vm.DiskGiB), fmt.Sprintf("at least the template's %d GiB", host.TemplateDiskGiB), "choose a class with a larger disk: a disk is never shrunk")
			}
		}
		if needed <= host.DiskFreeGiB {
			c.pass("storage on "+name, fmt.Sprintf("%d GiB free, %d GiB needed", host.DiskFreeGiB, needed))
			continue
		}
		c.fail("storage on "+name, fmt.Sprintf("%d GiB free", host.DiskFreeGiB), fmt.Sprintf("%d GiB", needed), "free or enlarge the storage")
	}
}

func (c *checker) vmids() {
	needed := len(c.plan.VMs)
	if needed <= c.observed.FreeVMIDs {
		c.pass("VMIDs", fmt.Sprintf("%d free in %s, %d needed", c.observed.FreeVMIDs, c.observed.VMIDRange, needed))
		return
	}
	c.fail("VMIDs", fmt.Sprintf("%d free in %s", c.observed.FreeVMIDs, c.observed.VMIDRange), fmt.Sprintf("%d", needed), "widen vmids of the Proxmox cluster in the site")
}

func (c *checker) addresses() {
	needed := map[string]map[string]int{"workers": {}, "proxies": {}}
	for _, vm := range c.plan.VMs {
		use := "workers"
		if vm.Role == "proxy" {
			use = "proxies"
		}
		for _, card := range vm.NICs {
			needed[use][card.Network]++
		}
	}
	for _, use := range []string{"proxies", "workers"} {
		free := c.observed.FreeWorkerAddresses
		if use == "proxies" {
			free = c.observed.FreeProxyAddresses
		}
		for _, n := range c.site.Spec.Networks {
			count := needed[use][n.Name]
			if count == 0 {
				continue
			}
			name := fmt.Sprintf("addresses for %s in %s", use, n.Name)
			if count <= free[n.Name] {
				c.pass(name, fmt.Sprintf("%d free, %d needed", free[n.Name], count))
				continue
			}
			c.fail(name, fmt.Sprintf("%d free", free[n.Name]), fmt.Sprintf("%d", count), fmt.Sprintf("widen ranges.%s of network %s in the site, or delete what holds them", use, n.Name))
		}
	}
}

// ranges checks that pods and services overlap nothing that must be reachable.
func (c *checker) ranges() {
	type named struct {
		name   string
		prefix netip.Prefix
	}
	own := []named{}
	for _, r := range []struct{ name, text string }{
		{"spec.clusterNetwork.podCIDR", c.tenant.Spec.ClusterNetwork.PodCIDR},
		{"spec.clusterNetwork.serviceCIDR", c.tenant.Spec.ClusterNetwork.ServiceCIDR},
	} {
		if prefix, err := netip.ParsePrefix(r.text); err == nil {
			own = append(own, named{r.name, prefix})
		}
	}
	var others []named
	for _, n := range c.site.Spec.Networks {
		others = append(others, named{"network " + n.Name, n.CIDR})
	}
	others = append(others, named{"the management cluster's pods", c.site.Spec.Management.PodCIDR}, named{"the management cluster's services", c.site.Spec.Management.ServiceCIDR})
	for _, reserved := range c.site.Spec.ReservedCIDRs {
		others = append(others, named{"a reserved range of the site", reserved})
	}
	for i, mine := range own {
		clash := ""
		for _, other := range append(slices.Clone(others), own[:i]...) {
			if other.prefix.IsValid() && mine.prefix.Overlaps(other.prefix) {
				clash = fmt.Sprintf("%s, which overlaps %s, %s", mine.prefix, other.name, other.prefix)
				break
			}
		}
		if clash == "" {
			c.pass(mine.name, mine.prefix.String()+" overlaps nothing")
			continue
		}
		c.fail(mine.name, clash, "a range of its own", "choose another range: hosts in an overlapped range could not be reached from the nodes")
	}
}

func (c *checker) images() {
	for _, image := range c.observed.Images {
		if image.Problem == "" {
			c.pass("image "+image.Ref, "served by the mirrors")
			continue
		}
		c.fail("image "+image.Ref, image.Problem, "served by the site's mirrors", "look at mirrors in the site (scheme, overridePath, project, CA), or warm the cache")
	}
}
