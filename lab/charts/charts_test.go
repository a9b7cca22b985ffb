package charts_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"aether.internal/aether/lab/charts"
	"aether.internal/aether/lab/registry"
)

// talos are the values that a tenant on Talos gets.
func talos() map[string]any {
	return map[string]any{
		"k8sServiceHost": "10.1.1.10", "k8sServicePort": "6443", "kubeProxyReplacement": true,
		"ipam":     map[string]any{"mode": "kubernetes"},
		"hubble":   map[string]any{"enabled": false},
		"operator": map[string]any{"replicas": 1},
		"cgroup":   map[string]any{"autoMount": map[string]any{"enabled": false}, "hostRoot": "/sys/fs/cgroup"},
	}
}

func render(t *testing.T, values map[string]any) (string, error) {
	t.Helper()
	chart, err := charts.Cilium()
	if err != nil {
		t.Fatal(err)
	}
	install := action.NewInstall(&action.Configuration{})
	install.DryRun, install.ClientOnly, install.Replace = true, true, true
	install.ReleaseName, install.Namespace = "cilium", "kube-system"
	install.KubeVersion = &chartutil.KubeVersion{Version: "v1.35.4", Major: "1", Minor: "35"}
	release, err := install.Run(chart, values)
	if err != nil {
		return "", err
	}
	return release.Manifest, nil
}

func objects(t *testing.T, manifest string) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	for _, document := range strings.Split(manifest, "\n---\n") {
		var head struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		if err := yaml.Unmarshal([]byte(document), &head); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if head.Kind != "" {
			found[strings.Trim(head.Kind+" "+head.Metadata.Namespace+"/"+head.Metadata.Name, "/")] = []byte(document)
		}
	}
	return found
}

func TestObjects(t *testing.T) {
	manifest, err := render(t, talos())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range objects(t, manifest) {
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{
		"ClusterRole /cilium", "ClusterRole /cilium-operator",
		"ClusterRoleBinding /cilium", "ClusterRoleBinding /cilium-operator",
		"ConfigMap kube-system/cilium-config", "ConfigMap kube-system/cilium-envoy-config",
		"DaemonSet kube-system/cilium", "DaemonSet kube-system/cilium-envoy",
		"Deployment kube-system/cilium-operator",
		"Namespace /cilium-secrets",
		"Role cilium-secrets/cilium-operator-tlsinterception-secrets", "Role cilium-secrets/cilium-tlsinterception-secrets",
		"Role kube-system/cilium-config-agent", "Role kube-system/cilium-operator-ztunnel",
		"RoleBinding cilium-secrets/cilium-operator-tlsinterception-secrets", "RoleBinding cilium-secrets/cilium-tlsinterception-secrets",
		"RoleBinding kube-system/cilium-config-agent", "RoleBinding kube-system/cilium-operator-ztunnel",
		"Service kube-system/cilium-envoy",
		"ServiceAccount kube-system/cilium", "ServiceAccount kube-system/cilium-envoy", "ServiceAccount kube-system/cilium-operator",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

func TestAgent(t *testing.T) {
	manifest, err := render(t, talos())
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(objects(t, manifest)["DaemonSet kube-system/cilium"], &set); err != nil {
		t.Fatal(err)
	}
	var init []string
	for _, c := range set.Spec.Template.Spec.InitContainers {
		init = append(init, c.Name)
	}
	want := []string{"config", "apply-sysctl-overwrites", "mount-bpf-fs", "clean-cilium-state", "install-cni-binaries"}
	if diff := cmp.Diff(want, init); diff != "" {
		t.Errorf("init containers (-want +got):\n%s", diff)
	}
	for _, c := range []corev1.Container{set.Spec.Template.Spec.InitContainers[0], set.Spec.Template.Spec.Containers[0]} {
		got := map[string]string{}
		for _, variable := range c.Env {
			got[variable.Name] = variable.Value
		}
		if got["KUBERNETES_SERVICE_HOST"] != "10.1.1.10" || got["KUBERNETES_SERVICE_PORT"] != "6443" {
			t.Errorf("%s reaches the API server at %s:%s", c.Name, got["KUBERNETES_SERVICE_HOST"], got["KUBERNETES_SERVICE_PORT"])
		}
	}
}

func TestOperatorTolerations(t *testing.T) {
	manifest, err := render(t, talos())
	if err != nil {
		t.Fatal(err)
	}
	var deployment appsv1.Deployment
	if err := yaml.UnmarshalStrict(objects(t, manifest)["Deployment kube-system/cilium-operator"], &deployment); err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, toleration := range deployment.Spec.Template.Spec.Tolerations {
		keys = append(keys, toleration.Key)
	}
	want := []string{
		"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master", "node.kubernetes.io/not-ready",
		"node.cloudprovider.kubernetes.io/uninitialized", "node.cilium.io/agent-not-ready",
	}
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Errorf("tolerations (-want +got):\n%s", diff)
	}
	if got := deployment.Spec.Strategy.RollingUpdate.MaxUnavailable.String(); got != "100%" {
		t.Errorf("one replica may be unavailable to %s, want 100%%", got)
	}
}

func TestEveryImageExists(t *testing.T) {
	manifest, err := render(t, talos())
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]string{}
	for _, definition := range registry.Catalogue() {
		digest, err := definition.Digest()
		if err != nil {
			t.Fatal(err)
		}
		known[definition.Ref] = digest
	}
	for line := range strings.Lines(manifest) {
		image, ok := strings.CutPrefix(strings.TrimSpace(line), "image: ")
		if !ok {
			continue
		}
		ref, digest, pinned := strings.Cut(strings.Trim(image, `"`), "@")
		if known[ref] == "" || pinned && digest != known[ref] {
			t.Errorf("chart wants %s, catalogue has %q", image, known[ref])
		}
	}
}

func TestValues(t *testing.T) {
	cases := []struct {
		name  string
		set   map[string]any
		want  string // part of the error
		lacks string
		has   string
	}{
		{name: "unknown keys are accepted", set: map[string]any{"bogusKey": 1}},
		{name: "replicas must be a number", set: map[string]any{"operator": map[string]any{"replicas": "1"}}, want: "replicas"},
		{name: "strict is refused", set: map[string]any{"kubeProxyReplacement": "strict"}, want: "kubeProxyReplacement must be explicitly set"},
		{name: "tunnel is gone", set: map[string]any{"tunnel": "vxlan"}, want: "tunnel was deprecated"},
		{name: "ipam mode is not checked", set: map[string]any{"ipam": map[string]any{"mode": "bogus"}}, has: `ipam: "bogus"`},
		{name: "envoy off", set: map[string]any{"envoy": map[string]any{"enabled": false}}, lacks: "name: cilium-envoy"},
		{name: "useDigest without digest", set: map[string]any{"image": map[string]any{"useDigest": true}}, has: "quay.io/cilium/cilium:v1.20.2@\""},
		{name: "bpf mount off drops the privileged container", set: map[string]any{"bpf": map[string]any{"autoMount": map[string]any{"enabled": false}}}, lacks: "privileged: true"},
		{name: "hubble brings its secrets", set: map[string]any{"hubble": map[string]any{"enabled": true}}, has: "name: hubble-server-certs"},
		{name: "cluster name too long", set: map[string]any{"cluster": map[string]any{"name": strings.Repeat("a", 33)}}, want: "more than 32 characters"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			values := talos()
			for key, value := range c.set {
				values[key] = value
			}
			manifest, err := render(t, values)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("error is %v, want part %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.lacks != "" && strings.Contains(manifest, c.lacks) {
				t.Errorf("manifest still has %q", c.lacks)
			}
			if !strings.Contains(manifest, c.has) {
				t.Errorf("manifest lacks %q", c.has)
			}
		})
	}
}

func TestWriteCilium(t *testing.T) {
	dir, err := charts.WriteCilium(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "templates/_helpers.tpl")); err != nil {
		t.Error(err)
	}
	chart, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if chart.Name() != "cilium" || chart.Metadata.Version != "1.20.2" {
		t.Errorf("chart is %s %s", chart.Name(), chart.Metadata.Version)
	}
}
