package envoy

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The ports of a proxy. They equal those of the control plane's Service,
// because a tenant's advertise address has no port of its own.
const (
	PortAPI          = 6443
	PortKonnectivity = 8132
)

// maxNodes is the largest cluster that Kubernetes is tested for.
const maxNodes = 5000

// ErrInvalid marks a tenant that cannot be turned into a configuration.
var ErrInvalid = errors.New("invalid proxy configuration")

// ID names one proxy: the tenant it serves and which of the tenant's proxies
// it is. While a proxy is replaced, two generations live side by side.
type ID struct {
	Tenant     string `json:"tenant"`
	Generation int64  `json:"generation"`
}

var tenantName = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)

const (
	nodePrefix = "proxy/"
	uriScheme  = "aether"
	uriHost    = "proxy"
)

// Validate checks both parts.
func (id ID) Validate() error {
	if !tenantName.MatchString(id.Tenant) {
		return fmt.Errorf("%w: name: %q; use 1 to 63 lower-case letters, digits and '-', starting with a letter", ErrInvalid, id.Tenant)
	}
	if id.Generation < 1 {
		return fmt.Errorf("%w: generation: %d; the first proxy of a tenant is generation 1", ErrInvalid, id.Generation)
	}
	return nil
}

// NodeID is what the proxy calls itself in its discovery requests.
func (id ID) NodeID() string {
	return nodePrefix + id.Tenant + "/" + strconv.FormatInt(id.Generation, 10)
}

// String is the node ID.
func (id ID) String() string { return id.NodeID() }

// URI is the subject alternative name in the proxy's certificate.
func (id ID) URI() *url.URL {
	return &url.URL{Scheme: uriScheme, Host: uriHost, Path: "/" + id.Tenant + "/" + strconv.FormatInt(id.Generation, 10)}
}

// ParseNodeID is the inverse of ID.NodeID.
func ParseNodeID(node string) (ID, error) {
	rest, found := strings.CutPrefix(node, nodePrefix)
	if !found {
		return ID{}, fmt.Errorf("%w: node ID: %q; it must be proxy/<tenant>/<generation>", ErrInvalid, node)
	}
	return parseID(rest)
}

// ParseURI is the inverse of ID.URI.
func ParseURI(uri *url.URL) (ID, error) {
	plain := url.URL{Scheme: uri.Scheme, Host: uri.Host, Path: uri.Path}
	if uri.Scheme != uriScheme || uri.Host != uriHost || plain != *uri {
		return ID{}, fmt.Errorf("%w: URI: %q; it must be aether://proxy/<tenant>/<generation>", ErrInvalid, uri)
	}
	return parseID(strings.TrimPrefix(uri.Path, "/"))
}

func parseID(text string) (ID, error) {
	tenant, number, _ := strings.Cut(text, "/")
	generation, err := strconv.ParseInt(number, 10, 64)
	if err != nil || strconv.FormatInt(generation, 10) != number {
		return ID{}, fmt.Errorf("%w: generation: %q; it must be a whole number from 1 up", ErrInvalid, number)
	}
	id := ID{Tenant: tenant, Generation: generation}
	return id, id.Validate()
}

// Tenant is what one proxy needs to know of the tenant it serves.
type Tenant struct {
	Name       string     `json:"name"`
	Generation int64      `json:"generation"`
	Address    netip.Addr `json:"address"` // tenant side, where the proxy listens

	// Upstreams are the API server's addresses on the management side. None is
	// allowed: a proxy may be ready before the control plane has an address,
	// and closes connections until it has.
	Upstreams []netip.AddrPort `json:"upstreams,omitempty"`
	// KonnectivityUpstreams are those of the konnectivity server.
	KonnectivityUpstreams []netip.AddrPort `json:"konnectivityUpstreams,omitempty"`

	// MaxNodes is the sum of the pools' upper bounds; the ceilings follow it.
	MaxNodes int `json:"maxNodes"`
}

// ID names the proxy.
func (t Tenant) ID() ID { return ID{Tenant: t.Name, Generation: t.Generation} }

// Validate reports every field that cannot be served, each with what is allowed.
func (t Tenant) Validate() error {
	errs := []error{t.ID().Validate()}
	if !usable(t.Address) {
		errs = append(errs, fmt.Errorf("%w: address: %s; give the proxy's own address on the tenant network", ErrInvalid, t.Address))
	}
	if t.MaxNodes < 0 || t.MaxNodes > maxNodes {
		errs = append(errs, fmt.Errorf("%w: maxNodes: %d; allowed are 0 to %d", ErrInvalid, t.MaxNodes, maxNodes))
	}
	errs = append(errs, t.checkUpstreams("upstreams", t.Upstreams), t.checkUpstreams("konnectivityUpstreams", t.KonnectivityUpstreams))
	return errors.Join(errs...)
}

func (t Tenant) checkUpstreams(field string, upstreams []netip.AddrPort) error {
	for i, upstream := range upstreams {
		switch {
		case !usable(upstream.Addr()) || upstream.Port() == 0:
			return fmt.Errorf("%w: %s[%d]: %s; give an address and port of the control plane's Service", ErrInvalid, field, i, upstream)
		case upstream.Addr().Unmap() == t.Address.Unmap():
			return fmt.Errorf("%w: %s[%d]: %s is the proxy's own address, which would be a loop; give the management-side address", ErrInvalid, field, i, upstream)
		case slices.Contains(upstreams[:i], upstream):
			return fmt.Errorf("%w: %s[%d]: %s is there twice; remove one", ErrInvalid, field, i, upstream)
		}
	}
	return nil
}

func usable(address netip.Addr) bool {
	return address.IsValid() && !address.IsUnspecified() && !address.IsMulticast() && address.Zone() == ""
}
