package command

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"aether.internal/aether/lab/faults"
)

func (l *lab) faultsCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "faults", Short: "Make the lab fail, by kind, place and count"}
	cmd.AddCommand(l.faultsListCommand(), l.faultsInjectCommand(), l.faultsClearCommand())
	return cmd
}

func (l *lab) faultsListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the faults in force", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := l.client()
			if err != nil {
				return err
			}
			list, err := client.Faults(cmd.Context())
			if err != nil {
				return err
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			printf(table, "ID\tKIND\tPLACE\tCOUNT\tHITS\tDETAIL\n")
			for _, f := range list {
				count := "until cleared"
				if f.Count > 0 {
					count = fmt.Sprint(f.Count)
				}
				printf(table, "%s\t%s\t%s\t%s\t%d\t%s\n", f.ID, f.Kind, f.Place, count, f.Hits, detail(f))
			}
			return table.Flush()
		},
	}
}

func detail(f faults.Fault) string {
	switch {
	case f.Status != 0:
		return fmt.Sprintf("%d %s", f.Status, f.Message)
	case f.Delay != 0:
		return f.Delay.String()
	default:
		return f.Message
	}
}

func (l *lab) faultsInjectCommand() *cobra.Command {
	var f faults.Fault
	cmd := &cobra.Command{
		Use:   "inject <kind> <place>",
		Short: "Put a fault in force",
		Long: fmt.Sprintf(`Put a fault in force and print its ID.

Kinds: %v.
Places are path patterns, where * stands for one segment. Each simulator says in
its documentation what places it has; some are:
  pve/POST/nodes/*/qemu/*/clone   a call of the Proxmox API
  pve/quorum                      no-quorum
  pve/agent/<vmid>                no-agent
  talos/<vm>/ApplyConfiguration   a call of a machine in maintenance mode
  kamaji/manager                  away`, faults.Kinds()),
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Kind, f.Place = faults.Kind(args[0]), args[1]
			client, err := l.client()
			if err != nil {
				return err
			}
			id, err := client.Inject(cmd.Context(), f)
			if err != nil {
				return err
			}
			printf(cmd.OutOrStdout(), "%s\n", id)
			return nil
		},
	}
	cmd.Flags().IntVar(&f.Count, "count", 0, "how many times; 0 is until it is cleared")
	cmd.Flags().IntVar(&f.Skip, "skip", 0, "how many matching calls pass first")
	cmd.Flags().IntVar(&f.Status, "status", 0, "HTTP status of http-status")
	cmd.Flags().StringVar(&f.Message, "message", "", "status text, or exit status of failed-task")
	cmd.Flags().DurationVar(&f.Delay, "delay", 0, "time of delay")
	return cmd
}

func (l *lab) faultsClearCommand() *cobra.Command {
	return &cobra.Command{
		Use: "clear [id]", Short: "Lift a fault, or all", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := l.client()
			if err != nil {
				return err
			}
			id := ""
			if len(args) > 0 {
				id = args[0]
			}
			n, err := client.Clear(cmd.Context(), id)
			if err != nil {
				return err
			}
			printf(cmd.OutOrStdout(), "cleared %d\n", n)
			return nil
		},
	}
}
