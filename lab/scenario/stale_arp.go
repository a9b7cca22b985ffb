package scenario

import (
	"context"
	"fmt"
	"net"

	"aether.internal/aether/internal/talos"
)

// staleARP: a host keeps the MAC of a destroyed VM, and the next VM at the
// address cannot be reached until somebody flushes the host's cache.
func staleARP() Scenario {
	const address, old, replacement = "10.1.1.240", 3101, 3102
	port := net.JoinHostPort(address, fmt.Sprint(talos.MaintenancePort))
	naive := func(ctx context.Context, t *T) (string, error) {
		p, err := t.pvesh()
		if err != nil {
			return "", err
		}
		host, err := t.hostNet("pv1-1")
		if err != nil {
			return "", err
		}
		t.removeVMs(p, "pv1-1", old, replacement)
		if err := t.script(ctx, p, "old.pvesh"); err != nil {
			return "", err
		}
		if err := eventually(ctx, "the first VM", func(ctx context.Context) error { return answers(ctx, host, port) }); err != nil {
			return "", err
		}
		if err := t.script(ctx, p, "replacement.pvesh"); err != nil {
			return "", err
		}
		interfaces, err := guestInterfaces(ctx, p, "pv1-1", replacement)
		if err != nil {
			return "", err
		}
		if !interfaces["eth1"].has(address) {
			return "", unexpected("the replacement has not the address: %+v", interfaces)
		}
		if err := answers(ctx, host, port); err == nil {
			return "", unexpected("the replacement answers at once")
		}
		cached, err := neighbour(host, address)
		if err != nil {
			return "", err
		}
		if sameMAC(cached, interfaces["eth1"].MAC) {
			return "", unexpected("pv1-1 knows the MAC of the replacement, which does not answer")
		}
		reason := fmt.Sprintf("%s does not answer: pv1-1 sends to %s of the destroyed VM, it is at %s", address, cached, interfaces["eth1"].MAC)
		return reason, t.script(ctx, p, "remove.pvesh")
	}
	// The same address is all that the site has; the host's cache is as stale.
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
		host, err := t.hostNet("pv1-1")
		if err != nil {
			return "", err
		}
		if leased.Address != address {
			return "", unexpected("the worker is at %s", leased.Address)
		}
		return passed(), answers(ctx, host, port)
	}
	return origin("stale-arp", "a VM at an address that another VM had is reached at once", hostParts(), naive, aether)
}
