package command

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"aether.internal/aether/lab/upstream"
)

// buildCommand builds what tests and the lab start, so that no test has to
// wait for it inside its own time-out.
func (l *lab) buildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build",
		Short: "Build the upstream programs that are not in the cache yet, and the product",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return buildAll(cmd.Context(), cmd.OutOrStdout())
		},
	}
}

func buildAll(ctx context.Context, out io.Writer) error {
	builder, err := upstream.FromEnvironment(os.Getenv)
	if err != nil {
		return err
	}
	_, err = builder.Ensure(ctx, out, upstream.Kubernetes, upstream.CAPI, upstream.KonnectivityServer, upstream.KonnectivityAgent, upstream.Temporal)
	if err != nil {
		return err
	}
	return buildProduct(ctx, out)
}
