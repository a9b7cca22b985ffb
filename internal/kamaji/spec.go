package kamaji

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"aether.internal/aether/internal/domain"
)

// Ref names a TenantControlPlane.
type Ref struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String returns namespace/name.
func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// Spec is a control plane as Aether wants it.
type Spec struct {
	Ref

	// Labels are put on the object, besides those Kamaji needs none of.
	Labels map[string]string `json:"labels,omitempty"`
	// Version of Kubernetes, as v1.35.4.
	Version  string `json:"version"`
	Replicas int32  `json:"replicas"`
	// DataStore is the name of Kamaji's DataStore.
	DataStore string `json:"dataStore"`
	// ProxyAddress is where the tenant's proxy will be reached. It must be known
	// before the control plane is born.
	ProxyAddress netip.Addr `json:"proxyAddress"`
	// ServerNames are further names for the API server's certificate.
	ServerNames []string `json:"serverNames,omitempty"`

	ServiceCIDR netip.Prefix `json:"serviceCIDR"`
	PodCIDR     netip.Prefix `json:"podCIDR"`
	DNSDomain   string       `json:"dnsDomain"`

	// ServiceAnnotations go onto the Service, for the load balancer at the site.
	ServiceAnnotations map[string]string `json:"serviceAnnotations,omitempty"`

	// Registry of kube-apiserver and its companions, as registry.k8s.io.
	Registry     string       `json:"registry"`
	CoreDNS      Image        `json:"coreDNS"`
	Konnectivity Konnectivity `json:"konnectivity"`
}

// Image is a repository and a tag.
type Image struct {
	Repository string `json:"repository"`
	Tag        string `json:"tag"`
}

// Konnectivity is the tunnel from the API server to the nodes.
type Konnectivity struct {
	ServerRepository string `json:"serverRepository"`
	AgentRepository  string `json:"agentRepository"`
	// Version is the tag of both. Kamaji's own default follows the tenant's
	// minor version and may name one that was never published.
	Version string `json:"version"`
}

// dnsServiceIndex is which address of the service range the tenant's DNS has.
const dnsServiceIndex = 10

// DNSAddress is the tenant's DNS Service.
func (s Spec) DNSAddress() netip.Addr { return nth(s.ServiceCIDR, dnsServiceIndex) }

func nth(prefix netip.Prefix, n int) netip.Addr {
	address := prefix.Masked().Addr()
	for range n {
		address = address.Next()
	}
	return address
}

// Validate checks what Kamaji would refuse late, in other words or never. The
// result is nil or domain.Problems.
func (s Spec) Validate() error {
	var p domain.Problems
	label := func(field, value string) {
		if len(validation.IsDNS1035Label(value)) > 0 {
			p.Add(field, domain.Shown(value), "a DNS label that starts with a letter", "")
		}
	}
	label("name", s.Name)
	label("namespace", s.Namespace)
	label("dataStore", s.DataStore)
	if !regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+$`).MatchString(s.Version) {
		p.Add("version", domain.Shown(s.Version), "a version with v, as v1.35.4", "")
	}
	if s.Replicas < 1 {
		p.Add("replicas", domain.Shown(s.Replicas), "1 or more", "0 puts the control plane to sleep, and with it the tenant")
	}
	if !s.ProxyAddress.IsValid() || s.ProxyAddress.IsUnspecified() || s.ProxyAddress.IsLoopback() {
		p.Add("proxyAddress", domain.Shown(s.ProxyAddress), "the IP address of the tenant's proxy", "lease it before the control plane is made")
	}
	for i, name := range s.ServerNames {
		if _, err := netip.ParseAddr(name); err != nil && len(validation.IsDNS1123Subdomain(name)) > 0 && len(validation.IsWildcardDNS1123Subdomain(name)) > 0 {
			p.Add(fmt.Sprintf("serverNames[%d]", i), domain.Shown(name), "an IP address or a DNS name in lower case", "")
		}
	}
	s.validateRanges(&p)
	s.validateImages(&p)
	return p.Err()
}

func (s Spec) validateRanges(p *domain.Problems) {
	for _, r := range []struct {
		field string
		value netip.Prefix
	}{{"serviceCIDR", s.ServiceCIDR}, {"podCIDR", s.PodCIDR}} {
		if !r.value.IsValid() || r.value != r.value.Masked() {
			p.Add(r.field, domain.Shown(r.value), "a range without host bits, as 10.96.0.0/16", "")
		}
	}
	if s.ServiceCIDR.IsValid() && !s.ServiceCIDR.Contains(s.DNSAddress()) {
		p.Add("serviceCIDR", domain.Shown(s.ServiceCIDR), fmt.Sprintf("a range of more than %d addresses", dnsServiceIndex), "the tenant's DNS is its tenth")
	}
	if s.ServiceCIDR.IsValid() && s.PodCIDR.IsValid() && s.ServiceCIDR.Overlaps(s.PodCIDR) {
		p.Add("podCIDR", domain.Shown(s.PodCIDR), "a range that does not overlap serviceCIDR "+s.ServiceCIDR.String(), "")
	}
	if s.ServiceCIDR.Contains(s.ProxyAddress) || s.PodCIDR.Contains(s.ProxyAddress) {
		p.Add("proxyAddress", domain.Shown(s.ProxyAddress), "an address outside of the pod and service ranges", "nodes could not reach it")
	}
	if len(validation.IsDNS1123Subdomain(s.DNSDomain)) > 0 {
		p.Add("dnsDomain", domain.Shown(s.DNSDomain), "a DNS domain in lower case, as cluster.local", "")
	}
}

func (s Spec) validateImages(p *domain.Problems) {
	required := []struct{ field, value string }{
		{"registry", s.Registry},
		{"coreDNS.repository", s.CoreDNS.Repository},
		{"coreDNS.tag", s.CoreDNS.Tag},
		{"konnectivity.serverRepository", s.Konnectivity.ServerRepository},
		{"konnectivity.agentRepository", s.Konnectivity.AgentRepository},
		{"konnectivity.version", s.Konnectivity.Version},
	}
	for _, r := range required {
		if r.value == "" {
			p.Add(r.field, "nothing", "a value", "Kamaji's own default depends on its build")
		}
	}
}

// certificateNames are the names of the API server's certificate that the spec
// asks for; Kamaji adds the management side's by itself.
func (s Spec) certificateNames() []string {
	names := []string{s.ProxyAddress.String()}
	for _, name := range s.ServerNames {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
