package proxmox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/proxmox/lock"
	"aether.internal/aether/lab/proxmox/media"
	"aether.internal/aether/lab/proxmox/task"
)

// storage is a storage on one host, or a shared one.
type storage struct {
	Storage
	locks   *lock.Table // of the host, or of one host for all when shared
	volumes map[string]*volume
}

// volume is a disk image, a cloud-init drive or an uploaded file.
type volume struct {
	name    string // without the storage
	content string
	format  string
	vmid    int
	size    int64
	used    int64
	parent  string // base volume of a linked clone
	created time.Time
	disk    *machine.Content
	disc    *media.Disc
}

const (
	cloudInitSize = 4 << 20
	// writtenPart is how much of an image's size its data takes.
	writtenPart = 4
	// linkedPart is how much of its base a linked clone soon differs in.
	linkedPart     = 20
	storageTimeout = 10 * time.Second
)

func (s *storage) holds(content string) bool { return slices.Contains(s.Content, content) }

// blockOnly tells that images are raw block devices.
func (s *storage) blockOnly() bool {
	return slices.Contains([]string{"lvmthin", "lvm", "zfspool", "rbd"}, s.Type)
}

func (s *storage) used() int64 {
	var sum int64
	for _, v := range s.volumes {
		sum += v.used
	}
	return sum
}

// storage returns a node's storage by name; c.mu is held.
func (c *Cluster) storage(n *node, name string) (*storage, error) {
	if s := n.storages[name]; s != nil {
		return s, nil
	}
	for _, other := range c.order {
		if other.storages[name] != nil {
			return nil, fail("storage '%s' is not available on node '%s'", name, n.Name)
		}
	}
	return nil, fail("storage '%s' does not exist", name)
}

func splitVolume(volid string) (storage, name string, ok bool) { return strings.Cut(volid, ":") }

// volume finds a volume on a node; c.mu is held.
func (c *Cluster) volume(n *node, volid string) (*storage, *volume, error) {
	storageName, name, ok := splitVolume(volid)
	if !ok {
		return nil, nil, fail("unable to parse volume ID '%s'", volid)
	}
	s, err := c.storage(n, storageName)
	if err != nil {
		return nil, nil, err
	}
	v := s.volumes[name]
	if v == nil {
		return s, nil, fail("volume '%s' does not exist", volid)
	}
	return s, v, nil
}

// lockStorage takes the lock under which volumes are made.
func (c *Cluster) lockStorage(ctx context.Context, s *storage) (func(), error) {
	name := "/var/lock/pve-manager/pve-storage-" + s.Name
	timeout := lock.FileTimeout(name)
	if s.Shared {
		timeout = lock.ClusterTimeout("storage-" + s.Name)
	}
	return s.locks.Acquire(ctx, lock.Request{
		Name: name, Mode: lock.Exclusive, Timeout: c.cfg.Clock.Scale(storageTimeout), OnTimeout: timeout,
	})
}

// lockConfig takes the lock of a VM's configuration file. A task says that it
// waits.
func (c *Cluster) lockConfig(ctx context.Context, n *node, l configLock) (func(), error) {
	name := fmt.Sprintf("/var/lock/qemu-server/lock-%d.conf", l.vmid)
	r := lock.Request{Name: name, Mode: l.mode, Timeout: c.cfg.Clock.Scale(l.timeout), OnTimeout: lock.FileTimeout(name)}
	waited := false
	if l.task != nil {
		r.OnWait = func() { waited = true; l.task.Log("trying to acquire lock...") }
	}
	release, err := n.locks.Acquire(ctx, r)
	if err == nil && waited {
		l.task.Log(" OK")
	}
	return release, err
}

type configLock struct {
	vmid    int
	mode    lock.Mode
	timeout time.Duration
	task    *task.Task
}

const (
	configTimeout = 10 * time.Second
	cloneTimeout  = 1 * time.Second
	createTimeout = 5 * time.Second
)

func exclusive(vmid int, t *task.Task) configLock {
	return configLock{vmid: vmid, mode: lock.Exclusive, timeout: configTimeout, task: t}
}

// newDisk is a volume to allocate.
type newDisk struct {
	vmid    int
	size    int64
	used    int64
	format  string
	parent  string
	base    bool
	content *machine.Content
}

// allocate makes an image and returns its volume ID; c.mu is held.
func (c *Cluster) allocate(s *storage, d newDisk) (string, error) {
	if !s.holds("images") {
		return "", paramError("storage", fmt.Sprintf("storage '%s' does not support vm images", s.Name))
	}
	if d.format == "" {
		d.format = "raw"
	}
	if s.blockOnly() && d.format != "raw" {
		return "", fail("unsupported format '%s' at /usr/share/perl5/PVE/Storage/LvmThinPlugin.pm line 102.", d.format)
	}
	if s.used()+d.used > s.Bytes {
		return "", fail("lvcreate '%s' error:   Cannot create new thin volume, free space in thin pool pve/data reached threshold.", s.Name)
	}
	prefix := fmt.Sprintf("vm-%d-disk-", d.vmid)
	if d.base {
		prefix = fmt.Sprintf("base-%d-disk-", d.vmid)
	}
	v := &volume{
		content: "images", format: d.format, vmid: d.vmid, size: d.size, used: d.used, parent: d.parent, created: time.Now(), disk: d.content,
	}
	v.name = s.freeName(prefix, d)
	s.volumes[v.name] = v
	return s.Name + ":" + v.name, nil
}

// freeName finds disk-N where neither vm- nor base- has that N.
func (s *storage) freeName(prefix string, d newDisk) string {
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s%d", prefix, i)
		if !s.blockOnly() {
			name = fmt.Sprintf("%d/%s.%s", d.vmid, name, d.format)
			if d.parent != "" {
				name = d.parent + "/" + name
			}
		}
		taken := s.volumes[name] != nil ||
			s.volumes[fmt.Sprintf("vm-%d-disk-%d", d.vmid, i)] != nil || s.volumes[fmt.Sprintf("base-%d-disk-%d", d.vmid, i)] != nil
		if !taken {
			return name
		}
	}
}

// allocateCloudInit makes the drive for cloud-init; c.mu is held.
func (c *Cluster) allocateCloudInit(s *storage, vmid int) (string, error) {
	if !s.holds("images") {
		return "", paramError("storage", fmt.Sprintf("storage '%s' does not support vm images", s.Name))
	}
	name := fmt.Sprintf("vm-%d-cloudinit", vmid)
	if !s.blockOnly() {
		name = fmt.Sprintf("%d/%s.qcow2", vmid, name)
	}
	if s.volumes[name] != nil {
		return "", fail("lvcreate 'pve/%s' error:   Logical Volume \"%s\" already exists in volume group \"pve\"", name, name)
	}
	s.volumes[name] = &volume{
		name: name, content: "images", format: "raw", vmid: vmid, size: cloudInitSize, used: cloudInitSize, created: time.Now(),
	}
	return s.Name + ":" + name, nil
}

// children lists the linked clones of a base volume; c.mu is held.
func (s *storage) children(name string) int {
	n := 0
	for _, v := range s.volumes {
		if v.parent == name {
			n++
		}
	}
	return n
}

// free deletes a volume; a missing one is no error. c.mu is held.
func (c *Cluster) free(n *node, volid string) {
	if s, v, err := c.volume(n, volid); err == nil {
		delete(s.volumes, v.name)
	}
}

func (s *storage) row() map[string]any {
	used := s.used()
	return map[string]any{
		"type": s.Type, "content": strings.Join(s.Content, ","), "enabled": 1, "active": 1, "shared": boolInt(s.Shared),
		"total": s.Bytes, "used": used, "avail": s.Bytes - used, "used_fraction": float64(used) / float64(max(s.Bytes, 1)),
	}
}

func (v *volume) row(storage string) map[string]any {
	row := map[string]any{
		"volid": storage + ":" + v.name, "content": v.content, "format": v.format, "size": v.size, "ctime": v.created.Unix(),
	}
	if v.vmid != 0 {
		row["vmid"] = v.vmid
	}
	if v.parent != "" {
		row["parent"] = v.parent + "@__base__"
	}
	return row
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
