package seed

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"strings"

	"sigs.k8s.io/yaml"

	"aether.internal/aether/internal/proxyagent"
)

// Label is the volume label that cloud-init looks for.
const Label = "cidata"

// Names of the files on the volume.
const (
	MetaData      = "meta-data"
	NetworkConfig = "network-config"
	UserData      = "user-data"
)

// Seed is all that a proxy's virtual machine is told at its first boot.
type Seed struct {
	// InstanceID decides whether cloud-init takes a boot for a first one; the
	// machine ID serves.
	InstanceID string
	// Hostname of the machine.
	Hostname string
	// Management and Tenant are its two network cards.
	Management, Tenant NIC
	// DNS are resolvers; the proxy itself needs none.
	DNS []netip.Addr
	// Agent is the agent's configuration. Its Device is filled in from Tenant.
	Agent proxyagent.Config
	// Token is the one-time enrolment token.
	Token Token
}

// NIC is a network card and what it gets. It is found by its MAC address: the
// order of cards is not a promise, and mixing up the two sides is how an
// address ends up on the wrong one.
type NIC struct {
	MAC     net.HardwareAddr
	Address netip.Prefix
	Gateway netip.Addr // zero: none; at most one card has one
	MTU     int        // zero: the default
}

// Token is a secret that does not show in logs or errors.
type Token string

// String hides the token.
func (Token) String() string { return "[hidden]" }

// GoString hides the token.
func (Token) GoString() string { return "[hidden]" }

// Validate reports every wrong field with what is allowed.
func (s Seed) Validate() error {
	var errs []error
	if s.InstanceID == "" {
		errs = append(errs, errors.New("instanceID: empty; give the machine ID"))
	}
	if s.Hostname == "" || strings.ContainsAny(s.Hostname, " ./_") {
		errs = append(errs, fmt.Errorf("hostname: %q; give one DNS label", s.Hostname))
	}
	if s.Token == "" {
		errs = append(errs, errors.New("token: empty; issue one for this proxy"))
	}
	for _, side := range []struct {
		name string
		nic  NIC
	}{{"management", s.Management}, {"tenant", s.Tenant}} {
		errs = append(errs, side.nic.validate(side.name))
	}
	if s.Management.MAC.String() == s.Tenant.MAC.String() {
		errs = append(errs, fmt.Errorf("tenant.mac: %s is the management card's too; give each its own", s.Tenant.MAC))
	}
	if s.Management.Address.IsValid() && s.Management.Address.Overlaps(s.Tenant.Address) {
		errs = append(errs, fmt.Errorf("tenant.address: %s overlaps with the management card's %s; the two networks must differ", s.Tenant.Address, s.Management.Address))
	}
	if s.Management.Gateway.IsValid() && s.Tenant.Gateway.IsValid() {
		errs = append(errs, errors.New("tenant.gateway: both cards have one; a machine has one default route"))
	}
	errs = append(errs, s.agent().Validate())
	return errors.Join(errs...)
}

func (n NIC) validate(name string) error {
	switch {
	case len(n.MAC) != 6:
		return fmt.Errorf("%s.mac: %q; give an Ethernet address", name, n.MAC)
	case !n.Address.IsValid() || !n.Address.Addr().Is4():
		return fmt.Errorf("%s.address: %s; give an IPv4 address with its prefix length, such as 10.1.1.10/24", name, n.Address)
	case n.Gateway.IsValid() && !n.Address.Contains(n.Gateway):
		return fmt.Errorf("%s.gateway: %s is not in %s", name, n.Gateway, n.Address.Masked())
	case n.MTU != 0 && (n.MTU < 576 || n.MTU > 65520):
		return fmt.Errorf("%s.mtu: %d; allowed are 576 to 65520, or 0 for the default", name, n.MTU)
	}
	return nil
}

// agent completes the agent's configuration.
func (s Seed) agent() proxyagent.Config {
	agent := s.Agent
	agent.Device = proxyagent.Device{MAC: s.Tenant.MAC.String(), Address: s.Tenant.Address.Addr()}
	agent.TokenFile = proxyagent.DefaultTokenFile
	// cloud-init keeps what it was given; the token was in it.
	agent.Forget = []string{"/var/lib/cloud/instance/user-data.txt", "/var/lib/cloud/instance/user-data.txt.i", "/var/lib/cloud/instance/obj.pkl"}
	return agent
}

// Files renders the volume's files. It is pure.
func (s Seed) Files() (map[string][]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("proxy medium: %w", err)
	}
	meta, err := yaml.Marshal(map[string]string{"instance-id": s.InstanceID, "local-hostname": s.Hostname})
	if err != nil {
		return nil, fmt.Errorf("proxy medium: %s: %w", MetaData, err)
	}
	network, err := s.networkConfig()
	if err != nil {
		return nil, fmt.Errorf("proxy medium: %s: %w", NetworkConfig, err)
	}
	user, err := s.userData()
	if err != nil {
		return nil, fmt.Errorf("proxy medium: %s: %w", UserData, err)
	}
	return map[string][]byte{MetaData: meta, NetworkConfig: network, UserData: user}, nil
}

type ethernet struct {
	Match       match        `json:"match"`
	SetName     string       `json:"set-name"`
	DHCP4       bool         `json:"dhcp4"`
	AcceptRA    bool         `json:"accept-ra"`
	LinkLocal   []string     `json:"link-local"`
	Addresses   []string     `json:"addresses"`
	Routes      []route      `json:"routes,omitempty"`
	Nameservers *nameservers `json:"nameservers,omitempty"`
	MTU         int          `json:"mtu,omitempty"`
	// IgnoreCarrier gives the card its address while the cable is out, as the
	// new proxy of a rotation has it: Envoy must be able to listen before.
	IgnoreCarrier bool `json:"ignore-carrier,omitempty"`
	// Optional keeps the boot from waiting for such a card.
	Optional bool `json:"optional,omitempty"`
}

type match struct {
	MACAddress string `json:"macaddress"`
}

type route struct {
	To  string `json:"to"`
	Via string `json:"via"`
}

type nameservers struct {
	Addresses []string `json:"addresses"`
}

func (s Seed) networkConfig() ([]byte, error) {
	management, tenant := s.Management.ethernet("mgmt0"), s.Tenant.ethernet("tenant0")
	tenant.IgnoreCarrier, tenant.Optional = true, true
	if len(s.DNS) > 0 {
		management.Nameservers = &nameservers{}
		for _, server := range s.DNS {
			management.Nameservers.Addresses = append(management.Nameservers.Addresses, server.String())
		}
	}
	return yaml.Marshal(map[string]any{
		"version":   2,
		"ethernets": map[string]ethernet{"mgmt0": management, "tenant0": tenant},
	})
}

func (n NIC) ethernet(name string) ethernet {
	e := ethernet{
		Match: match{MACAddress: n.MAC.String()}, SetName: name,
		LinkLocal: []string{}, Addresses: []string{n.Address.String()}, MTU: n.MTU,
	}
	if n.Gateway.IsValid() {
		e.Routes = []route{{To: "0.0.0.0/0", Via: n.Gateway.String()}}
	}
	return e
}

type writeFile struct {
	Path        string `json:"path"`
	Permissions string `json:"permissions"`
	Content     string `json:"content"`
}

func (s Seed) userData() ([]byte, error) {
	agent, err := yaml.Marshal(s.agent())
	if err != nil {
		return nil, err
	}
	config, err := yaml.Marshal(map[string]any{
		"preserve_hostname": false,
		"hostname":          s.Hostname,
		// Nobody logs in to a proxy.
		"users":        []string{},
		"disable_root": true,
		"ssh_pwauth":   false,
		"write_files": []writeFile{
			{Path: proxyagent.DefaultConfigFile, Permissions: "0600", Content: string(agent)},
			{Path: path.Clean(proxyagent.DefaultTokenFile), Permissions: "0600", Content: string(s.Token) + "\n"},
		},
	})
	if err != nil {
		return nil, err
	}
	return append([]byte("#cloud-config\n"), config...), nil
}
