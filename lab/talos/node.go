package talos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"golang.org/x/sync/errgroup"

	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/talos/timeserver"
)

// node is a machine that runs with a configuration.
type node struct {
	*boot

	provider coreconfig.Provider
	names    *names
	name     string     // the Node's
	ip       netip.Addr // the Node's
}

// run starts what a worker runs, in Talos's order, and ends with the context.
func (n *node) run(ctx context.Context, meta metadata) error {
	if err := n.setNetwork(meta); err != nil {
		n.console.talos("error setting the network up: %v", err)
	}
	hostname := n.hostname(n.provider, meta)
	n.name = nodeName(hostname)
	n.console.talos("setting hostname %q", hostname)
	n.log.Info("talos runs with a configuration", "hostname", hostname, "addresses", n.addresses())
	if err := n.cfg.Clock.Sleep(ctx, latency.TalosServices, 1); err != nil {
		return err
	}
	n.startAgent(hostname)
	if err := n.waitForTime(ctx); err != nil {
		return err
	}
	if err := n.waitForNodeIP(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.runKubePrism(ctx) })
	group.Go(func() error { return n.runKubelet(ctx) })
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// setNetwork applies the configuration over what the platform has set.
func (n *node) setNetwork(meta metadata) error {
	links, err := configuredLinks(n.provider)
	if err != nil {
		return err
	}
	cards := n.cards()
	n.alias(n.provider, cards)
	if len(links) == 0 && len(meta.links) == 0 {
		n.console.talos("DHCP requests on all links: no answer")
	}
	return n.setLinks(cards, links)
}

// startAgent makes the QEMU guest agent answer, if the image has one: it is a
// system extension and runs only beside a configuration.
func (n *node) startAgent(hostname string) {
	if !n.disk.content.Image.Agent {
		return
	}
	if !n.machine.Hardware.AgentDevice {
		n.console.talos("service[ext-qemu-guest-agent](Waiting): /dev/virtio-ports/org.qemu.guest_agent.0: does not exist")
		return
	}
	report := machine.AgentReport{Hostname: hostname, OS: "Talos Linux", Interfaces: []machine.Interface{
		{Name: "lo", Addresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}},
	}}
	for _, c := range n.cards() {
		addresses, err := n.machine.Net.Addresses(c.device)
		if err != nil {
			n.console.talos("error listing addresses of %s: %v", c.device, err)
		}
		report.Interfaces = append(report.Interfaces, machine.Interface{Name: c.name, MAC: c.mac, Addresses: addresses})
	}
	n.machine.SetAgent(report)
}

// waitForTime asks the configured servers until one answers: without time no
// certificate is valid, so the kubelet waits.
func (n *node) waitForTime(ctx context.Context) error {
	servers, bootTimeout := []string{"time.cloudflare.com"}, time.Duration(0)
	if c := n.provider.NetworkTimeSyncConfig(); c != nil {
		if c.Disabled() {
			return nil
		}
		if len(c.Servers()) > 0 {
			servers = c.Servers()
		}
		bootTimeout = c.BootTimeout()
	}
	started := time.Now()
	for i := 0; ; i++ {
		server := servers[i%len(servers)]
		err := n.askTime(ctx, server)
		if err == nil {
			n.console.talos("time synchronized with server %q", server)
			return nil
		}
		n.console.talos("time query error with server %q: %v", server, err)
		if bootTimeout > 0 && time.Since(started) >= bootTimeout {
			n.console.talos("boot timeout of time synchronization is over, going on")
			return nil
		}
		if err := pause(ctx, n.cfg.Clock.Scale(time.Second)); err != nil {
			return err
		}
	}
}

var errNoTime = errors.New("i/o timeout")

func (n *node) askTime(ctx context.Context, server string) error {
	if n.cfg.Faults.InForce(n.place("time"), faults.Away) || n.cfg.Faults.Take(n.place("time"), faults.Away) != nil {
		return errNoTime
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, err := n.names.dialContext(ctx, "udp", net.JoinHostPort(server, fmt.Sprint(timeserver.Port)))
	if err != nil {
		return err
	}
	_, err = timeserver.Query(ctx, conn)
	return errors.Join(err, conn.Close())
}

// waitForNodeIP waits until an address passes the filters; the kubelet is not
// started before.
func (n *node) waitForNodeIP(ctx context.Context) error {
	valid := n.provider.Machine().Kubelet().NodeIP().ValidSubnets()
	network := n.provider.Cluster().Network()
	warned := false
	for {
		ip, err := nodeIP(n.addresses(), valid, append(network.PodCIDRs(), network.ServiceCIDRs()...))
		if err == nil {
			n.ip = ip
			return nil
		}
		if !warned {
			n.console.talos("%v", err)
			warned = true
		}
		if err := pause(ctx, n.cfg.Clock.Scale(time.Second)); err != nil {
			return err
		}
	}
}
