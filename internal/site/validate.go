package site

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Validate checks the whole site and reports all problems at once. Parse and
// Load have called it already.
func (s *Site) Validate() error {
	var r report
	if s.APIVersion != APIVersion {
		r.add("apiVersion", shown(s.APIVersion), shown(APIVersion), "is this a site file?")
	}
	if s.Kind != Kind {
		r.add("kind", shown(s.Kind), shown(Kind), "is this a site file?")
	}
	r.label("metadata.name", s.Metadata.Name)
	r.proxmox(s)
	r.networks(s)
	r.management(s)
	r.catalog(&s.Spec)
	r.defaults(s)
	r.ranges(s)
	return r.err()
}

// label checks a DNS label, the form of every name that ends up in a Lease.
func (r *report) label(field, name string) {
	if !regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`).MatchString(name) {
		r.add(field, shown(name), "lower-case letters, digits and -, starting with a letter, at most 63", "choose such a name")
	}
}

// between checks a number.
func (r *report) between(field string, value, low, high int, do string) {
	if value < low || value > high {
		r.add(field, shown(value), fmt.Sprintf("%d to %d", low, high), do)
	}
}

// required checks that a text is there and has no blanks in it.
func (r *report) required(field, value, allowed string) {
	if value == "" || strings.ContainsAny(value, " \t\n") {
		r.add(field, shown(value), allowed, "fill the field")
	}
}

// oneOf checks a choice.
func (r *report) oneOf(field, value string, choices []string, do string) {
	if !slices.Contains(choices, value) {
		allowed := "one of " + strings.Join(choices, ", ")
		if len(choices) == 0 {
			allowed = "nothing, for none is defined"
		}
		if near := nearest(value, choices); near != "" && value != "" {
			do = fmt.Sprintf("did you mean %q?", near)
		}
		r.add(field, shown(value), allowed, do)
	}
}

// atLeastOne checks that a list is not empty.
func (r *report) atLeastOne(field string, length int, what string) {
	if length == 0 {
		r.add(field, "nothing", "at least one "+what, "add one; examples/site.yaml shows how")
	}
}

// unique checks names of a list's entries.
func (r *report) unique(field string, names []string) {
	seen := map[string]int{}
	for i, name := range names {
		if first, ok := seen[name]; ok && name != "" {
			r.add(fmt.Sprintf("%s[%d].name", field, i), shown(name)+", which "+fmt.Sprintf("%s[%d]", field, first)+" has too",
				"a name used once", "rename or remove one")
			continue
		}
		seen[name] = i
	}
}

// cidr checks an IPv4 range without host bits.
func (r *report) cidr(field string, prefix netip.Prefix, longest int) bool {
	switch {
	case !prefix.IsValid():
		r.add(field, "nothing", "an IPv4 range, as 10.1.1.0/24", "fill the field")
	case !prefix.Addr().Is4():
		r.add(field, shown(prefix), "an IPv4 range", "IPv6 is not supported yet")
	case prefix.Masked() != prefix:
		r.add(field, shown(prefix), shown(prefix.Masked()), "write the range's first address, without host bits")
	case prefix.Bits() < 8 || prefix.Bits() > longest:
		r.add(field, shown(prefix), fmt.Sprintf("a length of /8 to /%d", longest), "choose another length")
	default:
		return true
	}
	return false
}

// exactlyOne checks that one of several fields is set.
func (r *report) exactlyOne(field string, set map[string]bool) {
	var names, given []string
	for name, is := range set {
		names = append(names, name)
		if is {
			given = append(given, name)
		}
	}
	if len(given) == 1 {
		return
	}
	slices.Sort(names)
	slices.Sort(given)
	found := "none of them"
	if len(given) > 0 {
		found = strings.Join(given, " and ")
	}
	r.add(field, found, "exactly one of "+strings.Join(names, ", "), "set one and remove the others")
}

func (r *report) secret(field string, source SecretSource) {
	r.exactlyOne(field, map[string]bool{"secret": source.Secret != nil, "file": source.File != ""})
	if source.Secret != nil {
		r.label(field+".secret.namespace", source.Secret.Namespace)
		if !regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`).MatchString(source.Secret.Name) {
			r.add(field+".secret.name", shown(source.Secret.Name), "the name of a Secret", "fill the field")
		}
	}
}

func (r *report) certificates(field string, c *Certificates) {
	if c == nil {
		return
	}
	// Load keeps the file's name beside the text it read from it.
	if c.File == "" || c.PEM == "" {
		r.exactlyOne(field, map[string]bool{"pem": c.PEM != "", "file": c.File != ""})
	}
	if c.PEM != "" {
		r.checkPEM(field+".pem", c.PEM)
	}
}

func (r *report) management(s *Site) {
	m := &s.Spec.Management
	r.cidr("spec.management.podCIDR", m.PodCIDR, 24)
	r.cidr("spec.management.serviceCIDR", m.ServiceCIDR, 24)
	r.atLeastOne("spec.management.dataStores", len(m.DataStores), "name of a Kamaji DataStore")
	for i, name := range m.DataStores {
		r.label(fmt.Sprintf("spec.management.dataStores[%d]", i), name)
	}
	r.platformAddress("spec.proxy.xds", s.Spec.Proxy.XDS)
	r.platformAddress("spec.proxy.enrolment", s.Spec.Proxy.Enrolment)
	if s.Spec.Proxy.XDS == s.Spec.Proxy.Enrolment && s.Spec.Proxy.XDS.IsValid() {
		r.add("spec.proxy.enrolment", shown(s.Spec.Proxy.Enrolment)+", which spec.proxy.xds has too",
			"another port", "the two servers ask for different certificates and listen apart")
	}
	for i, prefix := range s.Spec.ReservedCIDRs {
		r.cidr(fmt.Sprintf("spec.reservedCIDRs[%d]", i), prefix, 32)
	}
}

func (r *report) platformAddress(field string, address netip.AddrPort) {
	if !address.IsValid() || address.Addr().IsUnspecified() || address.Addr().IsLoopback() || address.Port() == 0 {
		r.add(field, shown(address), "address:port that a proxy VM can reach", "state the address the server is reached at, not the one it listens on")
	}
}

func (r *report) defaults(s *Site) {
	d := &s.Spec.Defaults
	pods := r.cidr("spec.defaults.podCIDR", d.PodCIDR, 22)
	services := r.cidr("spec.defaults.serviceCIDR", d.ServiceCIDR, 24)
	if pods && services && d.PodCIDR.Overlaps(d.ServiceCIDR) {
		r.add("spec.defaults.serviceCIDR", shown(d.ServiceCIDR), "a range apart from spec.defaults.podCIDR "+shown(d.PodCIDR), "move one of them")
	}
	if !regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`).MatchString(d.DNSDomain) {
		r.add("spec.defaults.dnsDomain", shown(d.DNSDomain), "a domain name, as cluster.local", "choose such a name")
	}
	r.oneOf("spec.defaults.dataStore", d.DataStore, s.Spec.Management.DataStores, "choose one of spec.management.dataStores")
	r.oneOf("spec.defaults.kubernetes", d.Kubernetes, s.Spec.Versions.Kubernetes, "choose one of spec.versions.kubernetes")
	classes := make([]string, 0, len(s.Spec.MachineClasses))
	for _, class := range s.Spec.MachineClasses {
		classes = append(classes, class.Name)
	}
	r.oneOf("spec.defaults.machineClass", d.MachineClass, classes, "choose one of spec.machineClasses")
	clusters := make([]string, 0, len(s.Spec.Proxmox))
	for _, cluster := range s.Spec.Proxmox {
		clusters = append(clusters, cluster.Name)
	}
	r.oneOf("spec.defaults.cluster", d.Cluster, clusters, "choose one of spec.proxmox")
	r.choice(s, "spec.defaults.networks.management", d.Networks.Management, ManagementNetwork)
	r.choice(s, "spec.defaults.networks.tenant", d.Networks.Tenant, TenantNetwork)
	if d.Networks.Storage != "" {
		r.choice(s, "spec.defaults.networks.storage", d.Networks.Storage, StorageNetwork)
	}
}

func (r *report) choice(s *Site, field, name string, kind NetworkKind) {
	var names []string
	for _, n := range s.NetworksOf(kind) {
		names = append(names, n.Name)
	}
	r.oneOf(field, name, names, "choose a network of kind "+string(kind))
}

// ranges checks that no two things use the same addresses.
func (r *report) ranges(s *Site) {
	type used struct {
		field string
		cidr  netip.Prefix
	}
	var all []used
	for i, n := range s.Spec.Networks {
		all = append(all, used{fmt.Sprintf("spec.networks[%d].cidr", i), n.CIDR})
	}
	all = append(all,
		used{"spec.management.podCIDR", s.Spec.Management.PodCIDR},
		used{"spec.management.serviceCIDR", s.Spec.Management.ServiceCIDR})
	for i, prefix := range s.Spec.ReservedCIDRs {
		all = append(all, used{fmt.Sprintf("spec.reservedCIDRs[%d]", i), prefix})
	}
	fixed := len(all)
	// Tenants may share ranges with one another, so the defaults are compared
	// with the rest only, and with one another in defaults.
	all = append(all, used{"spec.defaults.podCIDR", s.Spec.Defaults.PodCIDR}, used{"spec.defaults.serviceCIDR", s.Spec.Defaults.ServiceCIDR})
	for i, one := range all {
		for j := range min(i, fixed) {
			other := all[j]
			reserved := strings.HasPrefix(one.field, "spec.reservedCIDRs") // may lie in a network
			if !reserved && one.cidr.IsValid() && other.cidr.IsValid() && one.cidr.Overlaps(other.cidr) {
				r.add(one.field, shown(one.cidr)+", which overlaps "+other.field+" "+shown(other.cidr), "ranges that do not overlap", "move one of them")
			}
		}
	}
}
