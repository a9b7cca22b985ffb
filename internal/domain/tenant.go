package domain

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/site"
)

// APIServerPort and KonnectivityPort are what every tenant's proxy listens on.
// Kamaji advertises the API port under the proxy's address, so they are equal
// on both sides.
const (
	APIServerPort    = 6443
	KonnectivityPort = 8132
)

// EndpointURL is the URL of a tenant's API server behind its proxy.
func EndpointURL(host string) string {
	return "https://" + net.JoinHostPort(host, strconv.Itoa(APIServerPort))
}

// Tenant is a tenant as it shall be: the AetherCluster's spec with the site's
// defaults filled in. It is the input of the tenant workflows.
type Tenant struct {
	Name string                     `json:"name"`
	Spec v1alpha1.AetherClusterSpec `json:"spec"`
}

// Namespace returns the tenant's namespace in the management cluster.
func (t Tenant) Namespace() string { return TenantNamespace(t.Name) }

// Replicas returns how many control plane replicas the tenant wants.
func (t Tenant) Replicas() int32 {
	if t.Spec.ControlPlane.Replicas == nil {
		return 1
	}
	return *t.Spec.ControlPlane.Replicas
}

// Pool returns the pool of that name.
func (t Tenant) Pool(name string) (v1alpha1.Pool, bool) {
	i := slices.IndexFunc(t.Spec.Pools, func(p v1alpha1.Pool) bool { return p.Name == name })
	if i < 0 {
		return v1alpha1.Pool{}, false
	}
	return t.Spec.Pools[i], true
}

// WithDefaults fills what the tenant left open from the site. The result is a
// copy.
func (t Tenant) WithDefaults(s *site.Site) Tenant {
	spec := t.Spec.DeepCopy()
	d := s.Spec.Defaults
	fill(&spec.Version, d.Kubernetes)
	fill(&spec.Network, d.Networks.Tenant)
	fill(&spec.ClusterNetwork.PodCIDR, d.PodCIDR.String())
	fill(&spec.ClusterNetwork.ServiceCIDR, d.ServiceCIDR.String())
	fill(&spec.ClusterNetwork.DNSDomain, d.DNSDomain)
	fill(&spec.ClusterNetwork.DNSDomain, "cluster.local")
	for i := range spec.Pools {
		pool := &spec.Pools[i]
		fill(&pool.Class, d.MachineClass)
		if len(pool.Hosts) == 0 {
			pool.Hosts = workerHosts(s)
		}
		slices.Sort(pool.Hosts)
		fillSizes(pool)
	}
	return Tenant{Name: t.Name, Spec: *spec}
}

func fill(field *string, value string) {
	if *field == "" {
		*field = value
	}
}

// fillSizes completes replicas and bounds from one another: a pool that only
// says replicas is of that size and may not grow by itself.
func fillSizes(pool *v1alpha1.Pool) {
	zero := int32(0)
	switch {
	case pool.Replicas == nil && pool.MinSize != nil:
		pool.Replicas = new(*pool.MinSize)
	case pool.Replicas == nil:
		pool.Replicas = &zero
	}
	if pool.MinSize == nil {
		pool.MinSize = new(zero)
	}
	if pool.MaxSize == nil {
		pool.MaxSize = new(max(*pool.Replicas, *pool.MinSize))
	}
}

// workerHosts lists the hosts of the default cluster that have a worker
// template.
func workerHosts(s *site.Site) []string {
	var names []string
	for _, cluster := range s.Spec.Proxmox {
		if cluster.Name != s.Spec.Defaults.Cluster {
			continue
		}
		for _, host := range cluster.Hosts {
			if host.Templates.Worker != 0 {
				names = append(names, host.Name)
			}
		}
	}
	return names
}

// maxTenantName leaves room for pool and machine ID in a 63-character label,
// and equals what Cilium allows for a cluster name.
const maxTenantName = 32

// Validate checks a tenant, with defaults filled in, against the site. The
// result is nil or Problems.
func (t Tenant) Validate(s *site.Site) error {
	var p Problems
	if len(t.Name) > maxTenantName || len(validation.IsDNS1035Label(t.Name)) > 0 {
		p.Add("metadata.name", Shown(t.Name), "a DNS label that starts with a letter, at most 32 characters, as team-a", "choose another name")
	}
	if !slices.Contains(s.Spec.Versions.Kubernetes, t.Spec.Version) {
		p.Add("spec.version", Shown(t.Spec.Version), "one of "+strings.Join(s.Spec.Versions.Kubernetes, ", "), "choose one the site supports, or ask the operator to add it to spec.versions.kubernetes of the site")
	}
	t.validateNetwork(s, &p)
	t.validateRanges(&p)
	if r := t.Spec.ControlPlane.Replicas; r != nil && (*r < 1 || *r > 5) {
		p.Add("spec.controlPlane.replicas", Shown(*r), "1 to 5", "")
	}
	for i, pool := range t.Spec.Pools {
		t.validatePool(s, i, pool, &p)
	}
	return p.Err()
}

func (t Tenant) validateNetwork(s *site.Site, p *Problems) {
	var names []string
	for _, n := range s.Spec.Networks {
		if n.Kind == site.TenantNetwork {
			names = append(names, n.Name)
		}
	}
	if !slices.Contains(names, t.Spec.Network) {
		p.Add("spec.network", Shown(t.Spec.Network), "a tenant network of the site: "+strings.Join(names, ", "), "leave it out for the site's default")
	}
}

func (t Tenant) validateRanges(p *Problems) {
	for _, r := range []struct{ field, value string }{
		{"spec.clusterNetwork.podCIDR", t.Spec.ClusterNetwork.PodCIDR},
		{"spec.clusterNetwork.serviceCIDR", t.Spec.ClusterNetwork.ServiceCIDR},
	} {
		prefix, err := netip.ParsePrefix(r.value)
		if err != nil || !prefix.Addr().Is4() {
			p.Add(r.field, Shown(r.value), "an IPv4 range, as 10.244.0.0/16", "")
			continue
		}
		if prefix.Masked() != prefix {
			p.Add(r.field, Shown(r.value), "a range without host bits", "write "+prefix.Masked().String())
		}
		if prefix.Bits() < 8 || prefix.Bits() > 24 {
			p.Add(r.field, Shown(r.value), "a prefix length from 8 to 24", "each node takes a /24 of the pod range")
		}
	}
	domain := t.Spec.ClusterNetwork.DNSDomain
	if problems := validation.IsDNS1123Subdomain(domain); len(problems) > 0 {
		p.Add("spec.clusterNetwork.dnsDomain", Shown(domain), "a DNS domain in lower case, as cluster.local", "")
	}
}

// Class returns the site's machine class of that name.
func Class(s *site.Site, name string) (site.MachineClass, bool) {
	i := slices.IndexFunc(s.Spec.MachineClasses, func(c site.MachineClass) bool { return c.Name == name })
	if i < 0 {
		return site.MachineClass{}, false
	}
	return s.Spec.MachineClasses[i], true
}

// StartupTaint is the taint a worker registers with until Cilium runs on it.
// Its key is Cilium's own, so that the operator and the autoscaler know it.
func StartupTaint() corev1.Taint {
	return corev1.Taint{Key: "node.cilium.io/agent-not-ready", Value: "true", Effect: corev1.TaintEffectNoExecute}
}
