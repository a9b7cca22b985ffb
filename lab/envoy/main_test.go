package envoy

import (
	"os"
	"testing"

	"aether.internal/aether/lab/namespace"
)

// The tests bind the real ports, in a network of their own.
func TestMain(m *testing.M) { os.Exit(namespace.RunTests(m)) }
