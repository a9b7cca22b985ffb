package envoy_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/envoy"
)

func TestFromCluster(t *testing.T) {
	number := func(n int32) *int32 { return &n }
	pools := []v1alpha1.Pool{
		{Name: "a", Replicas: number(2), MaxSize: number(10)}, {Name: "b", Replicas: number(3)}, {Name: "c"},
	}
	full := v1alpha1.AetherClusterStatus{
		Proxy:              v1alpha1.ProxyStatus{Address: "10.1.1.10", Generation: 4},
		ManagementEndpoint: v1alpha1.APIEndpoint{Host: "192.168.0.100", Port: 6443},
	}
	want := envoy.Tenant{
		Name: "demo", Generation: 4, Address: netip.MustParseAddr("10.1.1.10"), MaxNodes: 13,
		Upstreams:             []netip.AddrPort{netip.MustParseAddrPort("192.168.0.100:6443")},
		KonnectivityUpstreams: []netip.AddrPort{netip.MustParseAddrPort("192.168.0.100:8132")},
	}
	early := want
	early.Upstreams, early.KonnectivityUpstreams = nil, nil
	for name, test := range map[string]struct {
		change func(*v1alpha1.AetherClusterStatus)
		want   []envoy.Tenant
	}{
		"whole":                 {func(*v1alpha1.AetherClusterStatus) {}, []envoy.Tenant{want}},
		"no proxy yet":          {func(s *v1alpha1.AetherClusterStatus) { s.Proxy = v1alpha1.ProxyStatus{} }, nil},
		"no control plane yet":  {func(s *v1alpha1.AetherClusterStatus) { s.ManagementEndpoint = v1alpha1.APIEndpoint{} }, []envoy.Tenant{early}},
		"control plane by name": {func(s *v1alpha1.AetherClusterStatus) { s.ManagementEndpoint.Host = "api.example" }, []envoy.Tenant{early}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &v1alpha1.AetherCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo"}, Spec: v1alpha1.AetherClusterSpec{Pools: pools}, Status: full}
			test.change(&cluster.Status)
			got := envoy.FromCluster(cluster)
			if diff := cmp.Diff(test.want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
