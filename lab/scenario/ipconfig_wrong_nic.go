package scenario

import (
	"context"
	"fmt"
	"net"

	"aether.internal/aether/internal/talos"
)

// ipconfigWrongNIC: the address is given to the card of another network.
func ipconfigWrongNIC() Scenario {
	const address, vmid = "10.1.1.241", 3111
	port := net.JoinHostPort(address, fmt.Sprint(talos.MaintenancePort))
	naive := func(ctx context.Context, t *T) (string, error) {
		p, err := t.pvesh()
		if err != nil {
			return "", err
		}
		t.removeVMs(p, "pv1-1", vmid)
		if err := t.script(ctx, p, "vm.pvesh"); err != nil {
			return "", err
		}
		interfaces, err := guestInterfaces(ctx, p, "pv1-1", vmid)
		if err != nil {
			return "", err
		}
		if !interfaces["eth0"].has(address) || interfaces["eth1"].has(address) {
			return "", unexpected("the address is not on the first card: %+v", interfaces)
		}
		if err := answers(ctx, t.World.Fabric.Router(), port); err == nil {
			return "", unexpected("%s answers on the tenants' network", address)
		}
		reason := address + " is on eth0, which is on vmbr0; nothing on vmbr1 reaches it"
		return reason, t.script(ctx, p, "remove.pvesh")
	}
	aether := func(ctx context.Context, t *T) (string, error) {
		file, err := t.site()
		if err != nil {
			return "", err
		}
		p, err := t.useProduct(file)
		if err != nil {
			return "", err
		}
		worker, err := p.worker(ctx, "pv1-1")
		if err != nil {
			return "", err
		}
		if _, err := p.bringUp(ctx, worker); err != nil {
			return "", err
		}
		return passed(), answers(ctx, t.World.Fabric.Router(), port)
	}
	return origin("ipconfig-wrong-nic", "a VM has each address on the card of its network", hostParts(), naive, aether)
}
