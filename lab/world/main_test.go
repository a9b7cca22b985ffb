package world_test

import (
	"os"
	"testing"

	"aether.internal/aether/lab/world"
)

func TestMain(m *testing.M) { os.Exit(world.RunTests(m)) }
