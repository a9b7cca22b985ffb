package command

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"aether.internal/aether/lab/world/control"
)

func (l *lab) statusCommand() *cobra.Command {
	output := ""
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what runs, where, and since when",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := l.client()
			if err != nil {
				return err
			}
			status, err := client.Status(cmd.Context())
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), status)
			}
			return printStatus(cmd.OutOrStdout(), status)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

func printStatus(out io.Writer, s control.Status) error {
	state := "starting"
	if s.Ready {
		state = "ready"
	}
	printf(out, "%s for %s, speed %g\n\n", state, time.Since(s.Started).Round(time.Second), s.Speed)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	printf(table, "COMPONENT\tSTATE\tPID\tMEMORY\tSINCE\tADDRESS\n")
	for _, c := range s.Components {
		pid, memory := "-", "-"
		if c.PID != 0 {
			pid, memory = fmt.Sprint(c.PID), fmt.Sprintf("%d MiB", c.ResidentBytes>>20)
		}
		printf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", c.Name, c.State, pid, memory, time.Since(c.Since).Round(time.Second), c.Address)
	}
	printf(table, "\nOUTSIDE\tADDRESS\n")
	for _, name := range slices.Sorted(maps.Keys(s.Addresses)) {
		printf(table, "%s\t%s\n", name, s.Addresses[name])
	}
	printf(table, "\nkubeconfig\t%s\nsite\t%s\nlogs\t%s\n", s.Kubeconfig, s.Site, s.Logs)
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

func printJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
