package talos_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"

	"aether.internal/aether/internal/talos"
)

var update = flag.Bool("update", false, "write the golden files")

func TestRenderGolden(t *testing.T) {
	cases := map[string]func(*talos.Input){
		"worker": func(*talos.Input) {},
		"worker-minimal": func(in *talos.Input) {
			in.NICs = in.NICs[:1]
			in.Hosts, in.TrustedRoots, in.Mirrors, in.Labels, in.Taints = nil, nil, nil, nil, nil
		},
		"worker-virtio-two-ranges": func(in *talos.Input) {
			in.Install.Disk = "/dev/vda"
			in.KubernetesVersion = "v1.34.2"
			in.PodCIDRs = append(in.PodCIDRs, in.ServiceCIDRs[0])
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			in := worker(t)
			change(&in)
			got := render(t, in)
			file := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(file, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v; run: go test ./internal/talos -run Golden -update", err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("rendered configuration differs (-want +got); if that is wanted: go test ./internal/talos -run Golden -update\n%s", diff)
			}
			if findings := talos.Check(got, in); len(findings) > 0 {
				t.Errorf("what Render writes does not pass Check: %v", findings)
			}
		})
	}
}

func TestRenderIsPure(t *testing.T) {
	in := worker(t)
	if diff := cmp.Diff(string(render(t, in)), string(render(t, in))); diff != "" {
		t.Errorf("the same input gave two configurations:\n%s", diff)
	}
}

// The machinery's own readers see what a machine would see.
func TestRenderAsTheMachineReadsIt(t *testing.T) {
	in := worker(t)
	provider, err := configloader.NewFromBytes(render(t, in))
	if err != nil {
		t.Fatal(err)
	}
	if provider.Machine().Features().KubePrism().Enabled() {
		t.Error("KubePrism is on")
	}
	if provider.Machine().Features().HostDNS().ForwardKubeDNSToHost() || !provider.Machine().Features().HostDNS().Enabled() {
		t.Error("host DNS: want on, without forwarding")
	}
	if provider.Cluster().Discovery().Enabled() {
		t.Error("discovery is on")
	}
	if got := provider.NetworkHostnameConfig().Hostname(); got != in.Hostname {
		t.Errorf("hostname %q, want %q", got, in.Hostname)
	}
	if got := provider.Cluster().Token().ID() + "." + provider.Cluster().Token().Secret(); got != in.Token.Reveal() {
		t.Error("cluster token is not the one that was given")
	}
	if got := provider.Cluster().Endpoint().String(); got != in.Endpoint {
		t.Errorf("endpoint %q, want %q", got, in.Endpoint)
	}
	mirrors := provider.RegistryMirrorConfigs()
	ghcr, ok := mirrors["ghcr.io"]
	if !ok || !ghcr.SkipFallback() || len(ghcr.Endpoints()) != 1 || !ghcr.Endpoints()[0].OverridePath() {
		t.Errorf("mirror of ghcr.io is not strict: %+v", ghcr)
	}
}

func TestRedact(t *testing.T) {
	in := worker(t)
	shown := talos.Redact(render(t, in))
	if strings.Contains(shown, in.Token.Secret()) {
		t.Error("redacted configuration holds the token's secret")
	}
	if !strings.Contains(shown, in.Hostname) {
		t.Error("redacted configuration does not show the host's name")
	}
	if got := talos.Redact([]byte("\tcluster: {token: nzbyod.0123456789abcdef")); strings.Contains(got, "0123456789abcdef") {
		t.Errorf("unreadable configuration is shown: %q", got)
	}
}

func TestRenderRefuses(t *testing.T) {
	cases := map[string]struct {
		change func(*talos.Input)
		want   string
	}{
		"no CA": {func(in *talos.Input) { in.KubernetesCA = nil }, "kubernetesCA: is empty"},
		"CA with key": {func(in *talos.Input) {
			in.TalosCA = append(in.TalosCA, []byte("-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n")...)
		}, "talosCA: holds a PEM block \"PRIVATE KEY\""},
		"no token":              {func(in *talos.Input) { in.Token = talos.BootstrapToken{} }, "token: is missing"},
		"http endpoint":         {func(in *talos.Input) { in.Endpoint = "http://10.1.1.10:6443" }, "endpoint: "},
		"endpoint without port": {func(in *talos.Input) { in.Endpoint = "https://10.1.1.10" }, "endpoint: "},
		"minor version only":    {func(in *talos.Input) { in.KubernetesVersion = "v1.35" }, "kubernetesVersion: "},
		"installer of another":  {func(in *talos.Input) { in.Install.Image = "ghcr.io/siderolabs/installer:v1.11.0" }, "install.image: "},
		"upper case hostname":   {func(in *talos.Input) { in.Hostname = "Demo_1" }, "hostname: "},
		"provider ID":           {func(in *talos.Input) { in.ProviderID = "aether://demo" }, "providerID: "},
		"role label":            {func(in *talos.Input) { in.Labels = map[string]string{"node-role.kubernetes.io/worker": ""} }, "put it on the Machine"},
		"foreign label":         {func(in *talos.Input) { in.Labels = map[string]string{"apps.kubernetes.io/x": ""} }, "neither a node nor Cluster API core"},
		"taint effect":          {func(in *talos.Input) { in.Taints[0].Effect = "Never" }, "taints[0]: "},
		"gateway outside":       {func(in *talos.Input) { in.NICs[0].Gateway = in.NICs[1].Address.Addr() }, "nics[0].gateway: "},
		"one MAC twice":         {func(in *talos.Input) { in.NICs[1].MAC = in.NICs[0].MAC }, "nics[1]: mac"},
		"networks overlap":      {func(in *talos.Input) { in.NICs[1].Address = in.NICs[0].Address }, "overlap"},
		"kernel name":           {func(in *talos.Input) { in.NICs[0].Alias = "eth0" }, "nics[0].alias: "},
		"no NTP":                {func(in *talos.Input) { in.TimeServers = nil }, "timeServers: is empty"},
		"mirror without v2":     {func(in *talos.Input) { in.Mirrors[0].URL = "https://harbor/proxy-ghcr.io" }, "mirrors[0].url: "},
		"mirror twice":          {func(in *talos.Input) { in.Mirrors[1].Registry = "ghcr.io" }, "mirrors[1].registry: "},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			in := worker(t)
			c.change(&in)
			_, err := talos.Render(in)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want an error with %q", err, c.want)
			}
			if strings.Contains(err.Error(), "0123456789abcdef") {
				t.Error("the error shows the token")
			}
		})
	}
}
