package world

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"aether.internal/aether/lab/upstream"
)

// TestSpeed is the usual speed of the lab in tests.
const TestSpeed = 50

// FromCheckout returns options with everything a checkout has: the upstream
// programs, built if they are not yet, and the product's binaries in build/bin.
// Dir is for the caller to set.
func FromCheckout(ctx context.Context, out io.Writer, speed float64) (Options, error) {
	builder, err := upstream.FromEnvironment(os.Getenv)
	if err != nil {
		return Options{}, err
	}
	paths, err := builder.Ensure(ctx, out, upstream.Names()...)
	if err != nil {
		return Options{}, err
	}
	manifests, err := builder.CAPIManifests(ctx)
	if err != nil {
		return Options{}, fmt.Errorf("manifests of Cluster API core: %w", err)
	}
	return Options{
		Source: builder.Source, Speed: speed, Programs: paths, CAPI: manifests,
		Product: filepath.Join(builder.Source, "build", "bin"), Out: out,
	}, nil
}
