package proxmox

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aether.internal/aether/lab/proxmox/schema"
)

func TestEachRouteHasItsFacts(t *testing.T) {
	facts, err := schema.Load()
	if err != nil {
		t.Fatal(err)
	}
	var known, served []string
	for _, c := range facts.Calls() {
		known = append(known, c.Verb+" "+c.Path)
	}
	for key := range routes() {
		served = append(served, key)
	}
	slices.Sort(known)
	slices.Sort(served)
	if diff := cmp.Diff(known, served); diff != "" {
		t.Error("schema.json (-) and routes (+) differ:\n" + diff)
	}
}
