package kamaji_test

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

	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/kamaji"
)

var update = flag.Bool("update", false, "write the golden files anew")

func spec() kamaji.Spec {
	return kamaji.Spec{
		Ref:     kamaji.Ref{Namespace: "tenant-t1", Name: "t1"},
		Version: "v1.35.4", Replicas: 1, DataStore: "default",
		ProxyAddress: netip.MustParseAddr("10.1.1.10"),
		ServiceCIDR:  netip.MustParsePrefix("10.96.0.0/16"), PodCIDR: netip.MustParsePrefix("10.244.0.0/16"), DNSDomain: "cluster.local",
		Registry: "registry.k8s.io", CoreDNS: kamaji.Image{Repository: "registry.k8s.io/coredns", Tag: "v1.14.2"},
		Konnectivity: kamaji.Konnectivity{
			ServerRepository: "registry.k8s.io/kas-network-proxy/proxy-server",
			AgentRepository:  "registry.k8s.io/kas-network-proxy/proxy-agent", Version: "v0.34.0",
		},
	}
}

func TestBuild(t *testing.T) {
	full := spec()
	full.Labels = map[string]string{"aether.internal/tenant": "t1"}
	full.Replicas = 3
	full.DataStore = "shared"
	full.ServerNames = []string{"api.t1.example.test", "10.1.1.10", "*.t1.example.test"}
	full.ServiceCIDR, full.PodCIDR, full.DNSDomain = netip.MustParsePrefix("172.20.0.0/20"), netip.MustParsePrefix("172.21.0.0/16"), "t1.local"
	full.ServiceAnnotations = map[string]string{"metallb.io/loadBalancerIPs": "192.168.0.150"}
	full.Registry = "harbor.example.test/proxy-registry.k8s.io"
	cases := map[string]kamaji.Spec{"smallest": spec(), "everything": full}
	for name, s := range cases {
		t.Run(name, func(t *testing.T) {
			built, err := kamaji.Build(s)
			if err != nil {
				t.Fatal(err)
			}
			got, err := yaml.Marshal(built)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".yaml", got)
		})
	}
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) != len(cases) {
		t.Errorf("%d golden files for %d cases, %v: delete those that no case uses", len(files), len(cases), err)
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: run go test -update to write it", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// TestBuildIsPure builds the same thing twice and wants the same bytes.
func TestBuildIsPure(t *testing.T) {
	var texts [2]string
	for i := range texts {
		built, err := kamaji.Build(spec())
		if err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(built)
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(text)
	}
	if texts[0] != texts[1] {
		t.Errorf("two builds differ:\n%s", cmp.Diff(texts[0], texts[1]))
	}
}

func TestValidate(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*kamaji.Spec)
		fields []string
	}{
		{"fine", func(*kamaji.Spec) {}, nil},
		{"name", func(s *kamaji.Spec) { s.Name = "1t" }, []string{"name"}},
		{"namespace", func(s *kamaji.Spec) { s.Namespace = "" }, []string{"namespace"}},
		{"version without v", func(s *kamaji.Spec) { s.Version = "1.35.4" }, []string{"version"}},
		{"asleep", func(s *kamaji.Spec) { s.Replicas = 0 }, []string{"replicas"}},
		{"no proxy", func(s *kamaji.Spec) { s.ProxyAddress = netip.Addr{} }, []string{"proxyAddress"}},
		{"proxy among the pods", func(s *kamaji.Spec) { s.ProxyAddress = netip.MustParseAddr("10.244.1.1") }, []string{"proxyAddress"}},
		{"names", func(s *kamaji.Spec) { s.ServerNames = []string{"ok.example.test", "https://no"} }, []string{"serverNames[1]"}},
		{"host bits", func(s *kamaji.Spec) { s.ServiceCIDR = netip.MustParsePrefix("10.96.1.5/16") }, []string{"serviceCIDR"}},
		{"too few services", func(s *kamaji.Spec) { s.ServiceCIDR = netip.MustParsePrefix("10.96.0.0/30") }, []string{"serviceCIDR"}},
		{"ranges overlap", func(s *kamaji.Spec) { s.PodCIDR = netip.MustParsePrefix("10.96.128.0/17") }, []string{"podCIDR"}},
		{"domain", func(s *kamaji.Spec) { s.DNSDomain = "Cluster.Local" }, []string{"dnsDomain"}},
		{"unpinned images", func(s *kamaji.Spec) { s.CoreDNS.Tag, s.Konnectivity.Version = "", "" }, []string{"coreDNS.tag", "konnectivity.version"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := spec()
			test.change(&s)
			err := s.Validate()
			var problems domain.Problems
			errors.As(err, &problems)
			var fields []string
			for _, problem := range problems {
				fields = append(fields, problem.Field)
				if problem.Found == "" || problem.Allowed == "" {
					t.Errorf("%s does not say what was found and what is allowed: %s", problem.Field, problem)
				}
			}
			if diff := cmp.Diff(test.fields, fields); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
			if _, buildErr := kamaji.Build(s); (buildErr == nil) != (err == nil) || (err != nil && !errors.Is(buildErr, kamaji.ErrInvalid)) {
				t.Errorf("Build: %v", buildErr)
			}
		})
	}
}

// TestKubeconfigIsNotShown tries the ways a kubeconfig could slip out.
func TestKubeconfigIsNotShown(t *testing.T) {
	secret := kamaji.Kubeconfigs{Published: kamaji.Kubeconfig("client-key-data"), Management: kamaji.Kubeconfig("client-key-data")}
	for _, text := range printed(secret) {
		if strings.Contains(text, "client-key-data") || strings.Contains(text, "99 108 105") {
			t.Errorf("shown: %s", text)
		}
	}
}
