// Command lab is the whole platform on one Linux machine: a simulated site,
// the upstream programs, and the product, in namespaces of their own.
package main

import (
	"os"

	"aether.internal/aether/lab/command"
	"aether.internal/aether/lab/world"
)

func main() {
	if code, ok := world.Dispatch(); ok {
		os.Exit(code)
	}
	os.Exit(command.Execute(os.Args[1:]))
}
