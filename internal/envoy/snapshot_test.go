package envoy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"aether.internal/aether/internal/envoy"

	tcpproxy "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestSnapshotGolden renders every file of testdata/in and compares it with its
// namesake in testdata/out; files that nothing renders fail.
func TestSnapshotGolden(t *testing.T) {
	inputs, err := filepath.Glob("testdata/in/*.yaml")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no inputs: %v", err)
	}
	rendered := map[string]bool{}
	for _, input := range inputs {
		output := filepath.Join("testdata/out", filepath.Base(input))
		rendered[output] = true
		t.Run(filepath.Base(input), func(t *testing.T) {
			data, err := os.ReadFile(input)
			if err != nil {
				t.Fatal(err)
			}
			var tenant envoy.Tenant
			if err := yaml.UnmarshalStrict(data, &tenant); err != nil {
				t.Fatal(err)
			}
			resources, err := envoy.Snapshot(tenant)
			if err != nil {
				t.Fatal(err)
			}
			got := render(t, resources)
			if *update {
				if err := os.WriteFile(output, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(output)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("differs; if that is meant, run with -update:\n%s", diff)
			}
		})
	}
	outputs, err := filepath.Glob("testdata/out/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, output := range outputs {
		if !rendered[output] {
			t.Errorf("%s has no input", output)
		}
	}
}

func render(t *testing.T, resources envoy.Resources) []byte {
	t.Helper()
	var out bytes.Buffer
	add := func(message proto.Message) {
		data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		var plain any // protojson varies its blanks on purpose
		if err := json.Unmarshal(data, &plain); err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(plain)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	for _, c := range resources.Clusters {
		add(c)
	}
	for _, l := range resources.Listeners {
		add(l)
	}
	return out.Bytes()
}

func demo() envoy.Tenant {
	return envoy.Tenant{
		Name: "demo", Generation: 1, Address: netip.MustParseAddr("10.1.1.10"), MaxNodes: 200,
		Upstreams:             []netip.AddrPort{netip.MustParseAddrPort("192.168.0.100:6443"), netip.MustParseAddrPort("192.168.0.101:6443")},
		KonnectivityUpstreams: []netip.AddrPort{netip.MustParseAddrPort("192.168.0.100:8132")},
	}
}

// What the failure cases taught, read off the rendered values.
func TestSnapshotNeverCutsNorChokes(t *testing.T) {
	resources, err := envoy.Snapshot(demo())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range resources.Clusters {
		limit := c.GetCircuitBreakers().GetThresholds()[0]
		if got := limit.GetMaxConnections().GetValue(); got < 200*6+1024 {
			t.Errorf("%s: %d connections for 200 nodes", c.GetName(), got)
		}
		if limit.GetMaxPendingRequests().GetValue() < limit.GetMaxConnections().GetValue() {
			t.Errorf("%s: fewer pending than connections", c.GetName())
		}
		keep := c.GetUpstreamConnectionOptions().GetTcpKeepalive().GetKeepaliveTime().GetValue()
		if keep == 0 || keep >= 300 {
			t.Errorf("%s: upstream keep-alive after %d s, want less than 300", c.GetName(), keep)
		}
		if c.GetCloseConnectionsOnHostHealthFailure() || len(c.GetHealthChecks()) != 1 {
			t.Errorf("%s: health checks %v must be there and cut nothing", c.GetName(), c.GetHealthChecks())
		}
	}
	for _, l := range resources.Listeners {
		options := map[int64]int64{}
		for _, option := range l.GetSocketOptions() {
			options[option.GetLevel()<<8|option.GetName()] = option.GetIntValue()
		}
		if idle := options[6<<8|4]; options[1<<8|9] != 1 || idle == 0 || idle >= 300 {
			t.Errorf("%s: downstream keep-alive %v", l.GetName(), options)
		}
		if len(l.GetFilterChains()) != 1 || l.GetFilterChains()[0].GetFilterChainMatch() != nil {
			t.Errorf("%s: clients that dial an address match no chain", l.GetName())
		}
		var pass tcpproxy.TcpProxy
		if err := l.GetFilterChains()[0].GetFilters()[0].GetTypedConfig().UnmarshalTo(&pass); err != nil {
			t.Fatal(err)
		}
		if pass.GetIdleTimeout() == nil || pass.GetIdleTimeout().AsDuration() != 0 {
			t.Errorf("%s: idle time-out %v, want it switched off", l.GetName(), pass.GetIdleTimeout())
		}
	}
}

func TestHash(t *testing.T) {
	hash := func(change func(*envoy.Tenant)) string {
		tenant := demo()
		change(&tenant)
		resources, err := envoy.Snapshot(tenant)
		if err != nil {
			t.Fatal(err)
		}
		digest, err := resources.Hash()
		if err != nil {
			t.Fatal(err)
		}
		return digest
	}
	base := hash(func(*envoy.Tenant) {})
	for name, test := range map[string]struct {
		change func(*envoy.Tenant)
		same   bool
	}{
		"again":              {func(*envoy.Tenant) {}, true},
		"order of upstreams": {func(x *envoy.Tenant) { x.Upstreams[0], x.Upstreams[1] = x.Upstreams[1], x.Upstreams[0] }, true},
		"next generation":    {func(x *envoy.Tenant) { x.Generation = 2 }, true},
		"upstream":           {func(x *envoy.Tenant) { x.Upstreams = x.Upstreams[:1] }, false},
		"address":            {func(x *envoy.Tenant) { x.Address = netip.MustParseAddr("10.1.1.11") }, false},
		"nodes":              {func(x *envoy.Tenant) { x.MaxNodes++ }, false},
	} {
		t.Run(name, func(t *testing.T) {
			if same := hash(test.change) == base; same != test.same {
				t.Errorf("same hash = %v, want %v", same, test.same)
			}
		})
	}
}

func TestSnapshotRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(*envoy.Tenant)
		want  string
	}{
		"name":           {func(x *envoy.Tenant) { x.Name = "a/b" }, "name"},
		"generation":     {func(x *envoy.Tenant) { x.Generation = 0 }, "generation"},
		"no address":     {func(x *envoy.Tenant) { x.Address = netip.Addr{} }, "address"},
		"any address":    {func(x *envoy.Tenant) { x.Address = netip.IPv4Unspecified() }, "address"},
		"too many nodes": {func(x *envoy.Tenant) { x.MaxNodes = 5001 }, "maxNodes"},
		"upstream port":  {func(x *envoy.Tenant) { x.Upstreams = []netip.AddrPort{netip.MustParseAddrPort("192.168.0.1:0")} }, "upstreams[0]"},
		"loop":           {func(x *envoy.Tenant) { x.Upstreams = []netip.AddrPort{netip.MustParseAddrPort("10.1.1.10:6443")} }, "loop"},
		"twice":          {func(x *envoy.Tenant) { x.Upstreams[1] = x.Upstreams[0] }, "twice"},
		"konnectivity zone": {func(x *envoy.Tenant) {
			x.KonnectivityUpstreams = []netip.AddrPort{netip.MustParseAddrPort("[fe80::1%eth0]:1")}
		}, "konnectivityUpstreams[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			tenant := demo()
			test.spoil(&tenant)
			_, err := envoy.Snapshot(tenant)
			if !errors.Is(err, envoy.ErrInvalid) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Snapshot() = %v, want ErrInvalid that names %q", err, test.want)
			}
		})
	}
}
