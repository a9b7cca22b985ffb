package command

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aether.internal/aether/internal/domain"
)

func exampleTenant(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "examples", "tenant.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestTheExampleIsATenant(t *testing.T) {
	got, err := parseTenant([]byte(exampleTenant(t)))
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "demo" || got.Spec.Version != "v1.35.4" || len(got.Spec.Pools) != 1 || *got.Spec.Pools[0].Replicas != 2 {
		t.Errorf("got %+v", got)
	}
}

// TestParseTenantNamesFieldFindingAndAllowed changes the example in one place.
func TestParseTenantNamesFieldFindingAndAllowed(t *testing.T) {
	for _, test := range []struct{ name, old, new, want string }{
		{"unknown field", "replicas: 2", "size: 2", "spec.pools[0].size: found a field that does not exist here; allowed: class, hosts, labels, maxSize, minSize, name, replicas, taints; correct its name or remove it"},
		{"text for number", "replicas: 2", "replicas: two", `spec.pools[0].replicas: found the text "two"; allowed: a whole number`},
		{"number for text", "version: v1.35.4", "version: 1.35", `spec.version: found the number "1.35"; allowed: text; put it in quotes`},
		{"yes for text", "example.com/team: demo", "example.com/team: yes", "spec.pools[0].labels[example.com/team]: found the value true; allowed: text"},
		{"text for list", "hosts: [pv1-1, pv1-2]", "hosts: pv1-1", `spec.pools[0].hosts: found the text "pv1-1"; allowed: a list`},
		{"too large", "maxSize: 4", "maxSize: 4000000000", "spec.pools[0].maxSize: found the number"},
		{"another kind", "kind: AetherCluster\nmetadata", "kind: Deployment\nmetadata", `kind: found "Deployment"; allowed: AetherCluster, and beside it Cluster and Namespace`},
		{"another version of the API", "x-k8s.io/v1alpha1", "x-k8s.io/v1", `apiVersion: found "infrastructure.cluster.x-k8s.io/v1"; allowed: infrastructure.cluster.x-k8s.io/v1alpha1`},
		{"another namespace", "namespace: tenant-demo\nspec:\n  version", "namespace: default\nspec:\n  version", `metadata.namespace: found "default"; allowed: tenant-demo`},
		{"a key twice", "replicas: 2", "replicas: 2\n      replicas: 3", `key "replicas" already set`},
		{"not YAML", "replicas: 2", "replicas: [2", "document 3: it is not YAML"},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := exampleTenant(t)
			if strings.Count(text, test.old) != 1 {
				t.Fatalf("the example has %q %d times", test.old, strings.Count(text, test.old))
			}
			got, err := parseTenant([]byte(strings.Replace(text, test.old, test.new, 1)))
			if err == nil {
				t.Fatalf("got %+v", got)
			}
			if !strings.HasPrefix(err.Error(), "tenant file: ") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got  %q\nwant %q in it", err, test.want)
			}
		})
	}
}

func TestParseTenantWholeFiles(t *testing.T) {
	const one = "kind: AetherCluster\nmetadata: {name: a}\n"
	for _, test := range []struct{ name, text, want string }{
		{"least", one, ""},
		{"JSON", `{"kind":"AetherCluster","metadata":{"name":"a"}}`, ""},
		{"comments and empty documents", "# nothing\n---\n\n---\n" + one + "---\n# end\n", ""},
		{"empty", "", "found no AetherCluster; see examples/tenant.yaml"},
		{"only its companions", "kind: Namespace\nmetadata: {name: tenant-a}\n", "found no AetherCluster"},
		{"two", one + "---\n" + one, "document 2: found another AetherCluster; allowed: one in a file"},
		{"no kind", "metadata: {name: a}\n", "document 1: kind: found nothing; allowed: AetherCluster"},
		{"kind is a number", "kind: 7\n", "kind: found 7"},
		{"a list", "- a\n", "document 1: found something that is no mapping; allowed: an object with apiVersion"},
		{"text", "hello\n", "found something that is no mapping"},
		{"no name", "kind: AetherCluster\n", "metadata.name: found nothing; allowed: the tenant's name"},
		{"binary", "\x00\x01\x02", "it is not YAML"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseTenant([]byte(test.text))
			switch {
			case test.want == "" && (err != nil || got.Name != "a"):
				t.Errorf("got %+v, %v", got, err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
	_, err := parseTenant([]byte("kind: AetherCluster\nspec:\n" + strings.Repeat("  a: b\n", 10000)))
	if err == nil || len(err.Error()) > 600 || !strings.Contains(err.Error(), "already set") {
		t.Errorf("a file with many mistakes: %d bytes of message", len(err.Error()))
	}
	_, err = parseTenant([]byte("kind: AetherCluster\nmetadata: {name: a, b: c}\nspec: {d: e}\n"))
	var problems domain.Problems
	if !errors.As(err, &problems) || len(problems) != 2 {
		t.Errorf("not all problems at once: %v", err)
	}
}

func TestReadTenant(t *testing.T) {
	folder := t.TempDir()
	large := filepath.Join(folder, "large.yaml")
	if err := os.WriteFile(large, []byte(strings.Repeat("# x\n", mostBytes/4+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	stdin := streams{in: strings.NewReader(exampleTenant(t))}
	if got, err := readTenant(stdin, "-"); err != nil || got.Name != "demo" {
		t.Errorf("standard input: %+v, %v", got, err)
	}
	for name, test := range map[string]struct{ file, want string }{
		"none":     {"", "--file: found nothing; give a tenant file, as examples/tenant.yaml, or -"},
		"missing":  {filepath.Join(folder, "no.yaml"), "no such file"},
		"a folder": {folder, "is a directory"},
		"large":    {large, "found more than 1 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := readTenant(stdin, test.file); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// FuzzParseTenant: whatever stands in a file, the answer is a tenant that
// survives being written and read again, or an error that says where it is from.
func FuzzParseTenant(f *testing.F) {
	f.Add([]byte(exampleTenant(f)))
	for _, seed := range []string{
		"", "---", "kind: AetherCluster", "kind: [", "- a", "kind: AetherCluster\nmetadata: {name: a}\nspec: {pools: [{name: b, replicas: 1}]}",
		"kind: AetherCluster\nmetadata: null\nspec: null", "{\"kind\":\"AetherCluster\",\"spec\":{\"pools\":[null]}}", "a: &x [*x]", "kind: AetherCluster\nspec: {pools: [{taints: [{timeAdded: 1}]}]}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parseTenant(data)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "tenant file: ") {
				t.Errorf("an error from nowhere: %v", err)
			}
			return
		}
		if got.Name == "" {
			t.Error("a tenant without a name")
		}
	})
}
