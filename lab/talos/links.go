package talos

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	networkpb "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/network"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/vishvananda/netlink"
)

// card is a network card of this machine.
type card struct {
	device  string // in the machine's namespace
	name    string // as Talos calls it on this platform
	aliases []string
	mac     net.HardwareAddr
}

// cards lists the network cards. The kernel's names are eth0 on nocloud, which
// boots with net.ifnames=0, and predictable ones on metal.
func (b *boot) cards() []card {
	cards := make([]card, 0, len(b.machine.Hardware.NICs))
	for i, nic := range b.machine.Hardware.NICs {
		c := card{device: fmt.Sprintf("eth%d", i), name: fmt.Sprintf("eth%d", i), mac: nic.MAC}
		if b.disk.platform() == platformMetal {
			c.name = fmt.Sprintf("ens%d", 18+nic.Index)
		}
		cards = append(cards, c)
	}
	return cards
}

// setLinks brings the cards up and gives them what the links say. A link that
// matches no card is left out, as it is in life.
func (b *boot) setLinks(cards []card, links []link) error {
	var errs []error
	for _, l := range links {
		i := slices.IndexFunc(cards, func(c card) bool {
			if l.mac != "" {
				return strings.EqualFold(c.mac.String(), l.mac)
			}
			return c.name == l.name || slices.Contains(c.aliases, l.name)
		})
		if i < 0 {
			b.console.talos("link %q (%s) is not on this machine", l.name, l.mac)
			continue
		}
		if err := b.setLink(cards[i].device, l); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (b *boot) setLink(device string, l link) error {
	if l.down {
		return b.machine.Net.SetLinkUp(device, false)
	}
	if err := b.machine.Net.SetLinkUp(device, true); err != nil {
		return err
	}
	if l.mtu > 0 {
		if err := b.setMTU(device, l.mtu); err != nil {
			b.console.talos("error setting MTU of %s to %d: %v", device, l.mtu, err)
		}
	}
	if l.dhcp {
		b.console.talos("DHCP request on %s: no answer", device)
	}
	for _, address := range l.addresses {
		if err := b.machine.Net.AddAddress(device, address); err != nil {
			return err
		}
		b.console.talos("assigned address %s to %s", address, device)
		if err := b.machine.Net.AnnounceARP(device, address.Addr()); err != nil {
			b.console.talos("error announcing %s: %v", address.Addr(), err)
		}
	}
	for _, r := range l.routes {
		if err := b.machine.Net.AddRoute(r.to, r.via); err != nil {
			b.console.talos("error adding route to %s via %s: %v", r.to, r.via, err)
		}
	}
	return nil
}

func (b *boot) setMTU(device string, mtu int) error {
	return b.machine.Net.Do(func() error {
		found, err := netlink.LinkByName(device)
		if err != nil {
			return fmt.Errorf("find link %s: %w", device, err)
		}
		return netlink.LinkSetMTU(found, mtu)
	})
}

// configuredLinks are the links of a machine configuration: its documents and
// the old machine.network.interfaces.
func configuredLinks(provider coreconfig.Provider) ([]link, error) {
	var links []link
	for _, document := range provider.NetworkCommonLinkConfigs() {
		if _, physical := document.(config.NetworkPhysicalLinkConfig); !physical {
			continue // bonds, bridges and VLANs are not simulated
		}
		l := link{name: document.Name(), mtu: int(document.MTU().ValueOrZero())}
		if up, set := document.Up().Get(); set {
			l.down = !up
		}
		for _, a := range document.Addresses() {
			l.addresses = append(l.addresses, a.Address())
		}
		for _, r := range document.Routes() {
			via, hasGateway := r.Gateway().Get()
			if !hasGateway {
				continue
			}
			l.routes = append(l.routes, route{to: r.Destination().ValueOr(defaultRoute()), via: via})
		}
		links = append(links, l)
	}
	for _, document := range provider.NetworkDHCPv4Configs() {
		links = append(links, link{name: document.Name(), dhcp: true})
	}
	if provider.Machine() == nil {
		return links, nil
	}
	for _, device := range provider.Machine().Network().Devices() {
		l, err := legacyLink(device)
		if err != nil {
			return nil, err
		}
		links = append(links, l)
	}
	return links, nil
}

func legacyLink(device config.Device) (link, error) {
	l := link{name: device.Interface(), mtu: device.MTU(), dhcp: device.DHCP(), down: device.Ignore()}
	if selector := device.Selector(); selector != nil {
		l.mac = selector.HardwareAddress()
		if l.mac == "" {
			l.mac = selector.PermanentAddress()
		}
	}
	for _, address := range device.Addresses() {
		prefix, err := netip.ParsePrefix(address)
		if err != nil {
			return link{}, fmt.Errorf("interface %q: %w", l.name, err)
		}
		l.addresses = append(l.addresses, prefix)
	}
	for _, r := range device.Routes() {
		parsed, err := parseRoute(r.Network(), r.Gateway())
		if err != nil {
			return link{}, fmt.Errorf("interface %q: %w", l.name, err)
		}
		l.routes = append(l.routes, parsed)
	}
	return l, nil
}

// alias gives the cards the names that LinkAliasConfig documents choose. A
// selector must match exactly one card.
func (b *boot) alias(provider coreconfig.Provider, cards []card) {
	for _, document := range provider.NetworkLinkAliasConfigs() {
		var matched []int
		for i, c := range cards {
			ok, err := document.LinkSelector().EvalBool(celenv.LinkLocator(), map[string]any{"link": linkStatus(c)})
			if err != nil {
				b.console.talos("error evaluating link selector of %q: %v", document.Name(), err)
				continue
			}
			if ok {
				matched = append(matched, i)
			}
		}
		if len(matched) != 1 {
			b.console.talos("link alias %q matches %d links, want exactly one; it is not set", document.Name(), len(matched))
			continue
		}
		cards[matched[0]].aliases = append(cards[matched[0]].aliases, document.Name())
	}
}

// addresses lists what the machine is reachable at, lowest first: Talos sorts
// them over all links.
func (b *boot) addresses() []netip.Prefix {
	var all []netip.Prefix
	for _, c := range b.cards() {
		if up, err := b.machine.Net.LinkUp(c.device); err != nil || !up {
			continue
		}
		found, err := b.machine.Net.Addresses(c.device)
		if err != nil {
			b.console.talos("error listing addresses of %s: %v", c.device, err)
			continue
		}
		all = append(all, found...)
	}
	slices.SortFunc(all, func(x, y netip.Prefix) int { return x.Addr().Compare(y.Addr()) })
	return all
}

// linkStatus is the card as a selector sees it.
func linkStatus(c card) *networkpb.LinkStatusSpec {
	return &networkpb.LinkStatusSpec{Driver: "virtio_net", HardwareAddr: c.mac, PermanentAddr: c.mac}
}
