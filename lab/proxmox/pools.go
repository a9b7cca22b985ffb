package proxmox

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"aether.internal/aether/lab/proxmox/schema"
)

// pool groups VMs and storages for permissions.
type pool struct {
	id, comment string
	vms         map[int]bool
	storages    map[string]bool
}

func (c *Cluster) poolNames() []string {
	c.poolsMu.Lock()
	defer c.poolsMu.Unlock()
	return slices.Sorted(maps.Keys(c.pools))
}

// poolOf finds the pool of /vms/N or /storage/x.
func (c *Cluster) poolOf(path string) string {
	c.poolsMu.Lock()
	defer c.poolsMu.Unlock()
	for name, p := range c.pools {
		if id, ok := strings.CutPrefix(path, "/vms/"); ok {
			if n, err := strconv.Atoi(id); err == nil && p.vms[n] {
				return name
			}
		}
		if id, ok := strings.CutPrefix(path, "/storage/"); ok && p.storages[id] {
			return name
		}
	}
	return ""
}

func (c *Cluster) hasPool(name string) bool {
	c.poolsMu.Lock()
	defer c.poolsMu.Unlock()
	return c.pools[name] != nil
}

// joinPool adds a new VM to the pool that its call named, if any.
func (c *Cluster) joinPool(name string, vmid int) {
	c.poolsMu.Lock()
	defer c.poolsMu.Unlock()
	if p := c.pools[name]; p != nil {
		p.vms[vmid] = true
	}
}

// leavePools forgets a VM that was destroyed.
func (c *Cluster) leavePools(vmid int) {
	c.poolsMu.Lock()
	defer c.poolsMu.Unlock()
	for _, p := range c.pools {
		delete(p.vms, vmid)
	}
}

// members lists what is in a pool; both locks are held.
func (c *Cluster) members(p *pool) []map[string]any {
	rows := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(p.vms)) {
		if v := c.vms[id]; v != nil {
			row := c.status(v)
			row["id"], row["type"], row["node"] = fmt.Sprintf("qemu/%d", id), "qemu", v.node.Name
			row["template"] = boolInt(v.isTemplate())
			rows = append(rows, row)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.storages)) {
		rows = append(rows, map[string]any{"id": "storage/" + name, "type": "storage", "storage": name})
	}
	return rows
}

func listPools(c *Cluster, r *call) (any, error) {
	want := r.values.Get("poolid")
	rows := []map[string]any{}
	for _, name := range c.poolNames() {
		if (want != "" && want != name) || c.access.Check(r.id, "/pool/"+name, "Pool.Audit") != nil {
			continue
		}
		c.lockBoth()
		row := map[string]any{"poolid": name}
		if p := c.pools[name]; p != nil {
			row["comment"] = p.comment
			if want != "" {
				row["members"] = c.members(p)
			}
		}
		c.unlockBoth()
		rows = append(rows, row)
	}
	if want != "" && len(rows) == 0 {
		return nil, fail("pool '%s' does not exist", want)
	}
	return rows, nil
}

func readPool(c *Cluster, r *call) (any, error) {
	c.lockBoth()
	defer c.unlockBoth()
	p, err := c.pool(r)
	if err != nil {
		return nil, err
	}
	return map[string]any{"comment": p.comment, "members": c.members(p)}, nil
}

// pool finds the pool that a call names; both locks are held.
func (c *Cluster) pool(r *call) (*pool, error) {
	name := r.values.Get("poolid")
	if p := c.pools[name]; p != nil {
		return p, nil
	}
	return nil, fail("pool '%s' does not exist", name)
}

func createPool(c *Cluster, r *call) (any, error) {
	if err := c.needQuorum(); err != nil {
		return nil, err
	}
	c.lockBoth()
	defer c.unlockBoth()
	name := r.values.Get("poolid")
	if c.pools[name] != nil {
		return nil, fail("pool '%s' already exists", name)
	}
	c.pools[name] = &pool{id: name, comment: r.values.Get("comment"), vms: map[int]bool{}, storages: map[string]bool{}}
	return nil, nil
}

func updatePool(c *Cluster, r *call) (any, error) {
	if err := c.needQuorum(); err != nil {
		return nil, err
	}
	c.lockBoth()
	defer c.unlockBoth()
	p, err := c.pool(r)
	if err != nil {
		return nil, err
	}
	if r.values.Has("comment") {
		p.comment = r.values.Get("comment")
	}
	remove := r.values.Bool("delete")
	for _, text := range schema.SplitList(r.values.Get("vms")) {
		id, err := strconv.Atoi(text)
		if err != nil {
			return nil, paramError("vms", "invalid format - value does not look like a valid VM ID\n")
		}
		if err := c.changeMember(p, id, r); err != nil {
			return nil, err
		}
	}
	for _, name := range schema.SplitList(r.values.Get("storage")) {
		if remove {
			delete(p.storages, name)
		} else {
			p.storages[name] = true
		}
	}
	return nil, nil
}

func (c *Cluster) changeMember(p *pool, id int, r *call) error {
	if r.values.Bool("delete") {
		if !p.vms[id] {
			return fail("VM %d is not a pool member", id)
		}
		delete(p.vms, id)
		return nil
	}
	for _, other := range c.pools {
		if !other.vms[id] {
			continue
		}
		if other == p || !r.values.Bool("allow-move") {
			return fail("VM %d is already a pool member", id)
		}
		delete(other.vms, id)
	}
	p.vms[id] = true
	return nil
}

func deletePool(c *Cluster, r *call) (any, error) {
	if err := c.needQuorum(); err != nil {
		return nil, err
	}
	c.lockBoth()
	defer c.unlockBoth()
	p, err := c.pool(r)
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(p.vms)) {
		if c.vms[id] != nil {
			return nil, fail("pool '%s' is not empty (contains VM %d)", p.id, id)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.storages)) {
		return nil, fail("pool '%s' is not empty (contains storage '%s')", p.id, name)
	}
	delete(c.pools, p.id)
	return nil, nil
}

func (c *Cluster) lockBoth() {
	c.mu.Lock()
	c.poolsMu.Lock()
}

func (c *Cluster) unlockBoth() {
	c.poolsMu.Unlock()
	c.mu.Unlock()
}
