package world

import (
	"os"
	"path/filepath"

	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/envoy"
	"aether.internal/aether/lab/namespace"
	"aether.internal/aether/lab/programs"
)

// envoyProgram is the name by which a proxy VM calls the stand-in for Envoy.
const envoyProgram = "envoy"

// Dispatch runs what this program was started as, if that is not its main:
// the first process of the namespaces, process 1 of a container, or one of the
// small programs in containers. A main calls it before all else and exits with
// the code when it returns true.
func Dispatch() (code int, ok bool) {
	if code, ok := namespace.Init(); ok {
		return code, true
	}
	name := filepath.Base(os.Args[0])
	switch {
	case name == envoyProgram:
		return envoy.Main(os.Args), true
	case programs.Has(name):
		return programs.Main(name, os.Args[1:]), true
	case len(os.Args) > 1 && os.Args[1] == container.Command:
		return container.Main(os.Args[2:]), true
	}
	return 0, false
}

// tests is a *testing.M; named here so that programs do not link the testing
// package.
type tests interface{ Run() int }

// RunTests runs a package's tests inside the lab's namespaces, where Start can
// be called:
//
//	func TestMain(m *testing.M) { os.Exit(world.RunTests(m)) }
func RunTests(m tests) int {
	if code, ok := Dispatch(); ok {
		return code
	}
	return namespace.RunTests(m)
}
