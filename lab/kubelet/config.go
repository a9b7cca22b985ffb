package kubelet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/network"
	"aether.internal/aether/lab/registry"
)

// DefaultPort is where a kubelet serves.
const DefaultPort = 10250

// Config is what a Kubelet needs to know.
type Config struct {
	NodeName string
	// Client speaks to the API server as this node. RestConfig is the
	// configuration behind it; it is optional and only used to tell the address.
	Client     kubernetes.Interface
	RestConfig *rest.Config
	Net        *network.Namespace // the node's
	Containers *container.Engine
	Programs   map[string]string // image's program → executable on the host
	Pull       func(ctx context.Context, ref string) (*registry.Image, error)
	// PodNetwork gives pods their addresses. With nil only pods in the host's
	// network can run.
	PodNetwork PodNetwork
	// Dir is the node's root directory: host paths of pods lie below it.
	Dir   string
	Clock *latency.Clock
	// APIServer, as https://192.168.0.2:6443, is what pods find in
	// KUBERNETES_SERVICE_HOST and _PORT. Empty: the kubernetes Service.
	APIServer string
	// Hosts are entries of every pod's /etc/hosts.
	Hosts   map[string]string
	Version string // of the kubelet, as v1.35.4
	// NodeTemplate is the Node as it is registered if there is none.
	NodeTemplate corev1.Node
	// ServingCert is asked at every handshake; it may wait for a certificate
	// by returning an error.
	ServingCert func() (*tls.Certificate, error)
	ClientCA    []byte // PEM; client certificates that port 10250 accepts
	Log         *slog.Logger
	// CNIReady tells whether the node has a pod network. Nil looks for a file
	// in etc/cni/net.d below Dir, as the container runtime does.
	CNIReady func() bool

	// ClusterDNS and ClusterDomain are for pods with dnsPolicy ClusterFirst;
	// Nameservers are the node's own.
	ClusterDNS    []string
	ClusterDomain string
	Nameservers   []string
	// Port is where port 10250 is; DefaultPort if 0. A Node says it in its
	// status, so that two kubelets can share an address.
	Port int
	// MaxPods is the capacity if the template has none; 110 if 0.
	MaxPods int
}

// PodNetwork attaches pods to the node's network.
type PodNetwork interface {
	// Attach connects the pod's namespace and returns its address, which is
	// in the node's pod CIDR. It is asked once per sandbox.
	Attach(ctx context.Context, sandbox Sandbox) (netip.Addr, error)
	// Detach gives the address back. An unknown UID is no error.
	Detach(uid string) error
}

// Sandbox is a pod as a PodNetwork sees it.
type Sandbox struct {
	UID, Namespace, Name string
	Net                  *network.Namespace // the pod's
	PodCIDR              netip.Prefix       // the node's
}

func (c *Config) complete() error {
	var missing []error
	need := func(name string, absent bool) {
		if absent {
			missing = append(missing, fmt.Errorf("%s: is not set", name))
		}
	}
	need("NodeName", c.NodeName == "")
	need("Client", c.Client == nil)
	need("Net", c.Net == nil)
	need("Containers", c.Containers == nil)
	need("Pull", c.Pull == nil)
	need("Dir", c.Dir == "")
	need("Clock", c.Clock == nil)
	need("ServingCert", c.ServingCert == nil)
	if err := errors.Join(missing...); err != nil {
		return fmt.Errorf("kubelet configuration: %w", err)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.CNIReady == nil {
		c.CNIReady = CNIConfigured(c.Dir)
	}
	if c.ClusterDomain == "" {
		c.ClusterDomain = "cluster.local"
	}
	if c.Port == 0 {
		c.Port = DefaultPort
	}
	if c.MaxPods == 0 {
		c.MaxPods = 110
	}
	c.Log = c.Log.With("node", c.NodeName)
	return nil
}
