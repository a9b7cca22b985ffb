package capicore_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"aether.internal/aether/lab/namespace"
	"aether.internal/aether/lab/upstream"
)

// The tests run in namespaces, which end what they started whatever happens.
func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if code, ok := namespace.Init(); ok {
		return code
	}
	if ctx := context.Background(); !namespace.Inside() {
		if err := upstream.Share(ctx, os.Stderr, upstream.Kubernetes, upstream.CAPI); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if _, err := upstream.EnsureCAPIManifests(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return namespace.RunTests(m)
}
