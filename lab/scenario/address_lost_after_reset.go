package scenario

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"aether.internal/aether/internal/talos"
)

// addressLostAfterReset: Talos has its address from the cloud-init drive. Once
// that is gone, maintenance mode after a reset has none.
func addressLostAfterReset() Scenario {
	const address, vmid = "10.1.1.243", 3131
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
		up := func(ctx context.Context) error { return answers(ctx, t.World.Fabric.Platform(), port) }
		if err := eventually(ctx, "maintenance mode", up); err != nil {
			return "", err
		}
		if err := t.script(ctx, p, "reset.pvesh"); err != nil {
			return "", err
		}
		// Its console is where it says that it is up again, and without what.
		if err := t.console(ctx, "pv1-1", vmid, "entering maintenance service", 2); err != nil {
			return "", err
		}
		if err := up(ctx); err == nil {
			return "", unexpected("%s answers after the reset", address)
		}
		return "in maintenance mode after the reset, and nothing answers at " + address, t.script(ctx, p, "remove.pvesh")
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
		leased, err := p.bringUp(ctx, worker)
		if err != nil {
			return "", err
		}
		raw, err := t.pvesh()
		if err != nil {
			return "", err
		}
		for _, action := range []string{"stop", "start"} {
			path := fmt.Sprintf("/nodes/%s/qemu/%d/status/%s", leased.Host, leased.VMID, action)
			if _, err := raw.do(ctx, call{text: "create " + path, verb: http.MethodPost, path: path}); err != nil {
				return "", err
			}
		}
		return passed(), p.talos.WaitMaintenance(ctx, worker)
	}
	return origin("address-lost-after-reset", "Talos has its address again after a reset to maintenance mode", hostParts(), naive, aether)
}
