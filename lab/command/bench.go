package command

import (
	"context"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"aether.internal/aether/lab/bench"
	"aether.internal/aether/lab/operator"
	"aether.internal/aether/lab/world/control"
)

// benchTime is ample for all joins on a slow machine at speed 1.
const benchTime = 30 * time.Minute

func (l *lab) benchCommand() *cobra.Command {
	s := session{speed: 1}
	out := ""
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure one join and ten at once, in a lab of its own",
		Long: `Starts a lab, makes a tenant, measures how long one worker takes to join and
how long ten at once on two hosts take, and writes the numbers with the least
time that the lab allows, and the machine's load, to a file.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.state, s.out = l.state, cmd.OutOrStdout()
			if err := buildProduct(cmd.Context(), s.out); err != nil {
				return err
			}
			opts, err := s.prepare(cmd.Context())
			if err != nil {
				return err
			}
			if out == "" {
				out = filepath.Join(opts.Source, "build", "bench.json")
			}
			return s.up(cmd.Context(), func(ctx context.Context, client *control.Client, status control.Status) error {
				ctx, cancel := context.WithTimeout(ctx, benchTime)
				defer cancel()
				o, err := operator.Connect(ctx, client, status)
				if err != nil {
					return err
				}
				defer o.Close()
				report, err := bench.Run(ctx, o, s.speed, s.out)
				if err != nil {
					return err
				}
				if err := report.Write(out); err != nil {
					return err
				}
				printf(s.out, "bench: join_1  %s\nbench: join_10 %s\nbench: written to %s\n", report.Join1.Line(), report.Join10.Line(), out)
				return nil
			})
		},
	}
	s.bind(cmd)
	cmd.Flags().StringVar(&out, "out", "", "file to write (default build/bench.json of the checkout)")
	return cmd
}
