// Package helm tests the chart beside it: that it renders what the programs
// take, and says what is missing.
package helm

import (
	"os"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

func render(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	chart, err := loader.LoadDir("aether")
	if err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: "aether", Namespace: "aether-system"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return engine.Render(chart, all)
}

func complete(t *testing.T) map[string]any {
	t.Helper()
	site, err := os.ReadFile("../../examples/site.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]any{
		"image": map[string]any{"repository": "registry.example/aether"}, "site": string(site), "codecKeysSecret": "codec",
		"codec": map[string]any{"enabled": true, "origins": []any{"https://temporal.example"}},
	}
}

func TestRendersThePrograms(t *testing.T) {
	files, err := render(t, complete(t))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, document := range strings.Split(files["aether/templates/programs.yaml"], "\n---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		deployment := &appsv1.Deployment{}
		if err := yaml.UnmarshalStrict([]byte(document), deployment); err != nil {
			t.Fatalf("%v in:\n%s", err, document)
		}
		names = append(names, deployment.Name)
		container := deployment.Spec.Template.Spec.Containers[0]
		if !slices.Contains(container.Args, "--site=/etc/aether/site/site.yaml") {
			t.Errorf("%s: arguments %v lack the site", deployment.Name, container.Args)
		}
		if deployment.Name == "aether-worker" && !slices.Contains(container.Args, "--codec-keys=/etc/aether/keys/codec-keys") {
			t.Errorf("worker: arguments %v lack the codec's keys: its payloads would be in clear", container.Args)
		}
		if container.ReadinessProbe == nil || container.SecurityContext == nil {
			t.Errorf("%s: no readiness probe or security context", deployment.Name)
		}
	}
	if want := []string{"aether-worker", "aether-shim", "aether-xds", "aether-codec"}; !slices.Equal(names, want) {
		t.Errorf("programs %v, want %v", names, want)
	}
}

func TestSaysWhatIsMissing(t *testing.T) {
	for _, name := range []string{"image", "site"} {
		values := complete(t)
		delete(values, name)
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "found nothing") {
			t.Errorf("without %s: %v", name, err)
		}
	}
}
