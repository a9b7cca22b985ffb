package talos

import (
	"fmt"
	"net/netip"

	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	"github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/types/cri"
	"github.com/siderolabs/talos/pkg/machinery/config/types/meta"
	"github.com/siderolabs/talos/pkg/machinery/config/types/network"
	"github.com/siderolabs/talos/pkg/machinery/config/types/security"
)

// documents are the parts of the configuration that have a kind of their own.
func (in Input) documents() ([]config.Document, error) {
	hostname := network.NewHostnameConfigV1Alpha1()
	hostname.ConfigHostname = in.Hostname
	documents := []config.Document{hostname}
	for _, nic := range in.NICs {
		alias, err := linkAlias(nic)
		if err != nil {
			return nil, err
		}
		documents = append(documents, alias)
	}
	for _, nic := range in.NICs {
		documents = append(documents, link(nic))
	}
	documents = append(documents, resolver(in.Nameservers), timeSync(in.TimeServers))
	for _, host := range in.Hosts {
		static := network.NewStaticHostConfigV1Alpha1(host.Address.String())
		static.Hostnames = host.Names
		documents = append(documents, static)
	}
	for _, root := range in.TrustedRoots {
		trusted := security.NewTrustedRootsConfigV1Alpha1()
		trusted.MetaName, trusted.Certificates = root.Name, string(root.PEM)
		documents = append(documents, trusted)
	}
	for _, m := range in.Mirrors {
		document, err := mirror(m)
		if err != nil {
			return nil, err
		}
		documents = append(documents, document)
	}
	return documents, nil
}

// linkAlias names the card by its MAC: the kernel's name is eth0 on nocloud and
// ens18 on metal.
func linkAlias(nic NIC) (config.Document, error) {
	match, err := cel.ParseBooleanExpression(macSelector(nic), celenv.LinkLocator())
	if err != nil {
		return nil, fmt.Errorf("nic %s: %w", nic.Alias, err)
	}
	alias := network.NewLinkAliasConfigV1Alpha1(nic.Alias)
	alias.Selector.Match = match
	return alias, nil
}

func macSelector(nic NIC) string {
	return fmt.Sprintf("mac(link.permanent_addr) == %q", nic.MAC.String())
}

func link(nic NIC) config.Document {
	up := true
	link := network.NewLinkConfigV1Alpha1(nic.Alias)
	link.LinkUp = &up
	link.LinkMTU = uint32(nic.MTU) //nolint:gosec // Validate bounds it to 65520.
	link.LinkAddresses = []network.AddressConfig{{AddressAddress: nic.Address}}
	if nic.Gateway.IsValid() {
		link.LinkRoutes = []network.RouteConfig{{RouteGateway: network.Addr{Addr: nic.Gateway}}}
	}
	return link
}

func resolver(servers []netip.Addr) config.Document {
	resolver := network.NewResolverConfigV1Alpha1()
	for _, server := range servers {
		resolver.ResolverNameservers = append(resolver.ResolverNameservers, network.NameserverConfig{Address: network.Addr{Addr: server}})
	}
	return resolver
}

func timeSync(servers []string) config.Document {
	sync := network.NewTimeSyncConfigV1Alpha1()
	sync.TimeNTP = &network.NTPConfig{Servers: servers}
	return sync
}

// mirror uses the path as it is written (Harbor has the project after /v2) and
// never falls back to the Internet: a broken cache is to be seen, not hidden.
func mirror(m Mirror) (config.Document, error) {
	u, err := parseURL(m.URL)
	if err != nil {
		return nil, fmt.Errorf("mirror of %s: %w", m.Registry, err)
	}
	yes := true
	mirror := cri.NewRegistryMirrorConfigV1Alpha1(m.Registry)
	mirror.RegistryEndpoints = []cri.RegistryEndpoint{{EndpointURL: meta.URL{URL: u}, EndpointOverridePath: &yes}}
	mirror.RegistrySkipFallback = &yes
	return mirror, nil
}
