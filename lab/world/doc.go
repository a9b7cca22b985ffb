// Package world assembles the lab: it starts the simulated site, the upstream
// programs and the product in order of their needs, watches over them, and
// ends them.
//
// A World lives in one process inside the lab's namespaces. Each part has a
// name, a log file of its own under <state>/logs and, where it makes sense, can
// be killed and started again. A part that ends by itself ends the world, with
// the last lines of its log as the reason.
//
// Tests start a World in their own process:
//
//	func TestMain(m *testing.M) { os.Exit(world.RunTests(m)) }
//
// The package only assembles. What the parts do is told in their own packages;
// the command line is in lab/command.
package world
