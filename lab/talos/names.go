package talos

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
)

// names resolves host names the way the node does: static entries of the
// configuration, then the nameservers over the node's network.
type names struct {
	static      map[string]string
	nameservers []netip.Addr
	dial        func(ctx context.Context, network, address string) (net.Conn, error)
}

func (b *boot) newNames(provider coreconfig.Provider, fromPlatform []netip.Addr) *names {
	n := &names{static: map[string]string{}, nameservers: fromPlatform, dial: b.machine.Net.DialContext}
	if provider == nil {
		return n
	}
	for _, entry := range provider.NetworkStaticHostConfig() {
		for _, alias := range entry.Aliases() {
			n.static[alias] = entry.IP()
		}
	}
	if resolver := provider.NetworkResolverConfig(); resolver != nil && len(resolver.Resolvers()) > 0 {
		n.nameservers = resolver.Resolvers()
	}
	return n
}

// lookup returns an address of a name.
func (n *names) lookup(ctx context.Context, host string) (string, error) {
	if _, err := netip.ParseAddr(host); err == nil {
		return host, nil
	}
	if ip, ok := n.static[host]; ok {
		return ip, nil
	}
	if len(n.nameservers) == 0 {
		return "", fmt.Errorf("lookup %s: no nameserver is configured", host)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	next := 0
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		server := n.nameservers[next%len(n.nameservers)]
		next++
		return n.dial(ctx, network, net.JoinHostPort(server.String(), "53"))
	}}
	// The trailing dot keeps the search list of the lab's own host out.
	found, err := resolver.LookupNetIP(ctx, "ip4", strings.TrimSuffix(host, ".")+".")
	if err != nil {
		return "", fmt.Errorf("lookup %s on %s: %w", host, n.nameservers[0], err)
	}
	return found[0].Unmap().String(), nil
}

// dialContext dials host names from the node's network.
func (n *names) dialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", address, err)
	}
	ip, err := n.lookup(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", network, err)
	}
	return n.dial(ctx, network, net.JoinHostPort(ip, port))
}
