package proxmox

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"aether.internal/aether/lab/proxmox/door"
	"aether.internal/aether/lab/proxmox/lock"
	"aether.internal/aether/lab/proxmox/pki"
	"aether.internal/aether/lab/proxmox/task"
	"aether.internal/aether/lab/proxmox/wire"
)

// node is one host.
type node struct {
	Node
	index    int
	tasks    *task.Registry
	locks    *lock.Table
	storages map[string]*storage
	cert     tls.Certificate
	door     *door.Door // nil without keys

	changing sync.Mutex // held while the host goes up or down

	mu     sync.Mutex
	on     bool
	boot   time.Time
	api    net.Listener // nil while the API is down
	server *wire.Server
	life   context.Context //nolint:containedctx // from power-on to power-off
	cut    context.CancelCauseFunc
}

func newNode(c *Cluster, spec Node, index int, shared map[string]*storage) (*node, error) {
	n := &node{Node: spec, index: index, locks: &lock.Table{}, storages: map[string]*storage{}}
	n.tasks = task.NewRegistry(spec.Name, c.cfg.Clock)
	cert, err := c.pki.Issue(spec.Name, spec.Address)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", spec.Name, err)
	}
	n.cert = cert
	for _, s := range spec.Storages {
		if s.Shared && shared[s.Name] != nil {
			n.storages[s.Name] = shared[s.Name]
			continue
		}
		st := &storage{Storage: s, locks: n.locks, volumes: map[string]*volume{}}
		n.storages[s.Name] = st
		if s.Shared {
			shared[s.Name] = st
		}
	}
	if len(c.cfg.AuthorizedKeys) > 0 {
		flush := func(device string, ip netip.Addr) error { return c.cfg.FlushNeighbour(spec.Name, device, ip) }
		if n.door, err = door.New(c.cfg.AuthorizedKeys, flush, c.cfg.Log); err != nil {
			return nil, fmt.Errorf("ssh door of %s: %w", spec.Name, err)
		}
	}
	return n, nil
}

func (n *node) powered() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.on
}

func (n *node) reachable() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.on && n.api != nil
}

func (n *node) uptime() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return int(time.Since(n.boot).Seconds())
}

// set brings the host into the wanted state; most of the time it is in it.
func (n *node) set(c *Cluster, on, api bool) error {
	n.mu.Lock()
	isOn, hasAPI := n.on, n.api != nil
	n.mu.Unlock()
	switch {
	case isOn && !on:
		n.down(c)
	case !isOn && on:
		if err := n.up(c); err != nil {
			return err
		}
		c.startOnBoot(n)
	case on && hasAPI && !api:
		n.closeAPI()
	case on && !hasAPI && api:
		return n.openAPI(c)
	}
	return nil
}

// up powers the host on.
func (n *node) up(c *Cluster) error {
	n.changing.Lock()
	defer n.changing.Unlock()
	if c.ctx.Err() != nil {
		return nil
	}
	n.mu.Lock()
	n.on, n.boot = true, time.Now()
	n.life, n.cut = context.WithCancelCause(c.ctx)
	life := n.life
	n.mu.Unlock()
	n.tasks.Boot(life)
	if n.door != nil {
		l, err := c.cfg.Listen(n.Name, address(n.Address, n.SSHPort))
		if err != nil {
			return fmt.Errorf("listen for ssh: %w", err)
		}
		c.wg.Go(func() { c.logServe(n, n.door.Serve(life, l)) })
	}
	return n.openAPI(c)
}

func (c *Cluster) logServe(n *node, err error) {
	if err != nil {
		c.cfg.Log.Error("serve", "node", n.Name, "error", err)
	}
}

func (n *node) openAPI(c *Cluster) error {
	l, err := c.cfg.Listen(n.Name, address(n.Address, n.APIPort))
	if err != nil {
		return fmt.Errorf("listen for the API: %w", err)
	}
	server := wire.NewServer(n.cert, func(ctx context.Context, r *wire.Request) wire.Response { return c.serve(ctx, n, r) }, c.cfg.Log)
	n.mu.Lock()
	n.api, n.server = l, server
	life := n.life
	n.mu.Unlock()
	c.wg.Go(func() { c.logServe(n, server.Serve(life, l)) })
	return nil
}

func (n *node) closeAPI() *wire.Server {
	n.mu.Lock()
	server := n.server
	n.api, n.server = nil, nil
	n.mu.Unlock()
	if server != nil {
		server.Close()
	}
	return server
}

// down cuts the power: connections, tasks and VMs end at once.
func (n *node) down(c *Cluster) {
	n.changing.Lock()
	defer n.changing.Unlock()
	server := n.closeAPI()
	if n.door != nil {
		n.door.Close()
	}
	n.mu.Lock()
	n.on = false
	cut := n.cut
	n.mu.Unlock()
	if cut != nil {
		cut(task.ErrKilled)
	}
	n.tasks.KillAll()
	c.killGuests(n)
	if server != nil {
		server.Wait()
	}
}

func (n *node) bridge(name string) (Bridge, bool) {
	i := slices.IndexFunc(n.Bridges, func(b Bridge) bool { return b.Name == name })
	if i < 0 {
		return Bridge{}, false
	}
	return n.Bridges[i], true
}

// hostOverhead is what a host uses beside its VMs.
const hostOverhead = 2 * gib

// usedMemory is what the running VMs of a host take, and the host itself.
func (c *Cluster) usedMemory(n *node) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	used := hostOverhead
	for _, v := range c.vms {
		if v.node == n && v.running() {
			used += int64(v.hardware.MemoryMiB) << 20
		}
	}
	return min(used, n.MemoryBytes)
}

// nodeRows is the body of /nodes; statistics need Sys.Audit.
func (c *Cluster) nodeRows(r *call) []map[string]any {
	rows := []map[string]any{}
	for _, n := range c.order {
		row := map[string]any{
			"node": n.Name, "id": "node/" + n.Name, "type": "node", "status": "offline", "ssl_fingerprint": pki.Fingerprint(n.cert),
		}
		if n.powered() {
			row["status"] = "online"
			if c.access.Check(r.id, "/nodes/"+n.Name, "Sys.Audit") == nil {
				const idleCPU = 0.02
				row["level"], row["cpu"], row["maxcpu"] = "", idleCPU, n.Cores
				row["mem"], row["maxmem"] = c.usedMemory(n), n.MemoryBytes
				row["disk"], row["maxdisk"], row["uptime"] = 8*gib, 94*gib, n.uptime()
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func listNodes(c *Cluster, r *call) (any, error) { return c.nodeRows(r), nil }

func nodeStatus(c *Cluster, r *call) (any, error) {
	n := r.node
	used := c.usedMemory(n)
	kernel := "6.17.2-1-pve"
	return map[string]any{
		"uptime": n.uptime(), "loadavg": []string{"0.10", "0.05", "0.01"}, "cpu": 0.02, "wait": 0.0, "idle": 0,
		"kversion":       "Linux " + kernel + " #1 SMP PREEMPT_DYNAMIC",
		"current-kernel": map[string]any{"sysname": "Linux", "release": kernel, "version": "#1 SMP PREEMPT_DYNAMIC", "machine": "x86_64"},
		"boot-info":      map[string]any{"mode": "efi", "secureboot": 0},
		"cpuinfo": map[string]any{
			"cpus": n.Cores, "cores": n.Cores, "sockets": 1, "user_hz": 100,
			"model": "Simulated CPU", "mhz": "3000.000", "flags": "fpu vme", "hvm": "1",
		},
		"memory":     map[string]any{"total": n.MemoryBytes, "used": used, "free": n.MemoryBytes - used, "available": n.MemoryBytes - used},
		"swap":       map[string]any{"total": 8 * gib, "used": 0, "free": 8 * gib},
		"rootfs":     map[string]any{"total": 94 * gib, "used": 8 * gib, "free": 86 * gib, "avail": 86 * gib},
		"ksm":        map[string]any{"shared": 0},
		"pveversion": "pve-manager/" + pveVersion + "/" + pveRepo,
	}, nil
}

func nodeTime(*Cluster, *call) (any, error) {
	now := time.Now()
	return map[string]any{"time": now.Unix(), "localtime": now.Unix(), "timezone": "Etc/UTC"}, nil
}

func nodeDNS(_ *Cluster, r *call) (any, error) {
	out := map[string]any{"search": r.node.SearchDomain}
	for i, server := range r.node.Nameservers {
		out[fmt.Sprintf("dns%d", i+1)] = server
	}
	return out, nil
}

func listContainers(*Cluster, *call) (any, error) { return []map[string]any{}, nil }

func bridgeRow(b Bridge) map[string]any {
	row := map[string]any{
		"iface": b.Name, "type": "bridge", "active": 1, "autostart": 1, "method": "manual", "method6": "manual",
		"families": []string{"inet"}, "bridge_ports": b.Ports, "bridge_stp": "off", "bridge_fd": "0", "priority": 4,
	}
	if b.VLANAware {
		row["bridge_vlan_aware"], row["bridge_vids"] = 1, "2-4094"
	}
	if ip, bits, ok := strings.Cut(b.CIDR, "/"); ok {
		row["method"], row["address"], row["netmask"], row["cidr"], row["gateway"] = "static", ip, bits, b.CIDR, b.Gateway
	}
	return row
}

// mayUseBridge filters lists of bridges.
func (c *Cluster) mayUseBridge(r *call, name string) bool {
	return c.access.CheckAny(r.id, "/sdn/zones/"+localZone+"/"+name, "SDN.Audit", "SDN.Use") == nil
}

func listNetwork(c *Cluster, r *call) (any, error) {
	rows := []map[string]any{}
	kind := r.values.Get("type")
	bridges := map[string]bool{"": true, "bridge": true, "any_bridge": true, "any_local_bridge": true, "include_sdn": true}
	for _, b := range r.node.Bridges {
		filtered := strings.HasPrefix(kind, "any_") && !c.mayUseBridge(r, b.Name)
		if bridges[kind] && !filtered {
			rows = append(rows, bridgeRow(b))
		}
		if b.Ports != "" && (kind == "" || kind == "eth") {
			rows = append(rows, map[string]any{
				"iface": b.Ports, "type": "eth", "active": 1, "exists": 1, "method": "manual", "method6": "manual",
				"families": []string{"inet"}, "priority": 3,
			})
		}
	}
	return rows, nil
}

func readNetwork(_ *Cluster, r *call) (any, error) {
	name := r.values.Get("iface")
	b, ok := r.node.bridge(name)
	if !ok {
		return nil, paramError("iface", "interface does not exist")
	}
	return bridgeRow(b), nil
}
