// Command worker hosts Aether's workflows and activities.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"aether.internal/aether/internal/config"
	"aether.internal/aether/internal/telemetry"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var options config.Options
	var serving telemetry.Options
	var concurrency int
	command := &cobra.Command{
		Use:           "worker",
		Short:         "Host Aether's workflows and activities",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), options, serving, concurrency)
		},
	}
	options.Bind(command.Flags())
	serving.Bind(command.Flags())
	command.Flags().IntVar(&concurrency, "concurrency", 100, "activities at once in this process")
	if err := command.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}
