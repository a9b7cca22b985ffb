package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"aether.internal/aether/lab/upstream"
	"aether.internal/aether/lab/world/control"
)

// exitError carries the exit code of a program that was run for the user, who
// has seen what it said.
type exitError struct{ code int }

// Error tells the code.
func (e *exitError) Error() string { return fmt.Sprintf("exit status %d", e.code) }

// Execute runs the command line and returns its exit code.
func Execute(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var exit *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.code
	default:
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 1
	}
}

// lab is what all commands share.
type lab struct {
	state string
}

func newRoot() *cobra.Command {
	l := &lab{}
	root := &cobra.Command{
		Use:   "lab",
		Short: "The whole platform on one Linux machine",
		Long: `The lab runs Aether on a simulated site: two Proxmox hosts, Talos machines,
registries, a management cluster and Temporal, on networks of its own.
It needs Linux, and root or unprivileged user namespaces. All that it starts
ends with it.`,
		SilenceUsage: true, SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&l.state, "state", defaultState(), "folder with the lab's logs, files and sockets")
	root.AddCommand(
		l.buildCommand(), l.upCommand(), l.downCommand(), l.statusCommand(), l.faultsCommand(), l.execCommand(), l.componentCommand(),
		l.hostCommand(), l.secretsCommand(), l.floorCommand(), l.proxmoxCommand(), l.demoCommand(), l.historiesCommand(), l.benchCommand(), l.worldCommand(),
	)
	return root
}

// defaultState is build/lab of the checkout.
func defaultState() string {
	builder, err := upstream.FromEnvironment(os.Getenv)
	if err != nil {
		return filepath.Join("build", "lab")
	}
	return filepath.Join(builder.Source, "build", "lab")
}

// client asks the lab of the state folder.
func (l *lab) client() (*control.Client, error) {
	dir, err := filepath.Abs(l.state)
	if err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	return control.NewClient(dir), nil
}

// printf writes for a person; nothing can be done when the terminal is gone.
func printf(out io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(out, format, args...)
}
