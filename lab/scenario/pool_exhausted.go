package scenario

import (
	"context"
	"fmt"
)

// poolExhausted: the list of addresses is shorter than the list of machines.
func poolExhausted() Scenario {
	naive := func(ctx context.Context, t *T) (string, error) {
		p, err := t.pvesh()
		if err != nil {
			return "", err
		}
		t.removeVMs(p, "pv1-1", 3171, 3172)
		if err := t.script(ctx, p, "vms.pvesh"); err != nil {
			return "", err
		}
		first, err := guestInterfaces(ctx, p, "pv1-1", 3171)
		if err != nil {
			return "", err
		}
		second, err := guestInterfaces(ctx, p, "pv1-1", 3172)
		if err != nil {
			return "", err
		}
		if !first["eth0"].has("10.1.1.244") || len(second["eth0"].Addresses) > 0 {
			return "", unexpected("the machines' addresses are %+v and %+v", first["eth0"], second["eth0"])
		}
		return "the second machine runs without an address; the pool had one", nil
	}
	aether := func(ctx context.Context, t *T) (string, error) {
		outcome, err := refusedPlan("addresses for workers in tenant")(ctx, t)
		if err != nil {
			return "", err
		}
		if made := len(t.machinesOf("planned")); made != 0 {
			return "", unexpected("%d VMs were made", made)
		}
		return outcome, nil
	}
	return origin("pool-exhausted", "a range that is too small for the tenant is found before anything is made", hostParts(), naive, aether)
}

// machinesOf lists the VMs that carry a tenant's tag.
func (t *T) machinesOf(tenant string) []string {
	var names []string
	for _, vm := range t.World.Proxmox.VMs() {
		for _, tag := range vm.Tags {
			if tag == "tenant-"+tenant {
				names = append(names, fmt.Sprintf("%d %s", vm.VMID, vm.Name))
			}
		}
	}
	return names
}
