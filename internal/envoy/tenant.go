package envoy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"aether.internal/aether/internal/envoy/wire"
)

// maxNodes is the largest cluster that Kubernetes is tested for.
const maxNodes = 5000

// ErrInvalid marks a tenant that cannot be turned into a configuration.
var ErrInvalid = wire.ErrInvalid

// ID names one proxy: the tenant it serves and which of the tenant's proxies
// it is.
type ID = wire.ID

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
