package network_test

import (
	"os"
	"testing"

	"aether.internal/aether/lab/namespace"
)

func TestMain(m *testing.M) { os.Exit(namespace.RunTests(m)) }
