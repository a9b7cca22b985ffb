package command

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"aether.internal/aether/internal/config"
)

// streams are where a command reads and writes.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// Run runs the command line and returns the exit code.
func Run(ctx context.Context, args []string, in io.Reader, out, problems io.Writer) int {
	root := newRoot(streams{in: in, out: out, err: problems})
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(problems, "aether:", err) //nolint:errcheck // nowhere left to say it
		return 1
	}
	return 0
}

func newRoot(s streams) *cobra.Command {
	options := &config.Options{}
	root := &cobra.Command{
		Use:           "aether",
		Short:         "Managed Kubernetes on Proxmox VE",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	options.Bind(root.PersistentFlags())
	root.AddCommand(newTenant(s, options), newPool(s, options), newServe(options))
	return root
}
