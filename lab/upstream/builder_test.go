package upstream

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// checkout makes a checkout whose module "hello" is a program of its own.
func checkout(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write(t, filepath.Join(root, "go.mod"), "module aether.internal/aether\n\ngo 1.26.0\n")
	dir := filepath.Join(root, "lab", "upstream", "hello")
	// The version is only read: a replacement names one without a download.
	write(t, filepath.Join(dir, "go.mod"), "module example.test/hello\n\ngo 1.26.0\n\nreplace (\n\texample.test/up v1.2.3 => ./up\n)\n")
	write(t, filepath.Join(dir, "up", "go.mod"), "module example.test/up\n")
	write(t, filepath.Join(dir, "go.sum"), "")
	write(t, filepath.Join(dir, "main.go"), "package main\n\nvar version = \"none\"\n\nfunc main() { println(version) }\n")
	return root
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func hello() program {
	return program{
		name: "hello", module: "hello", pkg: ".", upstream: "example.test/up", expect: "a moment",
		stamp: func(v string) []string { return []string{"-X=main.version=" + v} },
	}
}

func testBuilder(t *testing.T) *Builder {
	t.Helper()
	return &Builder{Source: checkout(t), Cache: filepath.Join(t.TempDir(), "cache"), Go: "go", Every: 10 * time.Millisecond, Programs: Paths{}}
}

func TestEnsureBuildsOnce(t *testing.T) {
	b := testBuilder(t)
	var out bytes.Buffer
	path, err := b.ensure(t.Context(), &out, hello())
	if err != nil {
		t.Fatal(err)
	}
	said, err := exec.Command(path).CombinedOutput()
	if err != nil || strings.TrimSpace(string(said)) != "v1.2.3" {
		t.Errorf("program said %q (%v), want its stamped version v1.2.3", said, err)
	}
	for _, want := range []string{"building hello v1.2.3 (first time here; a moment", "built hello v1.2.3 in "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("progress lacks %q:\n%s", want, &out)
		}
	}

	out.Reset()
	again, err := b.ensure(t.Context(), &out, hello())
	if err != nil || again != path || out.Len() > 0 {
		t.Errorf("second time: path %s, error %v, said %q; want %s, silently", again, err, &out, path)
	}

	write(t, filepath.Join(b.Source, "lab", "upstream", "hello", "main.go"), "package main\n\nfunc main() { println(2) }\n")
	changed, err := b.ensure(t.Context(), &out, hello())
	if err != nil || changed == path {
		t.Errorf("changed source: path %s, error %v; want another program", changed, err)
	}
	if left, _ := filepath.Glob(filepath.Join(b.Cache, "*.new")); len(left) > 0 {
		t.Errorf("temporary files are left: %v", left)
	}
}

func TestEnsureSideBySide(t *testing.T) {
	b := testBuilder(t)
	outs := make([]bytes.Buffer, 4)
	var all sync.WaitGroup
	for i := range outs {
		all.Go(func() {
			if _, err := b.ensure(t.Context(), &outs[i], hello()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	built := 0
	for i := range outs {
		built += strings.Count(outs[i].String(), "upstream: built ")
	}
	if built != 1 {
		t.Errorf("built %d times, want once", built)
	}
}

func TestEnsureTellsWhatFailed(t *testing.T) {
	b := testBuilder(t)
	write(t, filepath.Join(b.Source, "lab", "upstream", "hello", "main.go"), "package main\n\nfunc main() { undefined() }\n")
	var out bytes.Buffer
	_, err := b.ensure(t.Context(), &out, hello())
	if err == nil || !strings.Contains(err.Error(), "undefined: undefined") {
		t.Errorf("error %v does not carry the compiler's", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.ensure(ctx, &out, hello()); err == nil {
		t.Error("a cancelled context built all the same")
	}
}

func TestFromEnvironment(t *testing.T) {
	given := filepath.Join(t.TempDir(), "kubernetes")
	write(t, given, "")
	env := map[string]string{"AETHER_KUBERNETES": given, "AETHER_CACHE": "/somewhere"}
	b, err := FromEnvironment(func(k string) string { return env[k] })
	if err != nil {
		t.Fatal(err)
	}
	if b.Cache != "/somewhere/upstream" {
		t.Errorf("cache is %s", b.Cache)
	}
	paths, err := b.Ensure(t.Context(), os.Stderr, Kubernetes)
	if err != nil || paths[Kubernetes] != given {
		t.Errorf("kubernetes is %s (%v), want the given %s", paths[Kubernetes], err, given)
	}
	if _, err := b.Ensure(t.Context(), os.Stderr, "docker"); err == nil || !strings.Contains(err.Error(), "allowed: [kubernetes") {
		t.Errorf("unknown program: %v", err)
	}
	env["AETHER_TEMPORAL"] = "/nowhere"
	if _, err := FromEnvironment(func(k string) string { return env[k] }); err == nil || !strings.Contains(err.Error(), "AETHER_TEMPORAL") {
		t.Errorf("missing given program: %v", err)
	}
}

func TestShare(t *testing.T) {
	given := filepath.Join(t.TempDir(), "temporal")
	write(t, given, "")
	t.Setenv("AETHER_TEMPORAL", given)
	t.Setenv("AETHER_KUBERNETES", given)
	if err := Share(t.Context(), os.Stderr, Temporal); err != nil || os.Getenv("AETHER_TEMPORAL") != given {
		t.Errorf("environment names %q, error %v", os.Getenv("AETHER_TEMPORAL"), err)
	}
	if err := Share(t.Context(), os.Stderr, "docker"); err == nil {
		t.Error("an unknown program was shared")
	}
}

func TestFindCheckout(t *testing.T) {
	root := checkout(t)
	nested := filepath.Join(root, "lab", "upstream", "hello")
	elsewhere := t.TempDir()
	for _, c := range []struct {
		name string
		from []string
		want string
	}{
		{"root", []string{root}, root},
		{"nested module", []string{nested}, root},
		{"second place", []string{elsewhere, nested}, root},
		{"nowhere", []string{elsewhere}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := findCheckout(c.from...)
			if got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("found %q, error %v; want %q", got, err, c.want)
			}
		})
	}
}

// The real modules: each program's version is pinned, and Kubernetes is
// stamped with it.
func TestProgramsArePinned(t *testing.T) {
	b, err := FromEnvironment(func(k string) string { return map[string]string{"AETHER_CACHE": t.TempDir()}[k] })
	if err != nil {
		t.Fatal(err)
	}
	want := map[Name]string{
		Kubernetes: "v1.35.4", CAPI: "v1.13.6", Temporal: "v1.32.1",
		KonnectivityServer: "v0.34.0", KonnectivityAgent: "v0.34.0",
	}
	for _, p := range programs() {
		dir, err := b.moduleDir(p.module)
		if err != nil {
			t.Fatal(err)
		}
		version, err := requiredVersion(filepath.Join(dir, "go.mod"), p.upstream)
		if err != nil || version != want[p.name] {
			t.Errorf("%s is at %s (%v), want %s", p.name, version, err, want[p.name])
		}
	}
	flags := strings.Join(kubernetesStamp("v1.35.4"), " ")
	for _, w := range []string{".gitVersion=v1.35.4", ".gitMajor=1", ".gitMinor=35", ".gitTreeState=clean", ".gitCommit="} {
		if !strings.Contains(flags, w) {
			t.Errorf("stamp %q lacks %s", flags, w)
		}
	}
	manifests, err := b.CAPIManifests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{filepath.Join(manifests.CRDs, "cluster.x-k8s.io_machines.yaml"), manifests.Webhooks, filepath.Join(manifests.RBAC, "role.yaml")} {
		if _, err := os.Stat(f); err != nil {
			t.Error(err)
		}
	}
}
