package proxmox

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/proxmox/access"
	"aether.internal/aether/lab/proxmox/schema"
	"aether.internal/aether/lab/proxmox/task"
)

// change is what a client wants to change in a configuration.
type change struct {
	set     map[string]string
	deletes []string
	reverts []string
	force   bool // delete destroys disks instead of keeping them as unused
}

// keys lists what is set, drives first, in a stable order.
func (ch *change) keys() []string {
	keys := slices.Sorted(maps.Keys(ch.set))
	slices.SortStableFunc(keys, func(a, b string) int { return boolInt(isDrive(b)) - boolInt(isDrive(a)) })
	return keys
}

// readChange takes the change out of a request.
func readChange(r *call) (*change, error) {
	ch := &change{set: r.values.Map(), force: r.values.Bool("force")}
	for _, key := range []string{"node", "vmid", "digest", "skiplock", "background_delay", "delete", "revert", "force"} {
		delete(ch.set, key)
	}
	if r.values.Bool("skiplock") && !r.id.IsRoot() {
		return nil, paramError("skiplock", "Only root may use this option.")
	}
	if cd, ok := ch.set["cdrom"]; ok {
		delete(ch.set, "cdrom")
		ch.set["ide2"] = cd + ",media=cdrom"
	}
	for _, key := range schema.SplitList(r.values.Get("delete")) {
		if !r.spec.Defined(key) {
			return nil, paramError("delete", fmt.Sprintf("unknown option '%s'", key))
		}
		if _, both := ch.set[key]; both {
			return nil, paramError("delete", fmt.Sprintf("duplicate configuration option '%s'", key))
		}
		ch.deletes = append(ch.deletes, key)
	}
	for _, key := range schema.SplitList(r.values.Get("revert")) {
		if !r.spec.Defined(key) {
			return nil, paramError("revert", fmt.Sprintf("unknown option '%s'", key))
		}
		ch.reverts = append(ch.reverts, key)
	}
	if len(ch.set)+len(ch.deletes)+len(ch.reverts) == 0 {
		return nil, fail("no options specified")
	}
	return ch, nil
}

func updateVMAsync(c *Cluster, r *call) (any, error) { return c.updateVM(r, false) }
func updateVM(c *Cluster, r *call) (any, error)      { return c.updateVM(r, true) }

// updateVM holds the file lock from the checks to the end of the work, in the
// request or in the task.
func (c *Cluster) updateVM(r *call, sync bool) (any, error) {
	vmid := r.vmid()
	ch, err := readChange(r)
	if err != nil {
		return nil, err
	}
	if err := c.checkChanges(r, vmid, ch); err != nil {
		return nil, err
	}
	if err := c.needQuorum(); err != nil {
		return nil, err
	}
	release, err := c.lockConfig(r.ctx, r.node, exclusive(vmid, nil))
	if err != nil {
		return nil, err
	}
	if err := c.precheckChange(r, vmid, ch); err != nil {
		release()
		return nil, err
	}
	if sync {
		defer release()
		c.pause(r.ctx, c.cfg.Clock.Of(latency.VMConfig))
		return nil, c.apply(r.node, vmid, ch)
	}
	t := c.start(r, taskSpec{kind: "qmconfig", vmid: vmid}, func(t *task.Task) error {
		defer release()
		if err := t.Step(latency.VMConfig, 1); err != nil {
			return err
		}
		return c.apply(r.node, vmid, ch)
	})
	return c.backgroundDelay(r, t)
}

// backgroundDelay waits a moment for a task, if the client asked for it, and
// answers null when it has ended.
func (c *Cluster) backgroundDelay(r *call, t *task.Task) (any, error) {
	delay := r.values.Int("background_delay", 0)
	if delay == 0 {
		return t.UPID().String(), nil
	}
	timer := time.NewTimer(c.cfg.Clock.Scale(time.Duration(delay) * time.Second))
	defer timer.Stop()
	select {
	case <-t.Done():
		if exit := t.Exit(); exit != "OK" {
			return nil, fail("%s", exit)
		}
		return nil, nil
	case <-timer.C:
		return t.UPID().String(), nil
	}
}

func (c *Cluster) precheckChange(r *call, vmid int, ch *change) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(r.node, vmid)
	if err != nil {
		return err
	}
	if err := v.checkDigest(r.values.Get("digest")); err != nil {
		return err
	}
	if !r.values.Bool("skiplock") {
		if err := v.checkLock(); err != nil {
			return err
		}
	}
	return checkResult(v.effective(), ch)
}

// checkResult refuses what would be wrong with the configuration as a whole.
func checkResult(conf map[string]string, ch *change) error {
	maps.Copy(conf, ch.set)
	for _, key := range ch.deletes {
		delete(conf, key)
	}
	if balloon := confInt(conf, "balloon", 0); balloon > memoryMiB(conf) {
		return fail("balloon value too large (must be smaller than assigned memory)")
	}
	order, ok := strings.CutPrefix(ch.set["boot"], "order=")
	if !ok {
		return nil
	}
	for dev := range strings.SplitSeq(order, ";") {
		if _, has := conf[dev]; !has && dev != "" {
			return fail("invalid bootorder: device '%s' does not exist'", dev)
		}
	}
	return nil
}

// apply writes a change; the VM's file lock is held.
func (c *Cluster) apply(n *node, vmid int, ch *change) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(n, vmid)
	if err != nil {
		return err
	}
	for _, key := range ch.reverts {
		delete(v.pending, key)
		delete(v.deletes, key)
	}
	for _, key := range ch.deletes {
		c.deleteKey(v, key, ch.force)
	}
	for _, key := range ch.keys() {
		value, err := c.resolve(v, key, ch.set[key])
		if err != nil {
			return err
		}
		c.setKey(v, key, value)
	}
	return nil
}

// deleteKey removes a key, or marks it when the VM has to stop first.
func (c *Cluster) deleteKey(v *vm, key string, force bool) {
	delete(v.pending, key)
	old, has := v.conf[key]
	if !has {
		return
	}
	if v.running() && !immediate(key) {
		v.deletes[key] = true
		return
	}
	delete(v.conf, key)
	switch {
	case isDrive(key):
		c.dropDrive(v, drive{key: key, props: c.split(key, old)}, force)
	case isIndexed(key, "unused"):
		c.free(v.node, old)
	}
}

// dropDrive keeps a disk as unusedN and frees a cloud-init drive.
func (c *Cluster) dropDrive(v *vm, d drive, force bool) {
	switch {
	case d.isCloudInit(), force && !d.isCDROM():
		c.free(v.node, d.file())
	case !d.isCDROM():
		for i := 0; ; i++ {
			key := fmt.Sprintf("unused%d", i)
			if _, taken := v.conf[key]; !taken {
				v.conf[key] = d.file()
				return
			}
		}
	}
}

// setKey writes a resolved value, at once or as pending.
func (c *Cluster) setKey(v *vm, key, value string) {
	delete(v.deletes, key)
	old, had := v.conf[key]
	if !v.running() || immediate(key) || c.hotplug(v, key, old, value) {
		v.conf[key] = value
		delete(v.pending, key)
		if had && isDrive(key) {
			before, after := drive{key, c.split(key, old)}, drive{key, c.split(key, value)}
			if before.file() != after.file() {
				c.dropDrive(v, before, false)
			}
		}
		return
	}
	if had && old == value {
		delete(v.pending, key)
		return
	}
	v.pending[key] = value
}

// hotplug does what a running guest can take: pull or plug a cable, change a
// disc. It tells whether it did.
func (c *Cluster) hotplug(v *vm, key, old, value string) bool {
	if isIndexed(key, "net") {
		before, after := c.split(key, old), c.split(key, value)
		down := after["link_down"] == "1"
		delete(before, "link_down")
		delete(after, "link_down")
		if old == "" || !maps.Equal(before, after) {
			return false
		}
		_, index, _ := schema.SplitIndex(key)
		if err := v.guest.SetLink(index, down); err != nil {
			c.cfg.Log.Warn("set link", "vmid", v.id, "nic", key, "error", err)
			return false
		}
		return true
	}
	if !isDrive(key) || old == "" {
		return false
	}
	before, after := drive{key, c.split(key, old)}, drive{key, c.split(key, value)}
	if !before.isCDROM() || !after.isCDROM() {
		return false
	}
	v.conf[key] = value
	v.guest.SetMedia(c.media(v))
	return true
}

// resolve turns a given value into the stored one: it allocates disks, makes
// up addresses, sorts tags.
func (c *Cluster) resolve(v *vm, key, value string) (string, error) {
	switch {
	case isDrive(key):
		return c.resolveDrive(v, c.split(key, value))
	case isIndexed(key, "net"):
		net := c.split(key, value)
		if net["macaddr"] == "" {
			net["macaddr"] = c.newMAC()
		}
		net["macaddr"] = strings.ToUpper(net["macaddr"])
		return net.joinNet(), nil
	}
	switch key {
	case "tags":
		return normalizeTags(value), nil
	case "vmgenid":
		if value == "1" {
			return newUUID(), nil
		}
	case "cipassword":
		return hashPassword(value), nil
	}
	return value, nil
}

// hashPassword stands for crypt(3): the configuration never holds the clear
// text, and the guest cannot log in with it.
func hashPassword(value string) string {
	if strings.HasPrefix(value, "$") {
		return value
	}
	sum := sha256.Sum256([]byte(newUUID() + value))
	return "$5$lab$" + base64.RawStdEncoding.EncodeToString(sum[:])
}

func (c *Cluster) resolveDrive(v *vm, props properties) (string, error) {
	storageName, name, ok := splitVolume(props["file"])
	if !ok {
		return props.joinDrive(), nil
	}
	s, err := c.storage(v.node, storageName)
	if err != nil {
		return "", err
	}
	if name == "cloudinit" {
		volid, err := c.allocateCloudInit(s, v.id)
		if err != nil {
			return "", err
		}
		return properties{"file": volid, "media": "cdrom", "size": "4M"}.joinDrive(), nil
	}
	if size, isNew := parseNewDisk(name); isNew && props["media"] != "cdrom" {
		if props["import-from"] != "" {
			return "", fail("import-from is not served by the lab")
		}
		volid, err := c.allocate(s, newDisk{vmid: v.id, size: size, format: props["format"], content: blankContent()})
		if err != nil {
			return "", err
		}
		props["file"], props["size"] = volid, formatSize(size)
		delete(props, "format")
		return props.joinDrive(), nil
	}
	return c.resolveExisting(v, props)
}

func (c *Cluster) resolveExisting(v *vm, props properties) (string, error) {
	_, vol, err := c.volume(v.node, props["file"])
	switch {
	case err == nil:
		props["size"] = formatSize(vol.size)
	case props["media"] != "cdrom":
		return "", err
	}
	// A disk that was unused is not any more.
	for key, value := range v.conf {
		if isIndexed(key, "unused") && value == props["file"] {
			delete(v.conf, key)
		}
	}
	return props.joinDrive(), nil
}

// vmid is the VM that the path names.
func (r *call) vmid() int { return r.values.Int("vmid", 0) }

// rootIdentity is the identity of work that PVE does by itself.
func rootIdentity() access.Identity { return access.Identity{User: access.Root} }
