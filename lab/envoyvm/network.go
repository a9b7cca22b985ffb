package envoyvm

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"sigs.k8s.io/yaml"
)

// card is what a network configuration says of one card.
type card struct {
	name      string // of the card in the configuration
	mac       string // empty: found by its name
	addresses []netip.Prefix
	routes    []route
}

type route struct {
	to  netip.Prefix
	via netip.Addr
}

// networkV2 is netplan's form.
type networkV2 struct {
	Network *networkV2 `json:"network"` // some wrap it
	Version int        `json:"version"`

	Ethernets map[string]struct {
		Match struct {
			MACAddress string `json:"macaddress"`
		} `json:"match"`
		Addresses []string `json:"addresses"`
		Gateway4  string   `json:"gateway4"`
		Routes    []struct {
			To  string `json:"to"`
			Via string `json:"via"`
		} `json:"routes"`
	} `json:"ethernets"`

	// Config is version 1's form, which Proxmox makes.
	Config []struct {
		Type       string `json:"type"`
		Name       string `json:"name"`
		MACAddress string `json:"mac_address"`
		Subnets    []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
			Netmask string `json:"netmask"`
			Gateway string `json:"gateway"`
		} `json:"subnets"`
	} `json:"config"`
}

// parseNetwork reads a network-config of version 1 or 2.
func parseNetwork(data []byte) ([]card, error) {
	var config networkV2
	if err := yaml.Unmarshal(data, &config); err != nil {
		return nil, fmt.Errorf("network-config: %w", err)
	}
	if config.Network != nil {
		config = *config.Network
	}
	switch config.Version {
	case 1:
		return config.cardsV1()
	case 2:
		return config.cardsV2()
	default:
		return nil, fmt.Errorf("network-config: version %d is not known", config.Version)
	}
}

func (c networkV2) cardsV1() ([]card, error) {
	var cards []card
	for _, item := range c.Config {
		if item.Type != "physical" {
			continue
		}
		one := card{name: item.Name, mac: item.MACAddress}
		for _, subnet := range item.Subnets {
			if subnet.Type != "static" {
				continue // there is no DHCP server to ask
			}
			prefix, err := v1Prefix(subnet.Address, subnet.Netmask)
			if err != nil {
				return nil, fmt.Errorf("network-config: %s: %w", item.Name, err)
			}
			one.addresses = append(one.addresses, prefix)
			if subnet.Gateway != "" {
				if err := one.addRoute("default", subnet.Gateway); err != nil {
					return nil, err
				}
			}
		}
		cards = append(cards, one)
	}
	return cards, nil
}

func v1Prefix(address, netmask string) (netip.Prefix, error) {
	if strings.Contains(address, "/") || netmask == "" {
		return netip.ParsePrefix(address)
	}
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return netip.Prefix{}, err
	}
	mask := net.ParseIP(netmask).To4()
	if mask == nil {
		return netip.Prefix{}, fmt.Errorf("netmask %q is not one", netmask)
	}
	ones, _ := net.IPMask(mask).Size()
	return netip.PrefixFrom(ip, ones), nil
}

func (c networkV2) cardsV2() ([]card, error) {
	var cards []card
	for name, ethernet := range c.Ethernets {
		one := card{name: name, mac: ethernet.Match.MACAddress}
		for _, address := range ethernet.Addresses {
			prefix, err := netip.ParsePrefix(address)
			if err != nil {
				return nil, fmt.Errorf("network-config: %s: %w", name, err)
			}
			one.addresses = append(one.addresses, prefix)
		}
		if ethernet.Gateway4 != "" {
			if err := one.addRoute("default", ethernet.Gateway4); err != nil {
				return nil, err
			}
		}
		for _, r := range ethernet.Routes {
			if err := one.addRoute(r.To, r.Via); err != nil {
				return nil, err
			}
		}
		cards = append(cards, one)
	}
	return cards, nil
}

func (c *card) addRoute(to, via string) error {
	gateway, err := netip.ParseAddr(via)
	if err != nil {
		return fmt.Errorf("network-config: %s: %w", c.name, err)
	}
	target := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if to != "default" {
		if target, err = netip.ParsePrefix(to); err != nil {
			return fmt.Errorf("network-config: %s: %w", c.name, err)
		}
	}
	c.routes = append(c.routes, route{to: target, via: gateway})
	return nil
}

// setUpNetwork applies the settings on disk to the machine's cards.
func (b *boot) setUpNetwork() error {
	data, err := b.disk.read(networkFile)
	if err != nil {
		b.say("systemd-networkd: no configuration")
		return nil
	}
	cards, err := parseNetwork(data)
	if err != nil {
		b.say("systemd-networkd: %v", err)
		return nil
	}
	for _, c := range cards {
		link := b.linkOf(c)
		if link == "" {
			b.say("systemd-networkd: no card %s %s", c.name, c.mac)
			continue
		}
		for _, address := range c.addresses {
			if err := b.m.Net.AddAddress(link, address); err != nil {
				return err
			}
			b.say("systemd-networkd: %s: %s", link, address)
		}
		for _, r := range c.routes {
			// Refused by the kernel where the gateway cannot be reached, such as
			// behind a card whose cable is out; the boot goes on.
			if err := b.m.Net.AddRoute(r.to, r.via); err != nil {
				b.say("systemd-networkd: %s: %v", link, err)
			}
		}
	}
	return nil
}

// linkOf finds the card: by MAC address, else by name.
func (b *boot) linkOf(c card) string {
	for position, nic := range b.m.Hardware.NICs {
		name := fmt.Sprintf("eth%d", position)
		if (c.mac != "" && strings.EqualFold(c.mac, nic.MAC.String())) || (c.mac == "" && c.name == name) {
			return name
		}
	}
	return ""
}
