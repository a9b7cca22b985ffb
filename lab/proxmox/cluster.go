package proxmox

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/proxmox/access"
	"aether.internal/aether/lab/proxmox/pki"
	"aether.internal/aether/lab/proxmox/schema"
)

// Cluster is a running simulated PVE cluster.
type Cluster struct {
	cfg    Config
	schema *schema.Schema
	create *schema.Call // of a VM, which knows the formats of all options
	access *access.Store
	routes map[string]handler
	pki    *pki.Authority
	nodes  map[string]*node
	order  []*node

	ctx    context.Context //nolint:containedctx // the cluster's life, parent of all its tasks
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex // guards all below and the state of VMs and storages
	vms   map[int]*vm
	ha    map[int]*haResource
	stats map[int]map[string]any // what pvestatd last broadcast

	// poolsMu is taken last: permission checks look at pools.
	poolsMu sync.Mutex
	pools   map[string]*pool
}

// ticketLife is how long a login lasts.
const ticketLife = 2 * time.Hour

// New starts a cluster: its hosts listen when it returns.
func New(cfg Config) (*Cluster, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("proxmox: %w", err)
	}
	facts, err := schema.Load()
	if err != nil {
		return nil, fmt.Errorf("proxmox: %w", err)
	}
	authority, err := pki.New(cfg.Cluster)
	if err != nil {
		return nil, fmt.Errorf("proxmox: %w", err)
	}
	c := &Cluster{
		cfg: cfg, schema: facts, access: access.NewStore(cfg.Clock.Scale(ticketLife)), routes: routes(), pki: authority,
		nodes: map[string]*node{}, vms: map[int]*vm{}, pools: map[string]*pool{}, ha: map[int]*haResource{},
		stats: map[int]map[string]any{},
	}
	c.create, _ = facts.Find("POST", "/nodes/x/qemu")
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if err := c.seed(); err != nil {
		c.cancel()
		return nil, fmt.Errorf("proxmox: %w", err)
	}
	for _, n := range c.order {
		if err := n.up(c); err != nil {
			c.Close()
			return nil, fmt.Errorf("proxmox: start %s: %w", n.Name, err)
		}
	}
	c.startMachines()
	c.wg.Add(2)
	go c.broadcast()
	go c.watchFaults()
	return c, nil
}

// seed fills the cluster from its configuration.
func (c *Cluster) seed() error {
	c.access.SetPoolOf(c.poolOf)
	for name, privileges := range c.cfg.Roles {
		c.access.SetRole(name, privileges)
	}
	for _, u := range c.cfg.Users {
		c.access.AddUser(u)
	}
	for _, t := range c.cfg.Tokens {
		if _, err := c.access.AddToken(t); err != nil {
			return fmt.Errorf("token %s: %w", t.ID, err)
		}
	}
	for _, a := range c.cfg.ACL {
		if err := c.access.Grant(a); err != nil {
			return fmt.Errorf("acl %s: %w", a.Path, err)
		}
	}
	for _, name := range c.cfg.Pools {
		c.pools[name] = &pool{id: name, storages: map[string]bool{}, vms: map[int]bool{}}
	}
	shared := map[string]*storage{}
	for i, spec := range c.cfg.Nodes {
		n, err := newNode(c, spec, i+1, shared)
		if err != nil {
			return err
		}
		c.nodes[n.Name] = n
		c.order = append(c.order, n)
	}
	for _, t := range c.cfg.Templates {
		if err := c.addTemplate(t); err != nil {
			return fmt.Errorf("template %d: %w", t.VMID, err)
		}
	}
	for _, m := range c.cfg.Machines {
		if err := c.addMachine(m); err != nil {
			return fmt.Errorf("machine %d: %w", m.VMID, err)
		}
	}
	return nil
}

// Close cuts the power of all hosts and returns when nothing runs any more.
func (c *Cluster) Close() {
	c.cancel()
	for _, n := range c.order {
		n.down(c)
	}
	c.wg.Wait()
}

// Access returns the users, tokens and grants, for tests to change.
func (c *Cluster) Access() *access.Store { return c.access }

// Token adds an API token and returns its secret.
func (c *Cluster) Token(t access.Token) (string, error) {
	added, err := c.access.AddToken(t)
	return added.Secret, err
}

// Secrets returns every secret that the cluster holds or handed out: token
// secrets, passwords, tickets and their CSRF tokens.
func (c *Cluster) Secrets() []string { return c.access.Secrets() }

// CAPEM returns the certificate of the cluster's authority, which signs the
// certificates of all hosts.
func (c *Cluster) CAPEM() []byte { return c.pki.PEM() }

// Endpoint returns the base URL of a node's API, or "" while it is off.
func (c *Cluster) Endpoint(node string) string {
	n := c.nodes[node]
	if n == nil {
		return ""
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.api == nil {
		return ""
	}
	return "https://" + n.api.Addr().String() + "/api2/json"
}

// HostKey returns the key that a node's SSH door shows, or nil without a door.
func (c *Cluster) HostKey(node string) ssh.PublicKey {
	n := c.nodes[node]
	if n == nil || n.door == nil {
		return nil
	}
	return n.door.HostKey()
}

// watchFaults switches hosts off and on as faults come and go. The set has no
// notification, and a tenth of a second is far below what it simulates.
func (c *Cluster) watchFaults() {
	defer c.wg.Done()
	const interval = 50 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-ticker.C:
		}
		for _, n := range c.order {
			off := c.cfg.Faults.InForce("pve/host/"+n.Name, faults.HostOff)
			away := c.cfg.Faults.InForce("pve/api/"+n.Name, faults.Away)
			if err := n.set(c, !off, !away); err != nil {
				c.cfg.Log.Error("change host", "node", n.Name, "error", err)
			}
		}
	}
}

// quorate tells whether writes are possible.
func (c *Cluster) quorate() bool {
	if c.cfg.Faults.InForce("pve/quorum", faults.NoQuorum) {
		return false
	}
	votes, online := len(c.order), 0
	for _, n := range c.order {
		if n.powered() {
			online++
		}
	}
	if c.cfg.QDevice {
		votes++
		online++
	}
	return online > votes/2
}

func (c *Cluster) needQuorum() error {
	if !c.quorate() {
		return fail("cluster not ready - no quorum?")
	}
	return nil
}

func address(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
