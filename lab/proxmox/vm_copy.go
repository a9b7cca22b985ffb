package proxmox

import (
	"errors"
	"fmt"
	"maps"

	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/proxmox/task"
)

type cloning struct {
	plan *clonePlan
	vm   *vm
}

// copyDisks makes the new VM's volumes and returns its configuration. What is
// done shows after each drive, so the name comes with the first one.
func (c *Cluster) copyDisks(r *call, t *task.Task, cl cloning) (map[string]string, error) {
	c.mu.Lock()
	conf := c.cloneConf(cl.plan.conf)
	drives := c.drives(cl.plan.conf)
	c.mu.Unlock()
	conf["name"] = r.values.Get("name")
	if conf["name"] == "" {
		conf["name"] = copyName(cl.plan)
	}
	if r.values.Has("description") {
		conf["description"] = r.values.Get("description")
	}
	var toCopy []drive
	for _, d := range drives {
		if !d.isCDROM() || d.isCloudInit() {
			toCopy = append(toCopy, d)
			delete(conf, d.key)
		}
	}
	for _, d := range toCopy {
		value, err := c.copyDrive(t, cl, d)
		if err != nil {
			return nil, err
		}
		conf[d.key] = value
		c.mu.Lock()
		cl.vm.conf = maps.Clone(conf)
		cl.vm.conf["lock"] = "clone"
		c.mu.Unlock()
	}
	if len(toCopy) == 0 {
		return conf, t.Step(latency.CloneLinked, 1)
	}
	return conf, nil
}

func copyName(p *clonePlan) string {
	if name := p.conf["name"]; name != "" {
		return "Copy-of-VM-" + name
	}
	return fmt.Sprintf("Copy-of-VM-%d", p.source.id)
}

// cloneConf is the source's configuration with what a clone gets of its own.
func (c *Cluster) cloneConf(source map[string]string) map[string]string {
	conf := maps.Clone(source)
	for _, key := range []string{"template", "lock", "parent", "snaptime", "vmstate"} {
		delete(conf, key)
	}
	for key, value := range conf {
		switch {
		case isIndexed(key, "unused"):
			delete(conf, key)
		case isIndexed(key, "net"):
			net := c.split(key, value)
			net["macaddr"] = c.newMAC()
			conf[key] = net.joinNet()
		}
	}
	conf["smbios1"] = withUUID(conf["smbios1"], newUUID())
	if conf["vmgenid"] != "" {
		conf["vmgenid"] = newUUID()
	}
	return conf
}

func (c *Cluster) copyDrive(t *task.Task, cl cloning, d drive) (string, error) {
	storageName, _, _ := splitVolume(d.file())
	if cl.plan.storage != "" {
		storageName = cl.plan.storage
	}
	c.mu.Lock()
	s, err := c.storage(cl.vm.node, storageName)
	c.mu.Unlock()
	if err != nil {
		return "", err
	}
	if d.isCloudInit() {
		return c.copyCloudInit(t, cl, s)
	}
	if cl.plan.full {
		return c.copyFull(t, cl, copying{s, d})
	}
	return c.copyLinked(t, cl, copying{s, d})
}

func (c *Cluster) copyCloudInit(t *task.Task, cl cloning, s *storage) (string, error) {
	release, err := c.lockStorage(t.Context(), s)
	if err != nil {
		return "", err
	}
	defer release()
	t.Log("create full clone of drive ide2 (%s:vm-%d-cloudinit)", s.Name, cl.plan.source.id)
	c.mu.Lock()
	defer c.mu.Unlock()
	volid, err := c.allocateCloudInit(s, cl.vm.id)
	if err != nil {
		return "", err
	}
	return properties{"file": volid, "media": "cdrom", "size": "4M"}.joinDrive(), nil
}

type copying struct {
	storage *storage
	drive   drive
}

// copyLinked makes a snapshot of a base volume under the storage's lock.
func (c *Cluster) copyLinked(t *task.Task, cl cloning, cp copying) (string, error) {
	t.Log("create linked clone of drive %s (%s)", cp.drive.key, cp.drive.file())
	release, err := c.lockStorage(t.Context(), cp.storage)
	if err != nil {
		return "", err
	}
	err = t.Step(latency.CloneLinked, lockedPart)
	var volid string
	if err == nil {
		volid, err = c.copyVolume(cl, cp, true)
	}
	release()
	if err != nil {
		return "", err
	}
	_, name, _ := splitVolume(volid)
	t.Log("  Logical volume \"%s\" created.", name)
	return cp.value(volid), t.Step(latency.CloneLinked, 1-lockedPart)
}

// copyFull allocates under the storage's lock and copies without it.
func (c *Cluster) copyFull(t *task.Task, cl cloning, cp copying) (string, error) {
	t.Log("create full clone of drive %s (%s)", cp.drive.key, cp.drive.file())
	if cl.plan.format != "" && cl.plan.format != "raw" && cp.storage.blockOnly() {
		t.Log("format '%s' is not supported by the target storage '%s' - using 'raw' instead", cl.plan.format, cp.storage.Name)
	}
	const allocation = 0.1 // of a linked clone's time
	release, err := c.lockStorage(t.Context(), cp.storage)
	if err != nil {
		return "", err
	}
	err = t.Step(latency.CloneLinked, allocation)
	var volid string
	if err == nil {
		volid, err = c.copyVolume(cl, cp, false)
	}
	release()
	if err != nil {
		return "", err
	}
	size, _ := parseSize(cp.drive.props["size"])
	t.Log("allocated target volume '%s'", volid)
	if err := copyProgress(t, size); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !errors.Is(err, task.ErrKilled) {
			c.free(cl.vm.node, volid)
		}
		return "", err
	}
	return cp.value(volid), nil
}

func copyProgress(t *task.Task, size int64) error {
	const steps = 20
	total := float64(size) / float64(gib)
	for i := range steps + 1 {
		part := float64(i) / steps
		t.Log("transferred %s of %s (%.2f%%)", humanSize(float64(size)*part), humanSize(float64(size)), part*100)
		if i == steps {
			break
		}
		if err := t.Step(latency.CloneFullPerGiB, total/steps); err != nil {
			return err
		}
	}
	return nil
}

func humanSize(bytes float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for bytes >= 1024 && i < len(units)-1 {
		bytes /= 1024
		i++
	}
	return fmt.Sprintf("%.1f %s", bytes, units[i])
}

func (c *Cluster) copyVolume(cl cloning, cp copying, linked bool) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, source, err := c.volume(cl.vm.node, cp.drive.file())
	if err != nil {
		return "", err
	}
	content := machine.NewContent(machine.Image{})
	if source.disk != nil {
		content = source.disk.Clone()
	}
	d := newDisk{vmid: cl.vm.id, size: source.size, used: source.used, content: content, format: source.format}
	if linked {
		d.parent, d.used = source.name, source.used/linkedPart
	} else if !cp.storage.blockOnly() && cl.plan.format != "" {
		d.format = cl.plan.format
	} else if cp.storage.blockOnly() {
		d.format = "raw"
	}
	return c.allocate(cp.storage, d)
}

// value is the drive's option with the new volume in it.
func (cp copying) value(volid string) string {
	props := maps.Clone(cp.drive.props)
	props["file"] = volid
	return props.joinDrive()
}

// removeVM deletes a VM with all volumes that it owns; c.mu is held.
func (c *Cluster) removeVM(v *vm) {
	for key, value := range v.effective() {
		switch {
		case isDrive(key):
			d := drive{key: key, props: c.split(key, value)}
			if !d.isCDROM() || d.isCloudInit() {
				c.freeOwned(v, d.file())
			}
		case isIndexed(key, "unused"):
			c.freeOwned(v, value)
		}
	}
	if c.vms[v.id] == v {
		delete(c.vms, v.id)
	}
	delete(c.stats, v.id)
}

func (c *Cluster) freeOwned(v *vm, volid string) {
	if s, vol, err := c.volume(v.node, volid); err == nil && vol.vmid == v.id {
		delete(s.volumes, vol.name)
	}
}
