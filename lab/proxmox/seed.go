package proxmox

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"aether.internal/aether/lab/machine"
)

// seedVM is a VM that exists from the start.
type seedVM struct {
	vmid    int
	node    string
	storage string
	diskGiB int
	image   machine.Image
	base    bool
	conf    map[string]string
}

func (c *Cluster) addTemplate(t Template) error {
	conf := map[string]string{"name": t.Name, "template": "1"}
	maps.Copy(conf, t.Options)
	return c.addVM(seedVM{
		vmid: t.VMID, node: t.Node, storage: t.Storage, diskGiB: t.DiskGiB, image: t.Image, base: !t.FlagOnly, conf: conf,
	})
}

func (c *Cluster) addMachine(m Machine) error {
	conf := map[string]string{"name": m.Name, "memory": strconv.Itoa(m.MemoryMiB), "cores": strconv.Itoa(max(m.Cores, 1))}
	maps.Copy(conf, m.Options)
	return c.addVM(seedVM{vmid: m.VMID, node: m.Node, storage: m.Storage, diskGiB: m.DiskGiB, image: m.Image, conf: conf})
}

func (c *Cluster) addVM(s seedVM) error {
	n := c.nodes[s.node]
	if n == nil {
		return fmt.Errorf("node: %q is not a node of the cluster", s.node)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.vms[s.vmid] != nil {
		return fmt.Errorf("vmid: %d is used twice", s.vmid)
	}
	v := newVM(s.vmid, n, map[string]string{"smbios1": "uuid=" + newUUID(), "vmgenid": newUUID()})
	if s.diskGiB > 0 {
		disk, err := c.seedDisk(n, s)
		if err != nil {
			return fmt.Errorf("disk: %w", err)
		}
		v.conf["scsi0"] = disk
		v.conf["boot"] = "order=scsi0"
	}
	for _, key := range slices.Sorted(maps.Keys(s.conf)) {
		value, err := c.resolve(v, key, s.conf[key])
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		v.conf[key] = value
	}
	c.vms[s.vmid] = v
	return nil
}

// startMachines starts the VMs that shall run from the start.
func (c *Cluster) startMachines() {
	for _, m := range c.cfg.Machines {
		if m.Running {
			c.startByRoot(c.nodes[m.Node], m.VMID)
		}
	}
}

// seedDisk makes the disk of a VM that exists from the start.
func (c *Cluster) seedDisk(n *node, s seedVM) (string, error) {
	name := s.storage
	for _, spec := range n.Storages {
		if name == "" && slices.Contains(spec.Content, "images") {
			name = spec.Name
		}
	}
	st, err := c.storage(n, name)
	if err != nil {
		return "", err
	}
	size := int64(s.diskGiB) * gib
	volid, err := c.allocate(st, newDisk{
		vmid: s.vmid, size: size, used: size / writtenPart, content: machine.NewContent(s.image), base: s.base,
	})
	return volid + ",size=" + strconv.Itoa(s.diskGiB) + "G", err
}
