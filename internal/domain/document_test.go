package domain_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aether.internal/aether/internal/domain"
)

func TestDocumentRoundTrip(t *testing.T) {
	want := tenant(t)
	data, err := json.Marshal(want.Document())
	if err != nil {
		t.Fatal(err)
	}
	got, err := domain.ParseTenant(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if want.Namespace() != "tenant-demo" {
		t.Errorf("namespace %s", want.Namespace())
	}
}

func TestParseTenantIgnoresWhatServersAdd(t *testing.T) {
	got, err := domain.ParseTenant([]byte(`{"apiVersion":"infrastructure.cluster.x-k8s.io/v1alpha1","kind":"AetherCluster",
		"metadata":{"name":"demo","namespace":"tenant-demo","uid":"1","resourceVersion":"7","generation":3,"creationTimestamp":null,
			"managedFields":[{}],"ownerReferences":[],"finalizers":["x"],"labels":{"a":"b"},"annotations":{"c":"d"}},
		"spec":{"version":"v1.35.4"},"status":{"conditions":[{"type":"Ready"}]}}`))
	if err != nil || got.Name != "demo" || got.Spec.Version != "v1.35.4" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestParseTenantNamesFieldFindingAndAllowed(t *testing.T) {
	spec := func(text string) string { return `{"metadata":{"name":"demo"},"spec":{` + text + `}}` }
	pool := func(text string) string { return spec(`"pools":[{"name":"p",` + text + `}]`) }
	for _, test := range []struct{ name, document, want string }{
		{"no name", `{"metadata":{},"spec":{}}`, "metadata.name: found nothing; allowed: the tenant's name"},
		{"another API", `{"apiVersion":"v1","metadata":{"name":"demo"}}`, `apiVersion: found "v1"; allowed: infrastructure.cluster.x-k8s.io/v1alpha1`},
		{"another kind", `{"kind":"Pod","metadata":{"name":"demo"}}`, `kind: found "Pod"; allowed: AetherCluster`},
		{"another namespace", `{"metadata":{"name":"demo","namespace":"default"}}`, `metadata.namespace: found "default"; allowed: tenant-demo; leave it out`},
		{"unknown at the top", `{"metadata":{"name":"demo"},"specs":{}}`, "specs: found a field that does not exist here; allowed: apiVersion, kind, metadata, spec; correct its name or remove it"},
		{"unknown in metadata", `{"metadata":{"name":"demo","title":"x"}}`, "metadata.title: found a field that does not exist here; allowed: annotations, labels, name, namespace"},
		{"unknown in the spec", spec(`"Version":"v1.35.4"`), "spec.Version: found a field"},
		{"unknown in a pool", pool(`"size":3`), "spec.pools[0].size: found a field that does not exist here; allowed: class, hosts, labels"},
		{"unknown in a taint", pool(`"taints":[{"keys":"a"}]`), "spec.pools[0].taints[0].keys: found a field"},
		{"number for text", spec(`"version":1.35`), `spec.version: found the number "1.35"; allowed: text; put it in quotes`},
		{"text for number", pool(`"replicas":"two"`), `spec.pools[0].replicas: found the text "two"; allowed: a whole number; write it without quotes`},
		{"fraction", pool(`"replicas":1.5`), `spec.pools[0].replicas: found the number "1.5"; allowed: a whole number below`},
		{"too large", pool(`"maxSize":99999999999`), `spec.pools[0].maxSize: found the number "99999999999"`},
		{"true for number", pool(`"minSize":true`), "spec.pools[0].minSize: found the value true"},
		{"text for list", pool(`"hosts":"pv1-1"`), `spec.pools[0].hosts: found the text "pv1-1"; allowed: a list`},
		{"nothing in a list", pool(`"hosts":["a",null]`), "spec.pools[0].hosts[1]: found nothing; allowed: an entry"},
		{"list for mapping", pool(`"labels":["a"]`), "spec.pools[0].labels: found a list; allowed: a mapping"},
		{"number in labels", pool(`"labels":{"a":1}`), `spec.pools[0].labels[a]: found the number "1"; allowed: text; put it in quotes`},
		{"mapping for list", spec(`"pools":{"name":"p"}`), "spec.pools: found a mapping; allowed: a list"},
		{"text for mapping", spec(`"clusterNetwork":"x"`), `spec.clusterNetwork: found the text "x"; allowed: a mapping`},
		{"text for time", pool(`"taints":[{"timeAdded":"now"}]`), "spec.pools[0].taints[0].timeAdded: found the text"},
		{"spec is a list", `{"metadata":{"name":"demo"},"spec":[]}`, "spec: found a list; allowed: a mapping"},
		{"metadata is text", `{"metadata":"demo"}`, `metadata: found the text "demo"; allowed: a mapping`},
		{"nothing", ``, "found something that is no mapping"},
		{"a list", `[]`, "found something that is no mapping; allowed: one AetherCluster"},
		{"two of them", `{"metadata":{"name":"demo"}} {}`, "found more behind its end"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := domain.ParseTenant([]byte(test.document))
			if err == nil {
				t.Fatalf("got %+v", got)
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %q, want %q in it", err, test.want)
			}
		})
	}
	// All at once, each its own problem.
	_, err := domain.ParseTenant([]byte(`{"metadata":{"name":"demo","x":1},"spec":{"y":2,"pools":[{"z":3}]}}`))
	var problems domain.Problems
	if !errors.As(err, &problems) || len(problems) != 3 {
		t.Errorf("got %d problems: %v", len(problems), err)
	}
}

func TestShown(t *testing.T) {
	for _, test := range []struct {
		value any
		want  string
	}{
		{"", "nothing"},
		{"a", `"a"`},
		{"a\nb", `"a\nb"`},
		{7, "7"},
		{int32(-1), "-1"},
		{true, "true"},
		{strings.Repeat("é", 81), `"` + strings.Repeat("é", 80) + `…"`},
	} {
		if got := domain.Shown(test.value); got != test.want {
			t.Errorf("%v: got %s, want %s", test.value, got, test.want)
		}
	}
}
