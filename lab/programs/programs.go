package programs

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"aether.internal/aether/lab/programs/cilium"
	"aether.internal/aether/lab/programs/coredns"
)

// program is the main of one of them. It ends when the context does.
type program func(ctx context.Context, args []string, log *slog.Logger) error

// table lists all programs by the name they are called by.
func table() map[string]program {
	return map[string]program{
		"pause":                   pause,
		"agnhost":                 agnhost,
		"nginx":                   nginx,
		"coredns":                 coredns.Run,
		"cilium-dbg":              cilium.Debug,
		"cilium-agent":            cilium.Agent,
		"cilium-operator-generic": cilium.Operator,
		"cilium-envoy-starter":    cilium.Envoy,
		"cilium-sysctlfix":        cilium.SysctlFix,
		"cilium-mount":            cilium.MountBPF,
		"init-container.sh":       cilium.CleanState,
		"install-plugin.sh":       cilium.InstallPlugin,
	}
}

// Names lists the names that Main knows, sorted.
func Names() []string {
	names := []string{"toybox"}
	for name := range table() {
		names = append(names, name)
	}
	for name := range tools() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Has tells whether Main knows a name: a binary that is called by it should do
// nothing but call Main.
func Has(name string) bool { return slices.Contains(Names(), name) }

// Main runs the program of that name with the arguments that follow its own
// name, and returns the exit code.
func Main(name string, args []string) int {
	if name == "toybox" {
		if len(args) == 0 {
			fmt.Fprintf(os.Stderr, "toybox: give one of %v\n", sortedTools())
			return 2
		}
		name, args = args[0], args[1:]
	}
	if tool, ok := tools()[name]; ok {
		return tool(args, stdio{os.Stdin, os.Stdout, os.Stderr})
	}
	run, ok := table()[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "%s: no such program; there are %v\n", name, Names())
		return 127
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(ctx, args, log); err != nil && ctx.Err() == nil {
		log.Error(name+" failed", "error", err)
		return 1
	}
	return 0
}

// pause holds a pod's namespaces and does nothing.
func pause(ctx context.Context, _ []string, _ *slog.Logger) error {
	<-ctx.Done()
	return nil
}
