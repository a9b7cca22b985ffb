package proxmox

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"aether.internal/aether/lab/proxmox/lock"
	"aether.internal/aether/lab/proxmox/task"
	"aether.internal/aether/lab/proxmox/wire"
)

// clonePlan is a clone that passed the checks.
type clonePlan struct {
	source  *vm
	newID   int
	full    bool
	target  *node
	storage string // empty: that of each disk
	format  string
	running bool
	conf    map[string]string // of the source, or of its snapshot
}

// lockedPart is the part of a linked clone's time for which the storage is
// locked.
const lockedPart = 0.5

func cloneVM(c *Cluster, r *call) (any, error) {
	plan, err := c.planClone(r)
	if err != nil {
		return nil, err
	}
	t := c.start(r, taskSpec{kind: "qmclone", vmid: plan.source.id}, func(t *task.Task) error { return c.cloneTask(r, t, plan) })
	return t.UPID().String(), nil
}

// planClone makes PVE's checks in PVE's order. They run before the answer and
// again in the task.
func (c *Cluster) planClone(r *call) (*clonePlan, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := r.values
	p := &clonePlan{newID: v.Int("newid", 0), target: r.node, storage: v.Get("storage"), format: v.Get("format")}
	var err error
	if p.source, err = c.findRunning(r.node, r.vmid()); err != nil {
		return nil, err
	}
	p.running = p.source.running()
	if err := c.checkClonePlace(r, p); err != nil {
		return nil, err
	}
	if err := c.needQuorum(); err != nil {
		return nil, err
	}
	if err := p.source.checkLock(); err != nil {
		return nil, err
	}
	conf, err := p.source.snapshotConf(v.Get("snapname"))
	if err != nil {
		return nil, err
	}
	p.conf = maps.Clone(conf)
	p.full = !p.source.isTemplate()
	if v.Has("full") {
		p.full = v.Bool("full")
	}
	if !p.full && p.storage != "" {
		return nil, fail("parameter 'storage' not allowed for linked clones")
	}
	if !p.full && p.format != "" {
		return nil, fail("parameter 'format' not allowed for linked clones")
	}
	if err := c.checkCloneRights(r, p); err != nil {
		return nil, err
	}
	if err := c.checkCloneLocal(r, p); err != nil {
		return nil, err
	}
	if existing := c.vms[p.newID]; existing != nil && existing.node == r.node {
		return nil, fail("unable to create VM %d: config file already exists", p.newID)
	}
	return p, c.checkCloneFeature(r.node, p)
}

func (v *vm) snapshotConf(name string) (map[string]string, error) {
	if name == "" {
		return v.conf, nil
	}
	for _, s := range v.snapshots {
		if s.name == name {
			return s.conf, nil
		}
	}
	return nil, fail("snapshot '%s' does not exist", name)
}

func (c *Cluster) checkClonePlace(r *call, p *clonePlan) error {
	if name := r.values.Get("pool"); name != "" && !c.hasPool(name) {
		return poolMissing(name)
	}
	if name := r.values.Get("target"); name != "" && name != "localhost" {
		if p.target = c.nodes[name]; p.target == nil {
			return fail("no such cluster node '%s'", name)
		}
	}
	if p.storage == "" {
		return nil
	}
	s, err := c.storage(r.node, p.storage)
	if err != nil {
		return err
	}
	if p.target != r.node {
		if _, err := c.storage(p.target, p.storage); err != nil {
			return err
		}
		if !s.Shared {
			return fail("can't clone to non-shared storage '%s'", p.storage)
		}
	}
	if !s.holds("images") {
		return paramError("storage", fmt.Sprintf("storage '%s' does not support vm images", p.storage))
	}
	return nil
}

func (c *Cluster) checkCloneRights(r *call, p *clonePlan) error {
	for _, d := range c.drives(p.conf) {
		storageName, _, ok := splitVolume(d.file())
		if !ok || (d.isCDROM() && !d.isCloudInit()) {
			continue
		}
		if p.storage != "" {
			storageName = p.storage
		}
		if err := c.access.Check(r.id, "/storage/"+storageName, "Datastore.AllocateSpace"); err != nil {
			return err
		}
	}
	for key, value := range p.conf {
		if isIndexed(key, "net") {
			if err := c.checkBridge(r, c.split(key, value)); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkCloneLocal refuses another target while anything of the source, even
// its cloud-init drive, is on a storage that the target does not share.
func (c *Cluster) checkCloneLocal(r *call, p *clonePlan) error {
	if p.target == r.node {
		return nil
	}
	for _, d := range c.drives(p.conf) {
		storageName, _, ok := splitVolume(d.file())
		if s := r.node.storages[storageName]; ok && (s == nil || !s.Shared) {
			return fail("can't clone VM to node '%s' (VM uses local storage)", p.target.Name)
		}
	}
	return nil
}

func (c *Cluster) checkCloneFeature(n *node, p *clonePlan) error {
	if p.full {
		return nil
	}
	for _, d := range c.drives(p.conf) {
		if d.isCDROM() {
			continue
		}
		s, vol, err := c.volume(n, d.file())
		if err != nil {
			return err
		}
		base := strings.Contains(vol.name, "base-")
		if !base || s.Type == "lvm" || (!s.blockOnly() && vol.format == "raw") {
			return fail("Linked clone feature is not supported for '%s' (%s)", d.file(), d.key)
		}
	}
	return nil
}

func poolMissing(name string) error {
	return &wire.Error{Status: http.StatusForbidden, Message: fmt.Sprintf("Permission check failed (pool '%s' does not exist)\n", name)}
}

// cloneTask holds the source's lock, shared if it is stopped, and that of the
// new VM for the whole copy.
func (c *Cluster) cloneTask(r *call, t *task.Task, p *clonePlan) error {
	mode := lock.Shared
	if p.running {
		mode = lock.Exclusive
	}
	releaseSource, err := c.lockConfig(t.Context(), r.node, configLock{p.source.id, mode, cloneTimeout, t})
	if err != nil {
		return err
	}
	defer releaseSource()
	release, err := c.lockConfig(t.Context(), r.node, configLock{p.newID, lock.Exclusive, cloneTimeout, t})
	if err != nil {
		return err
	}
	defer release()
	if p, err = c.planClone(r); err != nil {
		return err
	}
	t.Log("creating a clone of VM %d with ID %d", p.source.id, p.newID)
	v, err := c.reserve(r.node, p.newID, "clone")
	if err != nil {
		return err
	}
	conf, err := c.copyDisks(r, t, cloning{plan: p, vm: v})
	if err != nil {
		if errors.Is(err, task.ErrKilled) {
			return err
		}
		c.mu.Lock()
		c.removeVM(v)
		c.mu.Unlock()
		return fmt.Errorf("clone failed: %w", taskError(err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v.conf, v.node = conf, p.target
	c.joinPool(r.values.Get("pool"), v.id)
	return nil
}

// reserve writes the first configuration of a VM, which is only its lock.
func (c *Cluster) reserve(n *node, vmid int, lockName string) (*vm, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.vms[vmid]; other != nil {
		return nil, fail("unable to create VM %d - VM %d already exists on node '%s'", vmid, vmid, other.node.Name)
	}
	v := newVM(vmid, n, map[string]string{"lock": lockName})
	c.vms[vmid] = v
	return v, nil
}
