package proxmox

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"

	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/proxmox/access"
	"aether.internal/aether/lab/proxmox/blank"
)

// StandaloneOptions are those of RunStandalone.
type StandaloneOptions struct {
	// Listen is where the first host's API is served; the second host is on
	// the next port, or on a free one when the port is 0.
	Listen string
	Speed  float64 // 0: 1
	Faults *faults.Set
	Out    io.Writer
	Log    *slog.Logger
}

const standaloneUser = "aether@pve"

// RunStandalone serves the homelab's cluster with blank machines until the
// context ends. It prints where, with which token, and the CA to trust.
func RunStandalone(ctx context.Context, opts StandaloneOptions) error {
	host, portText, err := net.SplitHostPort(opts.Listen)
	if err != nil {
		return fmt.Errorf("listen: %q is not an address; give host:port such as 127.0.0.1:8006", opts.Listen)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return fmt.Errorf("listen: port %q is not a number; give host:port such as 127.0.0.1:8006", portText)
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return fmt.Errorf("listen: host %q is not an IP address; give host:port such as 127.0.0.1:8006", host)
	}
	if opts.Speed == 0 {
		opts.Speed = 1
	}
	clock, err := latency.NewClock(opts.Speed)
	if err != nil {
		return err
	}
	cfg := HomeLab(machine.Image{OS: "blank", Version: "v1", Agent: true}, machine.Image{OS: "blank", Version: "v1", Agent: true})
	cfg.Clock, cfg.Faults, cfg.Log = clock, opts.Faults, opts.Log
	cfg.Hypervisor = blank.New(clock)
	cfg.Tokens = []access.Token{{ID: standaloneUser + "!lab"}}
	ports := map[string]int{}
	for i, n := range cfg.Nodes {
		ports[n.Name] = port
		if port != 0 {
			ports[n.Name] = port + i
		}
	}
	cfg.Listen = func(node, _ string) (net.Listener, error) {
		return (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(ports[node])))
	}
	c, err := New(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.describe(opts.Out); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	<-ctx.Done()
	return nil
}

// describe tells a person how to reach the cluster.
func (c *Cluster) describe(out io.Writer) error {
	if _, err := fmt.Fprintf(out, "Proxmox VE simulator, cluster %s, speed %g\n", c.cfg.Cluster, c.cfg.Clock.Speed()); err != nil {
		return err
	}
	for _, n := range c.order {
		if _, err := fmt.Fprintf(out, "  %s  %s\n", n.Name, c.Endpoint(n.Name)); err != nil {
			return err
		}
	}
	for _, t := range c.access.Tokens(standaloneUser) {
		if _, err := fmt.Fprintf(out, "header  Authorization: PVEAPIToken=%s=%s\n", t.ID, t.Secret); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "CA\n%s", c.pki.PEM())
	return err
}
