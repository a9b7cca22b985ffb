package command

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"aether.internal/aether/lab/proxmox"
	"aether.internal/aether/lab/world/control"
)

func (l *lab) execCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "exec -- <command> [arguments]",
		Short: "Run a command in the platform's network",
		Long: `Run a command in the platform's network, with the environment in which the
product's command line finds the management cluster, Temporal and the site file:

  lab exec -- build/bin/starter tenant list`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := l.client()
			if err != nil {
				return err
			}
			dir, err := os.Getwd()
			if err != nil {
				return fmt.Errorf("working folder: %w", err)
			}
			code, err := client.Exec(cmd.Context(), control.Command{Args: args, Dir: dir}, [3]*os.File{os.Stdin, os.Stdout, os.Stderr})
			if err != nil {
				return err
			}
			if code != 0 {
				return &exitError{code}
			}
			return nil
		},
	}
}

func (l *lab) componentCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "component", Short: "Kill or restart a part of the lab"}
	cmd.AddCommand(
		&cobra.Command{
			Use: "kill <name>", Short: "End it as a crash would; it stays away until it is restarted", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				client, err := l.client()
				if err != nil {
					return err
				}
				return client.Kill(cmd.Context(), args[0])
			},
		},
		&cobra.Command{
			Use: "restart <name>", Short: "Start it again and wait until it is ready", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				client, err := l.client()
				if err != nil {
					return err
				}
				return client.Restart(cmd.Context(), args[0])
			},
		},
	)
	return cmd
}

// errSwitch is the answer for a wrong position of a host's switch.
var errSwitch = errors.New("allowed are off and on")

func (l *lab) hostCommand() *cobra.Command {
	return &cobra.Command{
		Use: "host <name> off|on", Short: "Cut the power of a Proxmox host, or give it back", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[1] != "on" && args[1] != "off" {
				return fmt.Errorf("switch: found %q: %w", args[1], errSwitch)
			}
			client, err := l.client()
			if err != nil {
				return err
			}
			return client.SetHost(cmd.Context(), args[0], args[1] == "on")
		},
	}
}

func (l *lab) secretsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "secrets", Short: "Print every secret the lab issued, as JSON, for a search where none may be", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := l.client()
			if err != nil {
				return err
			}
			secrets, err := client.Secrets(cmd.Context())
			if err != nil {
				return err
			}
			return printJSON(cmd.OutOrStdout(), secrets)
		},
	}
}

func (l *lab) floorCommand() *cobra.Command {
	r := control.FloorRequest{Workers: 1, Hosts: 2}
	cmd := &cobra.Command{
		Use: "floor", Short: "Compute the least time that joining workers can take here", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := l.client()
			if err != nil {
				return err
			}
			floor, err := client.Floor(cmd.Context(), r)
			if err != nil {
				return err
			}
			return printJSON(cmd.OutOrStdout(), floor)
		},
	}
	cmd.Flags().IntVar(&r.Workers, "workers", r.Workers, "how many workers")
	cmd.Flags().IntVar(&r.Hosts, "hosts", r.Hosts, "over how many hosts")
	cmd.Flags().BoolVar(&r.Tenant, "tenant", false, "with the tenant's proxy and control plane")
	return cmd
}

func (l *lab) proxmoxCommand() *cobra.Command {
	opts := proxmox.StandaloneOptions{Listen: "127.0.0.1:8006", Speed: 1}
	cmd := &cobra.Command{
		Use: "proxmox", Short: "Run the Proxmox simulator alone, for any client", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.Out = cmd.OutOrStdout()
			return proxmox.RunStandalone(cmd.Context(), opts)
		},
	}
	cmd.Flags().StringVar(&opts.Listen, "listen", opts.Listen, "address of the first host's API; the second has the next port")
	cmd.Flags().Float64Var(&opts.Speed, "speed", opts.Speed, "how many times faster than hardware")
	return cmd
}
