package command

import (
	"context"
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"aether.internal/aether/lab/namespace"
	"aether.internal/aether/lab/world"
)

var errOutside = errors.New("`lab world` runs inside the lab's namespaces only; use `lab up`")

// worldCommand is what `lab up` runs inside the namespaces.
func (l *lab) worldCommand() *cobra.Command {
	return &cobra.Command{
		Use: "world", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !namespace.Inside() {
				return errOutside
			}
			opts, err := world.LoadOptions(l.state)
			if err != nil {
				return err
			}
			opts.Out = cmd.OutOrStdout()
			opts.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			return runWorld(cmd.Context(), opts)
		},
	}
}

func runWorld(ctx context.Context, opts world.Options) error {
	w, err := world.Start(ctx, opts)
	if err != nil {
		return err
	}
	return errors.Join(w.Wait(), w.Stop())
}
