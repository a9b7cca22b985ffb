package cilium_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/namespace"
	"aether.internal/aether/lab/programs"
	"aether.internal/aether/lab/upstream"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if code, ok := namespace.Init(); ok {
		return code
	}
	if len(os.Args) == 2 && os.Args[1] == container.Command {
		return container.Main(os.Args[2:])
	}
	if name := filepath.Base(os.Args[0]); programs.Has(name) {
		return programs.Main(name, os.Args[1:])
	}
	if !namespace.Inside() {
		if err := upstream.Share(context.Background(), os.Stderr, upstream.Kubernetes); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return namespace.RunTests(m)
}
