package controlplane

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"aether.internal/aether/lab/upstream/process"
)

// Component is one of the programs of a control plane.
type Component string

// The components, in the order they are started.
const (
	EtcdComponent     Component = "etcd"
	APIServer         Component = "kube-apiserver"
	ControllerManager Component = "kube-controller-manager"
	Scheduler         Component = "kube-scheduler"
)

// Components lists them in the order they are started.
func Components() []Component {
	return []Component{EtcdComponent, APIServer, ControllerManager, Scheduler}
}

// Ports are where the components listen; 0 means the usual one.
type Ports struct {
	APIServer, Etcd, EtcdPeer, ControllerManager, Scheduler int
}

func (p Ports) withDefaults() Ports {
	return Ports{
		APIServer:         cmp.Or(p.APIServer, 6443),
		Etcd:              cmp.Or(p.Etcd, 2379),
		EtcdPeer:          cmp.Or(p.EtcdPeer, 2380),
		ControllerManager: cmp.Or(p.ControllerManager, 10257),
		Scheduler:         cmp.Or(p.Scheduler, 10259),
	}
}

// Config describes a control plane.
type Config struct {
	// Name is the cluster's.
	Name string
	// Dir keeps its data, certificates and logs; it must not hold a control
	// plane yet.
	Dir string
	// Net is the namespace it runs in; nil is the caller's.
	Net process.Network
	// Address is what the API server and etcd listen on and are known by.
	Address netip.Addr
	// Ports differ from the usual ones where two share an address.
	Ports Ports
	// Kubernetes is the multi-call program of lab/upstream, or a folder that
	// holds the programs by name.
	Kubernetes string
	// ServiceCIDR is the range of its Services.
	ServiceCIDR netip.Prefix
	// PodCIDR is cut into a range per node; invalid leaves nodes without one.
	PodCIDR netip.Prefix
	// Names and Addresses are also in the API server's certificate.
	Names     []string
	Addresses []netip.Addr
	// Arguments are added to a component's.
	Arguments map[Component][]string
	// Log tells what is started and how long that took.
	Log *slog.Logger
}

func (c *Config) validate() error {
	switch {
	case c.Name == "":
		return errors.New("control plane: Name is empty")
	case !c.Address.IsValid():
		return fmt.Errorf("control plane %s: Address is not set", c.Name)
	case !c.ServiceCIDR.IsValid():
		return fmt.Errorf("control plane %s: ServiceCIDR is not set", c.Name)
	case c.Kubernetes == "":
		return fmt.Errorf("control plane %s: Kubernetes names no program", c.Name)
	case c.Log == nil:
		return fmt.Errorf("control plane %s: Log is nil", c.Name)
	}
	return freshDir(c.Name, c.Dir)
}

// freshDir refuses a folder in use: data and certificates of two lives would
// not fit each other.
func freshDir(name, dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("%s: Dir %q is not an absolute path", name, dir)
	}
	if _, err := os.Stat(filepath.Join(dir, "pki")); err == nil {
		return fmt.Errorf("%s: Dir %s holds a control plane already; give an empty folder", name, dir)
	}
	return nil
}

// commandOf says how a component is called: a folder holds it by name, the
// multi-call program looks at argv[0].
func commandOf(kubernetes string, c Component) (program, argv0 string, err error) {
	info, err := os.Stat(kubernetes)
	if err != nil {
		return "", "", fmt.Errorf("find %s: %w", c, err)
	}
	if info.IsDir() {
		return filepath.Join(kubernetes, string(c)), "", nil
	}
	return kubernetes, string(c), nil
}

// serviceAddress is the n-th address of a range.
func serviceAddress(p netip.Prefix, n int) netip.Addr {
	a := p.Masked().Addr()
	for range n {
		a = a.Next()
	}
	return a
}
