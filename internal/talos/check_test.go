package talos_test

import (
	"fmt"
	"strings"
	"testing"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"sigs.k8s.io/yaml"

	"aether.internal/aether/internal/talos"
)

// A configuration as talosctl makes it is what the origin began with.
func TestCheckFindsTheOriginProblems(t *testing.T) {
	bundle, err := secrets.NewBundle(secrets.NewClock(), coreconfig.TalosVersion1_12)
	if err != nil {
		t.Fatal(err)
	}
	input, err := generate.NewInput("demo", "https://10.1.1.11:6443", "1.35.9", generate.WithSecretsBundle(bundle), generate.WithVersionContract(coreconfig.TalosVersion1_12), generate.WithInstallDisk("/dev/sda"))
	if err != nil {
		t.Fatal(err)
	}
	provider, err := input.Config(machine.TypeWorker)
	if err != nil {
		t.Fatal(err)
	}
	naive, err := provider.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	found := byField(talos.Check(naive, worker(t)))
	for field, fix := range map[string]string{
		"cluster.ca.crt":                                "talosctl",
		"cluster.token":                                 "bootstrap-token-<id>",
		"cluster.controlPlane.endpoint":                 "proxy",
		"machine.kubelet.image":                         "exact version",
		"machine.kubelet.extraConfig.providerID":        "cannot be changed later",
		"machine.kubelet.nodeIP.validSubnets":           "storage address",
		"machine.features.kubePrism.enabled":            "switch KubePrism off",
		"machine.features.hostDNS.forwardKubeDNSToHost": "Cilium",
		"HostnameConfig.hostname":                       "pin it",
		"TimeSyncConfig.ntp.servers":                    "NTP",
		"RegistryMirrorConfig[ghcr.io].endpoints":       "overridePath",
		"LinkConfig[net1].addresses":                    "leased",
	} {
		if f, ok := found[field]; !ok || !strings.Contains(f.Fix, fix) {
			t.Errorf("%s: found %+v, want a finding whose fix speaks of %q", field, f, fix)
		}
	}
	for _, f := range found {
		if strings.Contains(f.String(), bundle.Secrets.BootstrapToken) || strings.Contains(f.String(), bundle.TrustdInfo.Token) {
			t.Errorf("finding shows a secret: %s", f.Field)
		}
	}
}

func byField(findings []talos.Finding) map[string]talos.Finding {
	out := map[string]talos.Finding{}
	for _, f := range findings {
		out[f.Field] = f
	}
	return out
}

// Talos's own validation passes each of these.
func TestCheckFindsWhatTalosPasses(t *testing.T) {
	cases := map[string]struct {
		old, new string
		field    string
	}{
		"no token":       {"    token: nzbyod.0123456789abcdef\n", "", "cluster.token"},
		"token form":     {"nzbyod.0123456789abcdef", "nzbyod.0123", "cluster.token"},
		"another secret": {"nzbyod.0123456789abcdef", "nzbyod.0123456789abcdee", "cluster.token"},
		"role label":     {"topology.kubernetes.io/zone: pv1-1", "node-role.kubernetes.io/worker: pv1-1", "machine.nodeLabels"},
		"node taints":    {"    nodeLabels:\n", "    nodeTaints:\n        a: b:NoSchedule\n    nodeLabels:\n", "machine.nodeTaints"},
		"kubelet image":  {"kubelet:v1.35.4", "kubelet:v1.36.0", "machine.kubelet.image"},
		"kubelet digest": {"kubelet:v1.35.4", "kubelet@sha256:0000", "machine.kubelet.image"},
		"second v2":      {"overridePath: true", "overridePath: false", "RegistryMirrorConfig[ghcr.io].endpoints"},
		"storage subnet": {"- 10.1.1.0/24", "- 10.1.2.0/24", "machine.kubelet.nodeIP.validSubnets"},
		"start-up taint": {"node.cilium.io/agent-not-ready", "example.test/other", "machine.kubelet.extraConfig.registerWithTaints"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			in := worker(t)
			config := string(render(t, in))
			broken := strings.Replace(config, c.old, c.new, 1)
			if broken == config {
				t.Fatalf("the configuration does not hold %q", c.old)
			}
			findings := talos.Check([]byte(broken), in)
			f, ok := byField(findings)[c.field]
			if !ok || f.Found == "" || f.Needed == "" || f.Fix == "" {
				t.Fatalf("got %v, want a complete finding on %s", findings, c.field)
			}
			if strings.Contains(fmt.Sprint(findings), "0123456789abcde") {
				t.Error("a finding shows the token's secret")
			}
		})
	}
}

func TestCheckUnreadable(t *testing.T) {
	for name, config := range map[string]string{"empty": "", "no YAML": "\t{", "unknown key": "version: v1alpha1\nmachine:\n  tpye: worker\n", "a list": "- 1\n"} {
		if findings := talos.Check([]byte(config), worker(t)); len(findings) == 0 {
			t.Errorf("%s: nothing was found", name)
		}
	}
}

// Every single field that is changed, emptied or taken away is found.
func TestCheckFindsEveryCorruption(t *testing.T) {
	in := worker(t)
	documents := strings.Split(string(render(t, in)), "\n---\n")
	count := 0
	for i, document := range documents {
		var parsed map[string]any
		if err := yaml.Unmarshal([]byte(document), &parsed); err != nil {
			t.Fatal(err)
		}
		for path, corrupt := range corruptions(parsed, "") {
			broken := append([]string{}, documents...)
			corrupt(func() {
				raw, err := yaml.Marshal(parsed)
				if err != nil {
					t.Fatal(err)
				}
				broken[i] = string(raw)
			})
			count++
			if findings := talos.Check([]byte(strings.Join(broken, "\n---\n")), in); len(findings) == 0 {
				t.Errorf("document %d: %s is not found", i, path)
			}
		}
	}
	if count < 150 {
		t.Errorf("only %d corruptions were tried", count)
	}
}

// corruptions returns, for each field below node, ways to break it. Each one
// breaks the field, calls with, and repairs it.
func corruptions(node map[string]any, prefix string) map[string]func(with func()) {
	out := map[string]func(func()){}
	for key, value := range node {
		path := prefix + "." + key
		set := func(broken any) func(func()) {
			return func(with func()) {
				node[key] = broken
				with()
				node[key] = value
			}
		}
		out[path+" taken away"] = func(with func()) {
			delete(node, key)
			with()
			node[key] = value
		}
		switch v := value.(type) {
		case map[string]any:
			for p, c := range corruptions(v, path) {
				out[p] = c
			}
		case []any:
			if len(v) > 0 {
				out[path+" emptied"] = set([]any{})
				out[path+" doubled"] = set(append(append([]any{}, v...), v...))
			}
			for i := range v {
				if inner, ok := v[i].(map[string]any); ok {
					for p, c := range corruptions(inner, fmt.Sprintf("%s[%d]", path, i)) {
						out[p] = c
					}
				}
			}
		case string:
			out[path+" changed"] = set(v + "x")
			if v != "" {
				out[path+" emptied"] = set("")
			}
		case bool:
			out[path+" turned"] = set(!v)
		case float64:
			out[path+" changed"] = set(v + 1)
		}
		out[path+".extra"] = func(with func()) {
			node[key+"x"] = value
			with()
			delete(node, key+"x")
		}
	}
	return out
}

func FuzzCheck(f *testing.F) {
	in := worker(f)
	f.Add(render(f, in))
	f.Add([]byte("kind: LinkConfig\nname: a]b.c\n---\nkind: LinkConfig\nname: a]b.c\n"))
	f.Add([]byte("machine: {kubelet: {nodeIP: [1]}}"))
	f.Fuzz(func(t *testing.T, config []byte) {
		for _, finding := range talos.Check(config, in) {
			if strings.Contains(finding.String(), in.Token.Secret()) {
				t.Errorf("finding shows the token's secret: %s", finding)
			}
		}
	})
}
