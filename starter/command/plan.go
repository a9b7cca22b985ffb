package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"aether.internal/aether/activities"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/internal/mirror"
	"aether.internal/aether/internal/plan"
	"aether.internal/aether/internal/siteclients"
)

func newTenantPlan(p *program) *cobra.Command {
	var file string
	var output *format
	var change bool
	command := &cobra.Command{
		Use: "plan -f FILE", Short: "Print what would be made, with every check, and change nothing", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			tenant, err := readTenant(p.streams, file)
			if err != nil {
				return err
			}
			return printPlan(cmd.Context(), p, tenant, change, *output)
		},
	}
	command.Flags().StringVarP(&file, "file", "f", "", "tenant file, or - for standard input")
	output = outputFlag(command, "table, json or yaml")
	command.Flags().BoolVar(&change, "change", false, "plan the change of a tenant that exists")
	return command
}

// errRefused ends a command whose plan has a failed check.
var errRefused = errors.New("the tenant cannot be made as asked for: see the checks that FAILED and what to do")

func printPlan(ctx context.Context, p *program, tenant domain.Tenant, change bool, output format) error {
	planner, err := newPlanner(p)
	if err != nil {
		return err
	}
	_, made, err := planner.Plan(ctx, activities.PlanTenantInput{Tenant: tenant, Change: change})
	if err != nil {
		return err
	}
	if output == asTable {
		err = printPlanTables(p.out, made)
	} else {
		err = show(p.out, output, made, table{})
	}
	if err != nil {
		return err
	}
	if !made.Accepted() {
		return errRefused
	}
	return nil
}

func newPlanner(p *program) (*activities.Planner, error) {
	site, err := p.options.LoadSite()
	if err != nil {
		return nil, err
	}
	kube, err := p.kube()
	if err != nil {
		return nil, err
	}
	images, err := mirror.New(site)
	if err != nil {
		return nil, err
	}
	clients := siteclients.New(site, kube, slog.New(slog.DiscardHandler))
	return &activities.Planner{
		Platform: activities.Platform{Kube: kube, Site: site, Proxmox: clients.Proxmox}, Leases: lease.New(kube), Images: images,
	}, nil
}

func printPlanTables(out io.Writer, made plan.Plan) error {
	v := made.Versions
	if _, err := fmt.Fprintf(out, "tenant %s: Kubernetes %s, Talos %s, Cilium %s, CoreDNS %s, konnectivity %s\n\n", made.Tenant, v.Kubernetes, v.Talos, v.Cilium, v.CoreDNS, v.Konnectivity); err != nil {
		return err
	}
	vms := table{head: []string{"VM", "ROLE", "HOST", "VMIDS", "CORES", "MEMORY", "DISK", "STORAGE", "NICS"}}
	for _, vm := range made.VMs {
		var nics []string
		for _, nic := range vm.NICs {
			bridge := nic.Bridge
			if nic.VLAN != 0 {
				bridge += fmt.Sprintf(".%d", nic.VLAN)
			}
			nics = append(nics, fmt.Sprintf("%s on %s (%s)", nic.Network, bridge, nic.Addresses))
		}
		disk := "template's"
		if vm.DiskGiB > 0 {
			disk = fmt.Sprintf("%d GiB", vm.DiskGiB)
		}
		vms.rows = append(vms.rows, []string{
			vm.Name, vm.Role, vm.Host, vm.VMIDs, fmt.Sprint(vm.Cores), fmt.Sprintf("%d MiB", vm.MemoryMiB), disk, vm.Storage, strings.Join(nics, ", "),
		})
	}
	if err := vms.write(out); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	checks := table{head: []string{"CHECK", "RESULT", "FOUND", "NEEDED", "WHAT TO DO"}}
	for _, c := range made.Checks {
		result := "ok"
		if !c.Passed {
			result = "FAILED"
		}
		checks.rows = append(checks.rows, []string{c.Name, result, c.Found, c.Needed, c.Do})
	}
	return checks.write(out)
}
