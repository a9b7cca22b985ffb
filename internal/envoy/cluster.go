package envoy

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/envoy/wire"
)

// NewClusterSource returns a source that follows the AetherClusters in a cache.
func NewClusterSource(cache ctrlcache.Cache) *ObjectSource {
	return &ObjectSource{
		Cache: cache, Object: &v1alpha1.AetherCluster{}, List: &v1alpha1.AetherClusterList{},
		Read: func(object runtime.Object) []Tenant {
			cluster, isCluster := object.(*v1alpha1.AetherCluster)
			if !isCluster {
				return nil
			}
			return FromCluster(cluster)
		},
	}
}

// FromCluster reads the proxy that an AetherCluster has: none before it has a
// generation, and without upstreams before the control plane has an address.
func FromCluster(cluster *v1alpha1.AetherCluster) []Tenant {
	proxy := cluster.Status.Proxy
	if proxy.Generation == 0 || proxy.Address == "" {
		return nil
	}
	// A broken address stays zero, which Validate refuses and Status tells.
	address, _ := netip.ParseAddr(proxy.Address)
	tenant := Tenant{Name: cluster.Name, Generation: proxy.Generation, Address: address, MaxNodes: mostNodes(cluster.Spec.Pools)}
	endpoint := cluster.Status.ManagementEndpoint
	if host, err := netip.ParseAddr(endpoint.Host); err == nil && endpoint.Port > 0 && endpoint.Port <= 65535 {
		tenant.Upstreams = []netip.AddrPort{netip.AddrPortFrom(host, uint16(endpoint.Port))}
		tenant.KonnectivityUpstreams = []netip.AddrPort{netip.AddrPortFrom(host, wire.PortKonnectivity)}
	}
	return []Tenant{tenant}
}

// mostNodes is how many workers the pools may grow to together.
func mostNodes(pools []v1alpha1.Pool) int {
	total := 0
	for _, pool := range pools {
		var most int32
		for _, bound := range []*int32{pool.Replicas, pool.MinSize, pool.MaxSize} {
			if bound != nil {
				most = max(most, *bound)
			}
		}
		total += int(most)
	}
	return min(total, maxNodes)
}
