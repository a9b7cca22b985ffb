package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/lease"
)

// One checks that a tenant that stands has exactly one of each thing: per
// machine a VM, its leases, its reservation and, for a worker, its Node; no
// token and no medium; one release of Cilium.
func (l *Lab) One(ctx context.Context, tenant string, wantWorkers int) error {
	list := &v1alpha1.AetherVMList{}
	if err := l.Kube.List(ctx, list, kubeclient.InNamespace(domain.SystemNamespace), kubeclient.MatchingLabels{domain.TenantLabel: tenant}); err != nil {
		return fmt.Errorf("list AetherVMs: %w", err)
	}
	var errs []error
	workers := 0
	nodes := map[string]bool{}
	for i := range list.Items {
		vm := &list.Items[i]
		if vm.Spec.Role == v1alpha1.RoleWorker {
			workers++
			nodes[vm.Spec.VMName] = true
		}
		errs = append(errs, l.oneMachine(ctx, vm))
	}
	errs = append(errs,
		equal("workers", workers, wantWorkers), equal("proxies", len(list.Items)-workers, 1),
		equal("VMs of the tenant", l.tagged(tenant), len(list.Items)))
	reservations, err := l.reservations(ctx, func(r lease.Reservation) bool { return r.Tenant == tenant })
	errs = append(errs, err, equal("reservations of the tenant", reservations, len(list.Items)))
	held, err := l.Leases.Held(ctx, "tenant."+tenant)
	errs = append(errs, err, equal("addresses of the tenant itself", len(held), 1), l.oneCluster(ctx, tenant, nodes))
	return errors.Join(errs...)
}

func equal(what string, got, want int) error {
	if got == want {
		return nil
	}
	return fmt.Errorf("%s: there are %d, want %d", what, got, want)
}

func (l *Lab) oneMachine(ctx context.Context, vm *v1alpha1.AetherVM) error {
	found := l.vmOf(vm.Name)
	errs := []error{equal("VMs of machine "+vm.Name, len(found), 1)}
	for _, f := range found {
		errs = append(errs, equal("VMID of machine "+vm.Name, f.VMID, int(vm.Spec.VMID)))
	}
	held, err := l.Leases.Held(ctx, vm.Name)
	vmids, addresses := 0, 0
	for _, h := range held {
		if h.Kind == "vmid" {
			vmids++
		} else {
			addresses++
		}
	}
	want := len(vm.Spec.NICs)
	if vm.Spec.Role == v1alpha1.RoleProxy {
		want-- // the tenant itself holds that of the front
	}
	reservations, reserveErr := l.reservations(ctx, func(r lease.Reservation) bool { return r.Machine == vm.Name })
	return errors.Join(append(errs, err, reserveErr,
		equal("VMIDs leased to machine "+vm.Name, vmids, 1),
		equal("addresses leased to machine "+vm.Name, addresses, want),
		equal("reservations of machine "+vm.Name, reservations, 1))...)
}

// tagged counts the VMs with a tenant's tag.
func (l *Lab) tagged(tenant string) int {
	n := 0
	for _, vm := range l.World.Proxmox.VMs() {
		for _, tag := range vm.Tags {
			if tag == "tenant-"+tenant && !vm.Template {
				n++
			}
		}
	}
	return n
}

func (l *Lab) reservations(ctx context.Context, which func(lease.Reservation) bool) (int, error) {
	n := 0
	for _, cluster := range l.Site.Spec.Proxmox {
		for _, host := range cluster.Hosts {
			book, err := l.Leases.Ledger(ctx, lease.Host{Cluster: cluster.Name, Name: host.Name})
			if err != nil {
				return 0, err
			}
			for _, r := range book {
				if which(r) {
					n++
				}
			}
		}
	}
	return n, nil
}

// oneCluster looks into the tenant's cluster and onto the storages.
func (l *Lab) oneCluster(ctx context.Context, tenant string, nodes map[string]bool) error {
	i := Inventory{}
	if err := l.takeTenant(ctx, tenant, i); err != nil {
		return err
	}
	var errs []error
	releases, seen := 0, 0
	for line := range i {
		switch kind, _, _ := strings.Cut(line, " "); kind {
		case "token", "proof":
			errs = append(errs, fmt.Errorf("still there: %s", line))
		case "release":
			releases++
			if !strings.HasPrefix(line, "release deployed ") {
				errs = append(errs, fmt.Errorf("not deployed: %s", line))
			}
		case "Node":
			seen++
			if name := strings.Fields(line)[1]; !nodes[name] {
				errs = append(errs, fmt.Errorf("Node %s is no machine's", name))
			}
		}
	}
	for _, cluster := range l.Site.Spec.Proxmox {
		for _, host := range cluster.Hosts {
			for _, volume := range l.World.Proxmox.Volumes(host.Name) {
				if strings.Contains(volume, ":iso/") && strings.Contains(volume, "aether") {
					errs = append(errs, fmt.Errorf("medium %s is left on %s", volume, host.Name))
				}
			}
		}
	}
	return errors.Join(append(errs, equal("releases", releases, 1), equal("nodes", seen, len(nodes)), l.providerIDs(ctx, tenant))...)
}

// providerIDs checks that no two nodes claim to be one machine.
func (l *Lab) providerIDs(ctx context.Context, tenant string) error {
	api, err := l.tenantClient(ctx, tenant)
	if err != nil {
		return err
	}
	list := &corev1.NodeList{}
	if err := api.List(ctx, list); err != nil {
		return fmt.Errorf("list nodes of %s: %w", tenant, err)
	}
	owner := map[string]string{}
	for _, n := range list.Items {
		if other := owner[n.Spec.ProviderID]; other != "" {
			return fmt.Errorf("nodes %s and %s have one provider ID", other, n.Name)
		}
		owner[n.Spec.ProviderID] = n.Name
	}
	return nil
}

// OnlyWish checks, after a join was cancelled, that nothing is there that was
// not there before but the objects that ask for the machine.
func (l *Lab) OnlyWish(ctx context.Context, base Inventory) error {
	now, err := l.Take(ctx)
	if err != nil {
		return err
	}
	var left []string
	for _, line := range now.Since(base) {
		switch kind, _, _ := strings.Cut(line, " "); kind {
		// Core's and the shim's; the Node is core's to delete with its Machine.
		case "AetherVM", "AetherMachine", "Machine", "Node", "proof":
		default:
			left = append(left, line)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("after the cancellation: %w", &LeftError{Lines: left})
	}
	return nil
}
