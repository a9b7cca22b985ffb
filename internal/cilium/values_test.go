package cilium

import (
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

//nolint:gochecknoglobals // a flag of the test program
var update = flag.Bool("update", false, "write golden files")

func settings() Settings {
	return Settings{Tenant: "demo", APIHost: netip.MustParseAddr("10.1.1.10"), APIPort: 6443, NetworkMTU: 1500, Version: "v1.20.2"}
}

func TestValuesGolden(t *testing.T) {
	pinned := settings()
	pinned.Tenant = "a-tenant-whose-name-is-longer-than-cilium-takes"
	pinned.AgentDigest, pinned.OperatorDigest = "sha256:"+strings.Repeat("a", 64), "sha256:"+strings.Repeat("b", 64)
	pinned.NetworkMTU = 9000
	pinned.Extra = map[string]any{"hubble": map[string]any{"enabled": true}, "operator": map[string]any{"resources": map[string]any{"requests": map[string]any{"cpu": "50m"}}}}
	for name, s := range map[string]Settings{"minimal": settings(), "pinned": pinned} {
		t.Run(name, func(t *testing.T) {
			values, err := Values(s)
			if err != nil {
				t.Fatal(err)
			}
			got, err := yaml.Marshal(values)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", "golden", name+".yaml")
			if *update {
				if err := os.WriteFile(file, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("run with -update when this is meant:\n%s", diff)
			}
		})
	}
}

func TestValuesRefuse(t *testing.T) {
	tests := map[string]struct {
		change func(*Settings)
		key    string
		do     string
	}{
		"no address":            {func(s *Settings) { s.APIHost = netip.Addr{} }, "k8sServiceHost", "lease"},
		"MTU too small":         {func(s *Settings) { s.NetworkMTU = 1300 }, "MTU", "raise"},
		"computed":              {func(s *Settings) { s.Extra = map[string]any{"k8sServiceHost": "x"} }, "k8sServiceHost", "Aether computes it"},
		"computed below":        {func(s *Settings) { s.Extra = map[string]any{"cluster": map[string]any{"name": "x"}} }, "cluster.name", "Aether computes it"},
		"below a computed one":  {func(s *Settings) { s.Extra = map[string]any{"ipam": map[string]any{"mode": "x"}} }, "ipam", "Aether computes it"},
		"misspelt":              {func(s *Settings) { s.Extra = map[string]any{"operator": map[string]any{"replica": 2}} }, "operator.replica", "spelling"},
		"gone from the chart":   {func(s *Settings) { s.Extra = map[string]any{"tunnel": "vxlan"} }, "tunnel", "spelling"},
		"not a mapping":         {func(s *Settings) { s.Extra = map[string]any{"operator": 2} }, "operator", "below it"},
		"digest without digest": {func(s *Settings) { s.Extra = map[string]any{"image": map[string]any{"useDigest": true}} }, "image.digest", "state the digest"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := settings()
			test.change(&s)
			_, err := Values(s)
			var refused *ValuesError
			if !errors.As(err, &refused) || refused.Key != test.key || !strings.Contains(err.Error(), test.do) {
				t.Errorf("got %v, want %s and %q", err, test.key, test.do)
			}
		})
	}
}

func TestClusterNameIsShortAndDistinct(t *testing.T) {
	long := strings.Repeat("tenant-", 9)
	a, b := clusterName(long+"a"), clusterName(long+"b")
	if len(a) > 32 || a == b || clusterName("demo") != "demo" {
		t.Errorf("got %q and %q", a, b)
	}
}
