package proxyagent

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"aether.internal/aether/internal/envoy/wire"
)

// Where things are in the proxy's virtual machine.
const (
	DefaultConfigFile = "/etc/aether/agent.yaml"
	DefaultTokenFile  = "/etc/aether/enrolment-token"
	DefaultStateDir   = "/var/lib/aether"
	DefaultEnvoyDir   = "/etc/envoy"
	DefaultHealth     = "127.0.0.1:9902"
	DefaultAdmin      = "127.0.0.1:9901"
)

// Config is the agent's file, written by cloud-init from the medium that
// package seed makes.
type Config struct {
	// Tenant and Generation name the proxy.
	Tenant     string `json:"tenant"`
	Generation int64  `json:"generation"`
	// XDS is the discovery service, an address and port.
	XDS string `json:"xds"`
	// Enrolment is the enrolment service, an address and port.
	Enrolment string `json:"enrolment"`
	// CA is the PEM certificate of the platform's proxy authority.
	CA string `json:"ca"`
	// Device is the tenant-side network card.
	Device Device `json:"device"`

	// TokenFile has the enrolment token, until it was used.
	TokenFile string `json:"tokenFile,omitempty"`
	// Forget are files that may hold a copy of the token, such as cloud-init's
	// own; they are deleted with it. Missing ones are no error.
	Forget []string `json:"forget,omitempty"`
	// StateDir has the agent's key and certificate.
	StateDir string `json:"stateDir,omitempty"`
	// EnvoyDir has Envoy's bootstrap and credentials. Files in it get the
	// directory's group, which Envoy is in, if it is set-group-ID.
	EnvoyDir string `json:"envoyDir,omitempty"`
	// Health is where the agent answers for itself, a loopback address.
	Health string `json:"health,omitempty"`
	// Admin is where Envoy's admin interface listens, a loopback address.
	Admin string `json:"admin,omitempty"`
}

// Device is the tenant-side network card and the address that it announces.
type Device struct {
	MAC     string     `json:"mac"`
	Address netip.Addr `json:"address"`
}

// ID names the proxy.
func (c Config) ID() wire.ID { return wire.ID{Tenant: c.Tenant, Generation: c.Generation} }

// LoadConfig reads the file, fills in defaults and checks every field.
func LoadConfig(file string) (Config, error) {
	data, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return Config{}, fmt.Errorf("agent configuration: %w", err)
	}
	var c Config
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return Config{}, fmt.Errorf("agent configuration %s: %w", file, err)
	}
	c.setDefaults()
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("agent configuration %s: %w", file, err)
	}
	return c, nil
}

func (c *Config) setDefaults() {
	for _, d := range []struct {
		field *string
		value string
	}{
		{&c.TokenFile, DefaultTokenFile},
		{&c.StateDir, DefaultStateDir},
		{&c.EnvoyDir, DefaultEnvoyDir},
		{&c.Health, DefaultHealth},
		{&c.Admin, DefaultAdmin},
	} {
		if *d.field == "" {
			*d.field = d.value
		}
	}
}

// Validate reports every wrong field with what is allowed.
func (c Config) Validate() error {
	errs := []error{c.ID().Validate()}
	for _, server := range []struct{ field, value string }{{"xds", c.XDS}, {"enrolment", c.Enrolment}} {
		if _, err := netip.ParseAddrPort(server.value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %q; give an address and port such as 192.168.0.2:18000 (names are not resolved: the proxy must start without DNS)", server.field, server.value))
		}
	}
	if !x509.NewCertPool().AppendCertsFromPEM([]byte(c.CA)) {
		errs = append(errs, errors.New("ca: no certificate in it; give the proxy authority's certificate in PEM"))
	}
	if _, err := net.ParseMAC(c.Device.MAC); err != nil {
		errs = append(errs, fmt.Errorf("device.mac: %q; give the tenant-side card's address such as bc:24:11:00:00:01", c.Device.MAC))
	}
	if !c.Device.Address.Is4() {
		errs = append(errs, fmt.Errorf("device.address: %s; give the tenant-side IPv4 address", c.Device.Address))
	}
	for _, local := range []struct{ field, value string }{{"health", c.Health}, {"admin", c.Admin}} {
		if at, err := netip.ParseAddrPort(local.value); local.value != "" && (err != nil || !at.Addr().IsLoopback()) {
			errs = append(errs, fmt.Errorf("%s: %q; give a loopback address and port such as 127.0.0.1:9902", local.field, local.value))
		}
	}
	return errors.Join(errs...)
}
