package command

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/activities"
	"aether.internal/aether/internal/capi"
	"aether.internal/aether/internal/config"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/internal/mirror"
	"aether.internal/aether/internal/plan"
	"aether.internal/aether/internal/siteclients"
)

func newTenantPlan(s streams, options *config.Options) *cobra.Command {
	var file, output string
	var change bool
	command := &cobra.Command{
		Use: "plan -f FILE", Short: "Print what would be made, with every check, and change nothing", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			tenant, err := readTenant(s, file)
			if err != nil {
				return err
			}
			return printPlan(cmd.Context(), s, options, tenant, change, output)
		},
	}
	command.Flags().StringVarP(&file, "file", "f", "", "tenant file, or - for standard input")
	command.Flags().StringVarP(&output, "output", "o", "table", "table, json or yaml")
	command.Flags().BoolVar(&change, "change", false, "plan the change of a tenant that exists")
	return command
}

// errRefused ends a command whose plan has a failed check.
var errRefused = fmt.Errorf("the tenant cannot be made as asked for")

func printPlan(ctx context.Context, s streams, options *config.Options, tenant domain.Tenant, change bool, output string) error {
	planner, err := newPlanner(options)
	if err != nil {
		return err
	}
	_, made, err := planner.Plan(ctx, activities.PlanTenantInput{Tenant: tenant, Change: change})
	if err != nil {
		return err
	}
	if output == "table" || output == "" {
		err = printPlanTables(s, made)
	} else {
		err = show(s.out, output, made, table{})
	}
	if err != nil {
		return err
	}
	if !made.Accepted() {
		return errRefused
	}
	return nil
}

func newPlanner(options *config.Options) (*activities.Planner, error) {
	site, err := options.LoadSite()
	if err != nil {
		return nil, err
	}
	restConfig, err := options.RestConfig()
	if err != nil {
		return nil, err
	}
	scheme, err := capi.Scheme()
	if err != nil {
		return nil, err
	}
	kube, err := kubeclient.NewWithWatch(restConfig, kubeclient.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("management cluster: %w", err)
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

func printPlanTables(s streams, p plan.Plan) error {
	v := p.Versions
	if _, err := fmt.Fprintf(s.out, "tenant %s: Kubernetes %s, Talos %s, Cilium %s, CoreDNS %s, konnectivity %s\n\n", p.Tenant, v.Kubernetes, v.Talos, v.Cilium, v.CoreDNS, v.Konnectivity); err != nil {
		return err
	}
	vms := table{head: []string{"VM", "ROLE", "HOST", "VMIDS", "CORES", "MEMORY", "DISK", "STORAGE", "NICS"}}
	for _, vm := range p.VMs {
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
	if err := vms.write(s.out); err != nil {
		return err
	}
	checks := table{head: []string{"\nCHECK", "RESULT", "FOUND", "NEEDED", "WHAT TO DO"}}
	for _, c := range p.Checks {
		result := "ok"
		if !c.Passed {
			result = "FAILED"
		}
		checks.rows = append(checks.rows, []string{c.Name, result, c.Found, c.Needed, c.Do})
	}
	return checks.write(s.out)
}
