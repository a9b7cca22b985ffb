package proxmox

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/proxmox/lock"
	"aether.internal/aether/lab/proxmox/schema"
	"aether.internal/aether/lab/proxmox/task"
)

func blankContent() *machine.Content { return machine.NewContent(machine.Image{OS: "blank"}) }

// createVM writes a configuration that is only a lock before it answers.
func createVM(c *Cluster, r *call) (any, error) {
	vmid := r.vmid()
	if err := c.checkCreate(r, vmid); err != nil {
		return nil, err
	}
	ch := &change{set: r.values.Map()}
	for _, key := range []string{"node", "vmid", "pool", "start", "unique", "force", "bwlimit", "live-restore", "storage", "ha-managed", "import-working-storage"} {
		delete(ch.set, key)
	}
	if ch.set["archive"] != "" {
		return nil, fail("unable to restore: backups are not served by the lab")
	}
	if err := c.checkNewDevices(r, vmid, ch); err != nil {
		return nil, err
	}
	if err := c.needQuorum(); err != nil {
		return nil, err
	}
	v, err := c.reserve(r.node, vmid, "create")
	if err != nil {
		return nil, err
	}
	t := c.start(r, taskSpec{kind: "qmcreate", vmid: vmid}, func(t *task.Task) error {
		err := c.createTask(r, t, creation{v, ch})
		if err == nil || errors.Is(err, task.ErrKilled) {
			return err
		}
		c.mu.Lock()
		c.removeVM(v)
		c.mu.Unlock()
		return fmt.Errorf("unable to create VM %d - %w", vmid, taskError(err))
	})
	return t.UPID().String(), nil
}

func (c *Cluster) checkCreate(r *call, vmid int) error {
	pool := r.values.Get("pool")
	allowed := c.access.Check(r.id, fmt.Sprintf("/vms/%d", vmid), "VM.Allocate") == nil
	if pool != "" {
		if !c.hasPool(pool) {
			return poolMissing(pool)
		}
		allowed = allowed || c.access.Check(r.id, "/pool/"+pool, "VM.Allocate") == nil
	}
	if !allowed {
		return c.access.Evaluate(r.id, schema.Expression{"or"}, nil)
	}
	return nil
}

// checkNewDevices tests storages and bridges; who may allocate a VM may set
// all its other options.
func (c *Cluster) checkNewDevices(r *call, vmid int, ch *change) error {
	for _, key := range ch.keys() {
		props := c.split(key, ch.set[key])
		switch {
		case isDrive(key):
			if err := c.checkDrive(r, vmid, props); err != nil {
				return err
			}
		case isIndexed(key, "net"):
			if err := c.checkBridge(r, props); err != nil {
				return err
			}
		case kindOfOption(key) == otherOption && !r.id.IsRoot():
			return fail("only root can set '%s' config", key)
		}
	}
	return nil
}

type creation struct {
	vm     *vm
	change *change
}

func (c *Cluster) createTask(r *call, t *task.Task, cr creation) error {
	release, err := c.lockConfig(t.Context(), r.node, configLock{cr.vm.id, lock.Exclusive, createTimeout, t})
	if err != nil {
		return err
	}
	defer release()
	if err := t.Step(latency.VMConfig, 1); err != nil {
		return err
	}
	c.mu.Lock()
	conf := map[string]string{
		"smbios1": "uuid=" + newUUID(), "vmgenid": newUUID(), "lock": "create",
		"meta": fmt.Sprintf("creation-qemu=10.1.2,ctime=%d", time.Now().Unix()),
	}
	for _, key := range cr.change.keys() {
		value, err := c.resolve(cr.vm, key, cr.change.set[key])
		if err != nil {
			c.mu.Unlock()
			return err
		}
		conf[key] = value
		cr.vm.conf[key] = value
	}
	if conf["boot"] == "" {
		conf["boot"] = c.defaultBoot(conf)
	}
	delete(conf, "lock")
	cr.vm.conf = conf
	c.joinPool(r.values.Get("pool"), cr.vm.id)
	c.mu.Unlock()
	if r.values.Bool("start") {
		c.startByRoot(r.node, cr.vm.id)
	}
	return nil
}

func (c *Cluster) defaultBoot(conf map[string]string) string {
	var order []string
	if disks := c.bootDisks(conf); len(disks) > 0 {
		order = append(order, disks[0].key)
	}
	for _, key := range []string{"ide2", "net0"} {
		if _, ok := conf[key]; ok {
			order = append(order, key)
		}
	}
	return "order=" + strings.Join(order, ";")
}

func destroyVM(c *Cluster, r *call) (any, error) {
	vmid := r.vmid()
	if err := c.rootOnly(r, "skiplock"); err != nil {
		return nil, err
	}
	if err := c.checkDestroy(r, vmid); err != nil {
		return nil, err
	}
	if err := c.needQuorum(); err != nil {
		return nil, err
	}
	purge, unreferenced := r.values.Bool("purge"), r.values.Bool("destroy-unreferenced-disks")
	t := c.start(r, taskSpec{kind: "qmdestroy", vmid: vmid}, func(t *task.Task) error {
		return c.destroyTask(r, t, destruction{vmid, purge, unreferenced})
	})
	return t.UPID().String(), nil
}

func (c *Cluster) checkDestroy(r *call, vmid int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(r.node, vmid)
	switch {
	case err != nil:
		return err
	case v.conf["protection"] == "1":
		return fail("can't remove VM %d - protection mode enabled", vmid)
	case c.ha[vmid] != nil && !r.values.Bool("purge"):
		return fail("unable to remove VM %d - used in HA resources and purge parameter not set.", vmid)
	case v.running():
		return fail("VM %d is running - destroy failed", vmid)
	}
	return nil
}

type destruction struct {
	vmid                int
	purge, unreferenced bool
}

// destroyTask frees the volumes first; the configuration stays until the end,
// so that the VMID is taken until all is gone.
func (c *Cluster) destroyTask(r *call, t *task.Task, d destruction) error {
	release, err := c.lockConfig(t.Context(), r.node, exclusive(d.vmid, t))
	if err != nil {
		return err
	}
	defer release()
	c.mu.Lock()
	v, err := c.find(r.node, d.vmid)
	if err == nil {
		err = c.mayDestroy(v)
	}
	if err != nil {
		c.mu.Unlock()
		return err
	}
	before := maps.Clone(v.conf)
	v.conf["lock"] = "destroyed"
	c.mu.Unlock()
	if err := t.Step(latency.VMDestroy, 1); err != nil {
		if !errors.Is(err, task.ErrKilled) {
			c.mu.Lock()
			v.conf = before
			c.mu.Unlock()
		}
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeVM(v)
	if d.unreferenced {
		for _, s := range r.node.storages {
			maps.DeleteFunc(s.volumes, func(_ string, vol *volume) bool { return vol.vmid == d.vmid })
		}
	}
	if d.purge {
		delete(c.ha, d.vmid)
		c.leavePools(d.vmid)
	}
	return nil
}

func (c *Cluster) mayDestroy(v *vm) error {
	if v.running() {
		return fail("VM %d is running - destroy failed", v.id)
	}
	if err := v.checkLock(); err != nil {
		return err
	}
	for _, d := range c.drives(v.conf) {
		s, vol, err := c.volume(v.node, d.file())
		if err == nil && s.children(vol.name) > 0 {
			return fail("base volume '%s' is still in use by linked cloned", d.file())
		}
	}
	return nil
}

func templateVM(c *Cluster, r *call) (any, error) {
	c.mu.Lock()
	v, err := c.find(r.node, r.vmid())
	if err == nil {
		err = v.mayBecomeTemplate()
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := c.needQuorum(); err != nil {
		return nil, err
	}
	t := c.start(r, taskSpec{kind: "qmtemplate", vmid: v.id}, func(t *task.Task) error {
		release, err := c.lockConfig(t.Context(), r.node, exclusive(v.id, t))
		if err != nil {
			return err
		}
		defer release()
		c.mu.Lock()
		if err = v.mayBecomeTemplate(); err == nil {
			v.conf["template"] = "1"
		}
		c.mu.Unlock()
		if err != nil {
			return err
		}
		if err := t.Step(latency.VMTemplate, 1); err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.convertDisks(v)
	})
	return t.UPID().String(), nil
}

func (v *vm) mayBecomeTemplate() error {
	switch {
	case v.conf["lock"] != "":
		return v.checkLock()
	case len(v.snapshots) > 0:
		return fail("unable to create template, because VM contains snapshots")
	case v.isTemplate():
		return fail("you can't convert a template to a template")
	case v.running():
		return fail("you can't convert a VM to template if VM is running")
	}
	return nil
}

// convertDisks renames a template's disks to base volumes.
func (c *Cluster) convertDisks(v *vm) error {
	for _, d := range c.drives(v.conf) {
		if d.isCDROM() {
			continue
		}
		s, vol, err := c.volume(v.node, d.file())
		if err != nil {
			return err
		}
		if s.Type == "lvm" {
			return fail("can't create base images in lvm storage")
		}
		delete(s.volumes, vol.name)
		vol.name = strings.Replace(vol.name, "vm-", "base-", 1)
		s.volumes[vol.name] = vol
		d.props["file"] = s.Name + ":" + vol.name
		v.conf[d.key] = d.props.joinDrive()
	}
	return nil
}

func resizeVM(c *Cluster, r *call) (any, error) {
	vmid, key := r.vmid(), r.values.Get("disk")
	if err := c.rootOnly(r, "skiplock"); err != nil {
		return nil, err
	}
	if err := c.needQuorum(); err != nil {
		return nil, err
	}
	t := c.start(r, taskSpec{kind: "resize", vmid: vmid}, func(t *task.Task) error {
		release, err := c.lockConfig(t.Context(), r.node, exclusive(vmid, t))
		if err != nil {
			return err
		}
		defer release()
		if err := t.Step(latency.VMConfig, 1); err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.resize(r, key, r.values.Get("size"))
	})
	return t.UPID().String(), nil
}

// resize grows a disk; c.mu is held.
func (c *Cluster) resize(r *call, key, size string) error {
	v, err := c.find(r.node, r.vmid())
	if err != nil {
		return err
	}
	if err := v.checkDigest(r.values.Get("digest")); err != nil {
		return err
	}
	if err := v.checkLock(); err != nil {
		return err
	}
	text, ok := v.conf[key]
	if !ok {
		return fail("disk '%s' does not exist", key)
	}
	d := drive{key: key, props: c.split(key, text)}
	if d.isCDROM() {
		return fail("you can't resize a cdrom")
	}
	storageName, _, _ := splitVolume(d.file())
	if err := c.access.Check(r.id, "/storage/"+storageName, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	_, vol, err := c.volume(r.node, d.file())
	if err != nil {
		return err
	}
	added, relative := strings.CutPrefix(size, "+")
	want, _ := parseSize(added)
	if relative {
		want += vol.size
	}
	if want < vol.size {
		return fail("shrinking disks is not supported")
	}
	vol.size = want
	d.props["size"] = formatSize(want)
	v.conf[key] = d.props.joinDrive()
	return nil
}

func unlinkVM(c *Cluster, r *call) (any, error) {
	ch := &change{deletes: schema.SplitList(r.values.Get("idlist")), force: r.values.Bool("force")}
	release, err := c.lockConfig(r.ctx, r.node, exclusive(r.vmid(), nil))
	if err != nil {
		return nil, err
	}
	defer release()
	if err := c.precheckChange(r, r.vmid(), ch); err != nil {
		return nil, err
	}
	return nil, c.apply(r.node, r.vmid(), ch)
}
