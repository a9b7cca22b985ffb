package envoyvm_test

import (
	"os"
	"path"
	"testing"

	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/envoy"
	"aether.internal/aether/lab/namespace"
)

// The test binary stands for the lab's multi-call program.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == container.Command:
		os.Exit(container.Main(os.Args[2:]))
	case path.Base(os.Args[0]) == "envoy":
		os.Exit(envoy.Main(os.Args))
	}
	os.Exit(namespace.RunTests(m))
}
