package command

import (
	"context"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"aether.internal/aether/lab/histories"
	"aether.internal/aether/lab/operator"
	"aether.internal/aether/lab/world"
	"aether.internal/aether/lab/world/control"
)

// recordingTime is ample for all scenes on a slow machine.
const recordingTime = 30 * time.Minute

func (l *lab) historiesCommand() *cobra.Command {
	s := session{speed: world.TestSpeed}
	options := histories.Options{}
	cmd := &cobra.Command{
		Use:   "histories",
		Short: "Record the histories that the replay tests lack, in a lab of its own",
		Long: `Starts a lab, makes runs of every kind (completed, failed, cancelled, retried),
and adds to workflows/testdata/histories what is missing there. What is there
stays. After a change of a workflow that has run somewhere, --suffix records
its new histories beside the old ones.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.state, s.out, options.Out = l.state, cmd.OutOrStdout(), cmd.OutOrStdout()
			if err := buildProduct(cmd.Context(), s.out); err != nil {
				return err
			}
			opts, err := s.prepare(cmd.Context())
			if err != nil {
				return err
			}
			options.Dir = filepath.Join(opts.Source, "workflows", "testdata", "histories")
			options.Key = filepath.Join(options.Dir, "codec-key")
			missing, err := options.Missing()
			if err != nil {
				return err
			}
			if len(missing) == 0 {
				printf(s.out, "histories: all %d are in %s; delete one, or give --suffix, to record anew\n", len(histories.Cases()), options.Dir)
				return nil
			}
			return s.up(cmd.Context(), func(ctx context.Context, client *control.Client, status control.Status) error {
				ctx, cancel := context.WithTimeout(ctx, recordingTime)
				defer cancel()
				o, err := operator.Connect(ctx, client, status)
				if err != nil {
					return err
				}
				defer o.Close()
				return histories.Record(ctx, o, options)
			})
		},
	}
	s.bind(cmd)
	cmd.Flags().StringVar(&options.Suffix, "suffix", "", "added to the names of what is recorded, as -v2")
	return cmd
}
