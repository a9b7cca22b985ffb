package world

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/network"
	"aether.internal/aether/lab/registry"
	"aether.internal/aether/lab/talos/timeserver"
)

// Addresses of the site; examples/site.yaml states those that the product needs.
const (
	gatewayAddress  = "192.168.0.1"
	platformAddress = "192.168.0.2"
	harborAddress   = "192.168.0.5"
)

// startFabric builds the networks, and what a site's router serves besides
// routing: time, and names of the Internet.
func (w *World) startFabric(context.Context) error {
	log, err := w.logger(partFabric)
	if err != nil {
		return err
	}
	fabric, err := network.NewFabric(network.DefaultTopology())
	if err != nil {
		return err
	}
	w.onStop(fabric.Close)
	w.Fabric = fabric
	w.Containers = container.New(w.opts.Self, log)
	address := net.JoinHostPort(gatewayAddress, strconv.Itoa(timeserver.Port))
	conn, err := fabric.Router().ListenPacket("udp", address)
	if err != nil {
		return fmt.Errorf("time server: %w", err)
	}
	w.run("time-server", address, func(ctx context.Context) error {
		return timeserver.Serve(ctx, conn)
	})
	return nil
}

// startRegistry serves Harbor and the registries of the Internet, which the
// names of the Internet lead to.
func (w *World) startRegistry(ctx context.Context) error {
	log, err := w.logger(partRegistry)
	if err != nil {
		return err
	}
	reg, err := registry.New(registry.Config{Log: log})
	if err != nil {
		return err
	}
	w.Registry = reg
	address := netip.MustParseAddr(harborAddress)
	ns, err := w.Fabric.AddSubnetMember("mgmt", "harbor", address)
	if err != nil {
		return err
	}
	secure := net.JoinHostPort(harborAddress, "443")
	listener, err := ns.Listen("tcp", secure)
	if err != nil {
		return err
	}
	w.run(partRegistry, "https://"+harborAddress, func(ctx context.Context) error { return reg.Serve(ctx, listener) })
	return w.startResolver(ctx, reg.Names(harborAddress))
}
