package command

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/internal/config"
)

// streams are where a command reads and writes.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// program is what the commands have in common: where they read and write, and
// how they reach what they work with.
type program struct {
	streams
	options *config.Options
	// kube opens the management cluster.
	kube func() (kubeclient.WithWatch, error)
	// temporal opens Temporal.
	temporal func(context.Context) (*temporal, error)
}

// Run runs the command line and returns the exit code.
func Run(ctx context.Context, args []string, in io.Reader, out, problems io.Writer) int {
	return newProgram(streams{in: in, out: out, err: problems}).run(ctx, args)
}

// newProgram returns a program that reaches what its flags name.
func newProgram(s streams) *program {
	p := &program{streams: s, options: &config.Options{}}
	p.kube = func() (kubeclient.WithWatch, error) { return openKube(p.options) }
	p.temporal = func(ctx context.Context) (*temporal, error) { return openTemporal(ctx, p.options) }
	return p
}

func (p *program) run(ctx context.Context, args []string) int {
	root := newRoot(p)
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(p.err, "aether:", err) //nolint:errcheck // nowhere left to say it
		return 1
	}
	return 0
}

// group makes a command that only holds others say so when it is given a name
// that is none of theirs; by itself it would show its help and succeed.
func group(command *cobra.Command) *cobra.Command {
	command.Args = cobra.NoArgs
	command.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return command
}

func newRoot(p *program) *cobra.Command {
	root := &cobra.Command{
		Use:           "aether",
		Short:         "Managed Kubernetes on Proxmox VE",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetIn(p.in)
	root.SetOut(p.out)
	root.SetErr(p.err)
	p.options.Bind(root.PersistentFlags())
	root.AddCommand(newTenant(p), newPool(p), newServe(p.options))
	return root
}
