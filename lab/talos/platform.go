package talos

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"sigs.k8s.io/yaml"

	"aether.internal/aether/lab/machine"
)

// The platforms of an image.
const (
	platformNocloud = "nocloud"
	platformMetal   = "metal"
)

// mode is how a platform's configurations are validated.
type mode string

// String is the mode's name in messages.
func (m mode) String() string {
	if m == platformNocloud {
		return "cloud"
	}
	return string(m)
}

// RequiresInstall tells whether machine.install must be there.
func (m mode) RequiresInstall() bool { return m == platformMetal }

// InContainer is false for a virtual machine.
func (m mode) InContainer() bool { return false }

// metadata is what a nocloud medium tells.
type metadata struct {
	hostname    string
	links       []link
	nameservers []netip.Addr
	config      []byte // a machine configuration, if user-data is one
}

// link is a network card's settings, found by MAC or by name.
type link struct {
	mac       string
	name      string
	mtu       int
	down      bool
	addresses []netip.Prefix
	routes    []route
	dhcp      bool
}

type route struct {
	to  netip.Prefix
	via netip.Addr
}

// readMedium reads the cidata medium as Talos does.
func (b *boot) readMedium() metadata {
	for _, medium := range b.machine.Media() {
		if !strings.EqualFold(medium.Label, "cidata") {
			continue
		}
		b.console.talos("found config disk (cidata) at %s", medium.Slot)
		return b.parseMedium(medium)
	}
	b.console.talos("no config disk (cidata) was found")
	return metadata{}
}

func (b *boot) parseMedium(medium machine.Medium) metadata {
	var m metadata
	for _, name := range []string{"meta-data", "network-config", "user-data"} {
		b.console.talos("fetching from: cidata/%s", name)
		if _, ok := medium.Files[name]; !ok {
			b.console.talos("failed to read %s: file does not exist", name)
		}
	}
	m.hostname = hostnameIn(medium.Files["meta-data"])
	userData := medium.Files["user-data"]
	if m.hostname == "" {
		m.hostname = hostnameIn(userData)
	}
	firstLine, _, _ := bytes.Cut(userData, []byte("\n"))
	if len(bytes.TrimSpace(userData)) > 0 && string(bytes.TrimSpace(firstLine)) != "#cloud-config" {
		m.config = userData
	}
	if err := m.network(medium.Files["network-config"]); err != nil {
		b.console.talos("network configuration of the platform is ignored: %v", err)
	}
	return m
}

func hostnameIn(data []byte) string {
	var fields struct {
		Hostname string `json:"hostname"`
		Local    string `json:"local-hostname"`
	}
	if err := yaml.Unmarshal(data, &fields); err != nil {
		return ""
	}
	name := fields.Hostname
	if name == "" {
		name = fields.Local
	}
	short, _, _ := strings.Cut(name, ".")
	return short
}

// networkConfig is cloud-init's network configuration, both versions.
type networkConfig struct {
	Version   int                 `json:"version"`
	Config    []configV1          `json:"config"`
	Ethernets map[string]ethernet `json:"ethernets"`
}

type configV1 struct {
	Type    string     `json:"type"`
	Name    string     `json:"name"`
	MAC     string     `json:"mac_address"`
	MTU     int        `json:"mtu"`
	Subnets []subnetV1 `json:"subnets"`
	Address []string   `json:"address"`
}

type subnetV1 struct {
	Type    string `json:"type"`
	Address string `json:"address"`
	Netmask string `json:"netmask"`
	Gateway string `json:"gateway"`
}

type ethernet struct {
	Match struct {
		Name string `json:"name"`
		MAC  string `json:"macaddress"`
	} `json:"match"`
	DHCP4       bool     `json:"dhcp4"`
	Addresses   []string `json:"addresses"`
	Gateway4    string   `json:"gateway4"`
	MTU         int      `json:"mtu"`
	Nameservers struct {
		Addresses []string `json:"addresses"`
	} `json:"nameservers"`
	Routes []struct {
		To  string `json:"to"`
		Via string `json:"via"`
	} `json:"routes"`
}

func (m *metadata) network(data []byte) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	var wrapped struct {
		Network *networkConfig `json:"network"`
		networkConfig
	}
	if err := yaml.Unmarshal(data, &wrapped); err != nil {
		return fmt.Errorf("decode network-config: %w", err)
	}
	config := wrapped.networkConfig
	if wrapped.Network != nil {
		config = *wrapped.Network
	}
	switch config.Version {
	case 1:
		return m.networkV1(config.Config)
	case 2:
		return m.networkV2(config.Ethernets)
	}
	return fmt.Errorf("network-config metadata version=%d is not supported", config.Version)
}

func (m *metadata) networkV1(entries []configV1) error {
	for _, entry := range entries {
		switch entry.Type {
		case "nameserver":
			if err := m.addNameservers(entry.Address); err != nil {
				return err
			}
		case "physical":
			l := link{mac: strings.ToLower(entry.MAC), name: entry.Name, mtu: entry.MTU}
			for _, subnet := range entry.Subnets {
				if err := l.addSubnet(subnet); err != nil {
					return err
				}
			}
			m.links = append(m.links, l)
		}
	}
	return nil
}

func (l *link) addSubnet(s subnetV1) error {
	switch s.Type {
	case "dhcp", "dhcp4":
		l.dhcp = true
	case "static":
		prefix, err := netip.ParsePrefix(s.Address)
		if err != nil {
			address, addressErr := netip.ParseAddr(s.Address)
			mask := net.ParseIP(s.Netmask).To4()
			if addressErr != nil || mask == nil {
				return fmt.Errorf("subnet: address %q with netmask %q", s.Address, s.Netmask)
			}
			bits, _ := net.IPMask(mask).Size()
			prefix = netip.PrefixFrom(address, bits)
		}
		l.addresses = append(l.addresses, prefix)
		return l.addGateway(s.Gateway)
	}
	return nil
}

func (l *link) addGateway(gateway string) error {
	if gateway == "" {
		return nil
	}
	via, err := netip.ParseAddr(gateway)
	if err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	l.routes = append(l.routes, route{to: defaultRoute(), via: via})
	return nil
}

func defaultRoute() netip.Prefix { return netip.PrefixFrom(netip.IPv4Unspecified(), 0) }

func (m *metadata) networkV2(ethernets map[string]ethernet) error {
	for key, e := range ethernets {
		l := link{mac: strings.ToLower(e.Match.MAC), name: e.Match.Name, mtu: e.MTU, dhcp: e.DHCP4}
		if l.mac == "" && l.name == "" {
			l.name = key
		}
		for _, address := range e.Addresses {
			prefix, err := netip.ParsePrefix(address)
			if err != nil {
				return fmt.Errorf("ethernet %s: %w", key, err)
			}
			l.addresses = append(l.addresses, prefix)
		}
		if err := l.addGateway(e.Gateway4); err != nil {
			return fmt.Errorf("ethernet %s: %w", key, err)
		}
		for _, r := range e.Routes {
			parsed, err := parseRoute(r.To, r.Via)
			if err != nil {
				return fmt.Errorf("ethernet %s: %w", key, err)
			}
			l.routes = append(l.routes, parsed)
		}
		if err := m.addNameservers(e.Nameservers.Addresses); err != nil {
			return err
		}
		m.links = append(m.links, l)
	}
	return nil
}

func parseRoute(to, via string) (route, error) {
	gateway, err := netip.ParseAddr(via)
	if err != nil {
		return route{}, fmt.Errorf("route: %w", err)
	}
	if to == "" || to == "default" || to == "0.0.0.0/0" {
		return route{to: defaultRoute(), via: gateway}, nil
	}
	prefix, err := netip.ParsePrefix(to)
	if err != nil {
		return route{}, fmt.Errorf("route: %w", err)
	}
	return route{to: prefix, via: gateway}, nil
}

func (m *metadata) addNameservers(addresses []string) error {
	for _, address := range addresses {
		ip, err := netip.ParseAddr(address)
		if err != nil {
			return fmt.Errorf("nameserver: %w", err)
		}
		m.nameservers = append(m.nameservers, ip)
	}
	return nil
}
