package proxmox

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"golang.org/x/crypto/ssh"

	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/proxmox/access"
)

// Config describes a cluster. Cluster, Nodes, Hypervisor, Clock and Listen
// are required.
type Config struct {
	Cluster string
	Nodes   []Node
	// QDevice is an external vote that keeps a cluster of two quorate while
	// one of them is off.
	QDevice bool

	Hypervisor machine.Hypervisor
	Clock      *latency.Clock
	Faults     *faults.Set
	Log        *slog.Logger

	Templates []Template
	Machines  []Machine

	Users  []access.User
	Tokens []access.Token
	ACL    []access.ACL
	Roles  map[string][]string
	Pools  []string

	// AuthorizedKeys open the SSH door. Without keys there is none.
	AuthorizedKeys []ssh.PublicKey

	// Listen opens a port on a node; address is the node's own with the
	// port. It is called again after a host was off.
	Listen func(node, address string) (net.Listener, error)
	// FlushNeighbour is `ip neigh flush` on the node; device may be empty.
	FlushNeighbour func(node, device string, ip netip.Addr) error
	// AccessLog is called after each answer.
	AccessLog func(AccessRecord)
}

// Node is a PVE host.
type Node struct {
	Name        string
	Address     string // IPv4 of the management network
	APIPort     int    // 0: 8006
	SSHPort     int    // 0: 22
	Cores       int
	MemoryBytes int64
	Bridges     []Bridge
	Storages    []Storage
	// Nameservers and SearchDomain are the host's, which cloud-init drives
	// get when a VM has none.
	Nameservers  []string
	SearchDomain string
}

// Bridge is a Linux bridge of a host.
type Bridge struct {
	Name      string
	VLANAware bool
	CIDR      string // address of the host on it, or empty
	Gateway   string
	Ports     string
}

// Storage is a storage on a host. A shared one of the same name on several
// hosts holds the same volumes.
type Storage struct {
	Name    string
	Type    string   // dir, lvmthin, lvm, zfspool, rbd, nfs
	Content []string // images, iso, vztmpl, backup, import, rootdir
	Bytes   int64
	Shared  bool
}

// Template is a VM template that exists from the start.
type Template struct {
	VMID    int
	Node    string
	Name    string
	Image   machine.Image
	Storage string // empty: the first that holds images
	DiskGiB int
	// Options are further keys of its configuration; a value of
	// "<storage>:cloudinit" makes a drive.
	Options map[string]string
	// FlagOnly leaves the disk unconverted, as a hand-edited template has it.
	FlagOnly bool
}

// Machine is a plain VM that exists from the start.
type Machine struct {
	VMID      int
	Node      string
	Name      string
	Image     machine.Image
	Storage   string
	DiskGiB   int
	MemoryMiB int
	Cores     int
	Options   map[string]string
	Running   bool
}

// AccessRecord is one answered request. It holds no parameters and no secrets.
type AccessRecord struct {
	Time     time.Time
	Node     string // that received it
	Verb     string
	Path     string
	User     string // user@realm!token, or empty
	Status   int    // 0: the connection was broken instead
	Reason   string
	Duration time.Duration
}

const (
	gib            = int64(1) << 30
	defaultAPIPort = 8006
	defaultSSHPort = 22
)

func (c *Config) validate() error {
	switch {
	case c.Cluster == "":
		return errors.New("cluster: is empty; give the name of the PVE cluster")
	case len(c.Nodes) == 0:
		return errors.New("nodes: is empty; give at least one host")
	case c.Hypervisor == nil:
		return errors.New("hypervisor: is missing; give one, or blank.New")
	case c.Clock == nil:
		return errors.New("clock: is missing; give latency.NewClock(speed)")
	case c.Listen == nil:
		return errors.New("listen: is missing; give a function that opens a port on a node")
	}
	seen := map[string]bool{}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if _, err := netip.ParseAddr(n.Address); err != nil || n.Name == "" || seen[n.Name] {
			return fmt.Errorf("nodes[%d]: name %q address %q; give a name of its own and an IP address", i, n.Name, n.Address)
		}
		seen[n.Name] = true
		if n.APIPort == 0 {
			n.APIPort = defaultAPIPort
		}
		if n.SSHPort == 0 {
			n.SSHPort = defaultSSHPort
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.FlushNeighbour == nil {
		c.FlushNeighbour = func(string, string, netip.Addr) error { return nil }
	}
	return nil
}

// HomeLab returns the nodes, templates and grants of the origin's cluster:
// two hosts without shared storage, each with its own templates. Hypervisor,
// Clock, Listen and tokens are for the caller to add.
func HomeLab(talos, envoy machine.Image) Config {
	bridges := func(address string) []Bridge {
		return []Bridge{
			{Name: "vmbr0", VLANAware: true, CIDR: address + "/24", Gateway: "192.168.0.1", Ports: "eno1"},
			{Name: "vmbr1", Ports: "eno2"},
			{Name: "vmbr2", Ports: "eno3"},
		}
	}
	storages := []Storage{
		{Name: "local", Type: "dir", Content: []string{"iso", "vztmpl", "backup"}, Bytes: 94 * gib},
		{Name: "local-lvm", Type: "lvmthin", Content: []string{"images", "rootdir"}, Bytes: 800 * gib},
	}
	node := func(name, address string, cores int, tenthGiB int64) Node {
		return Node{
			Name: name, Address: address, Cores: cores, MemoryBytes: tenthGiB * gib / 10,
			Bridges: bridges(address), Storages: storages, Nameservers: []string{"192.168.0.1"},
		}
	}
	cfg := Config{
		Cluster: "homelab", QDevice: true,
		Nodes: []Node{node("pv1-1", "192.168.0.8", 16, 292), node("pv1-2", "192.168.0.10", 12, 409)},
		Users: []access.User{{ID: "aether@pve"}},
		ACL: []access.ACL{
			{Path: "/", Who: "aether@pve", Role: "PVEVMAdmin", Propagate: true},
			{Path: "/", Who: "aether@pve", Role: "PVEAuditor", Propagate: true},
			{Path: "/storage", Who: "aether@pve", Role: "PVEDatastoreAdmin", Propagate: true},
			{Path: "/sdn/zones/localnetwork", Who: "aether@pve", Role: "PVESDNUser", Propagate: true},
		},
	}
	for i, n := range cfg.Nodes {
		base := (i + 1) * 100
		cfg.Templates = append(cfg.Templates,
			Template{VMID: base + 1, Node: n.Name, Name: "talos-" + n.Name, Image: talos, DiskGiB: 10, Options: templateOptions(2048)},
			Template{VMID: base + 2, Node: n.Name, Name: "envoy-" + n.Name, Image: envoy, DiskGiB: 4, Options: templateOptions(512)})
	}
	return cfg
}

func templateOptions(memory int) map[string]string {
	return map[string]string{
		"memory": fmt.Sprint(memory), "cores": "2", "cpu": "host", "ostype": "l26", "scsihw": "virtio-scsi-pci",
		"agent": "1", "serial0": "socket", "net0": "virtio,bridge=vmbr0", "ide2": "local-lvm:cloudinit",
	}
}
