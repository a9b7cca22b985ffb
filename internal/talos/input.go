package talos

import (
	"net"
	"net/netip"
)

// StartupTaint keeps pods off a node until Cilium's agent runs there. Cilium's
// operator removes it; the autoscaler is told to count such nodes as starting.
func StartupTaint() Taint {
	return Taint{Key: "node.cilium.io/agent-not-ready", Value: "true", Effect: "NoExecute"}
}

// Input is everything a worker's configuration depends on.
type Input struct {
	// Cluster is the tenant's cluster name.
	Cluster string
	// Endpoint is the tenant's API server as the worker dials it:
	// https://<proxy address>:6443.
	Endpoint string
	// KubernetesCA is the PEM certificate of the tenant's own (Kamaji's) CA.
	KubernetesCA []byte
	// TalosCA is the PEM certificate of the tenant's Talos CA, see [NewCA].
	// The key never goes to a worker.
	TalosCA []byte
	// Token is this worker's own bootstrap token.
	Token BootstrapToken
	// KubernetesVersion is the tenant's exact version, as v1.35.4.
	KubernetesVersion string
	// TalosVersion is the version on the template's disk, as v1.12.6.
	TalosVersion string

	// Hostname becomes the Node's name.
	Hostname string
	// ProviderID is set once, when the Node registers.
	ProviderID string

	PodCIDRs     []netip.Prefix
	ServiceCIDRs []netip.Prefix
	// DNSDomain is the cluster domain, as cluster.local.
	DNSDomain string

	// NICs are the network cards in order; the first one carries the node's
	// address.
	NICs []NIC
	// Nameservers, TimeServers are used before Kubernetes is up.
	Nameservers []netip.Addr
	TimeServers []string
	// Hosts are static names, for registries that no nameserver knows.
	Hosts []Host
	// TrustedRoots are private CAs, as Harbor's.
	TrustedRoots []TrustedRoot
	// Mirrors replace registries; a registry without one is dialled directly.
	Mirrors []Mirror

	// Labels are set by the node itself; see [SplitLabels] for the others.
	Labels map[string]string
	// Taints are the pool's; the start-up taint is added.
	Taints []Taint

	Install Install
}

// NIC is a network card with its static address.
type NIC struct {
	// Alias is the name given to the link, as net0. The kernel's own names
	// depend on the platform, the alias depends on the MAC only.
	Alias string
	// MAC is the address that Proxmox was told to use.
	MAC net.HardwareAddr
	// Address is the machine's address with the length of its network.
	Address netip.Prefix
	// Gateway of the default route; not set for a network without one.
	Gateway netip.Addr
	// MTU of the link.
	MTU int
}

// Host is an entry of /etc/hosts.
type Host struct {
	Address netip.Addr
	Names   []string
}

// TrustedRoot is a certificate authority that the machine trusts.
type TrustedRoot struct {
	Name string
	PEM  []byte
}

// Mirror says where the images of a registry really come from.
type Mirror struct {
	// Registry is the host in image references, as ghcr.io.
	Registry string
	// URL is the whole path up to the image's name. For a Harbor proxy project:
	// https://<harbor>/v2/<project>.
	URL string
}

// Taint keeps pods away that do not tolerate it.
type Taint struct {
	Key, Value, Effect string
}

// Install is what an upgrade would write and where. A nocloud disk image is
// already installed, so the first boot does not use it.
type Install struct {
	Disk  string // as /dev/sda
	Image string // installer of the template's own version and platform
}
