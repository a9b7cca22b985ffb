package capi

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/runtime"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/envoy"
)

// ProxiesOf turns an AetherCluster into what its proxy is served: nothing
// before the proxy's address and generation are known, no servers before the
// control plane has an address.
func ProxiesOf(object runtime.Object) []envoy.Tenant {
	tenant, ok := object.(*v1alpha1.AetherCluster)
	if !ok || tenant.Status.Proxy.Generation == 0 {
		return nil
	}
	address, err := netip.ParseAddr(tenant.Spec.ControlPlaneEndpoint.Host)
	if err != nil {
		return nil
	}
	proxy := envoy.Tenant{Name: tenant.Name, Generation: tenant.Status.Proxy.Generation, Address: address}
	if upstream, err := netip.ParseAddr(tenant.Status.ManagementEndpoint.Host); err == nil {
		proxy.Upstreams = []netip.AddrPort{netip.AddrPortFrom(upstream, domain.APIServerPort)}
		proxy.KonnectivityUpstreams = []netip.AddrPort{netip.AddrPortFrom(upstream, domain.KonnectivityPort)}
	}
	for _, pool := range tenant.Spec.Pools {
		switch {
		case pool.MaxSize != nil:
			proxy.MaxNodes += int(*pool.MaxSize)
		case pool.Replicas != nil:
			proxy.MaxNodes += int(*pool.Replicas)
		}
	}
	return []envoy.Tenant{proxy}
}
