package scenario

import (
	"context"
)

// bridgeWithoutVLAN: Proxmox writes a VLAN tag on any bridge, and the VM is
// alone on it.
func bridgeWithoutVLAN() Scenario {
	const vmid, address = 3191, "192.168.4.60"
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
		if !interfaces["eth0"].has(address) {
			return "", unexpected("the VM has not the address: %+v", interfaces)
		}
		if err := answers(ctx, t.World.Fabric.Router(), address+":22"); err == nil {
			return "", unexpected("%s answers", address)
		}
		// The same on the bridge that is VLAN aware.
		if err := t.script(ctx, p, "other-bridge.pvesh"); err != nil {
			return "", err
		}
		up := func(ctx context.Context) error { return answers(ctx, t.World.Fabric.Router(), address+":22") }
		if err := eventually(ctx, "the VM on vmbr0", up); err != nil {
			return "", err
		}
		return address + " is on the card with tag 4 of vmbr1, and nothing in VLAN 4 reaches it; Proxmox said nothing", nil
	}
	return origin("bridge-without-vlan", "a bridge that does not carry the VLAN is found before anything is made",
		hostParts(), naive, refusedPlan("bridge vmbr1 on pv1-1 with VLAN 4"))
}
