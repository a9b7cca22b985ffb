package proxmox

import (
	"fmt"
	"slices"
	"strings"

	"aether.internal/aether/lab/proxmox/schema"
)

// optionKind groups configuration keys by what they are about.
type optionKind int

const (
	otherOption optionKind = iota
	cpuOption
	memoryOption
	networkOption
	hardwareOption
	generalOption
	diskOption
	cloudInitOption
	driveOption
	usbOrSerialOption
	powerOption
)

func kindOfOption(key string) optionKind {
	switch key {
	case "cores", "cpu", "cpulimit", "cpuunits", "numa", "smp", "sockets", "vcpus", "affinity":
		return cpuOption
	case "memory", "balloon", "shares", "hugepages", "keephugepages", "allow-ksm":
		return memoryOption
	case "acpi", "hotplug", "kvm", "machine", "scsihw", "smbios1", "tablet", "vga", "watchdog", "audio0", "arch", "vmgenid", "rng0", "efidisk", "tdf":
		return hardwareOption
	case "agent", "autostart", "bios", "description", "keyboard", "localtime", "migrate_downtime", "migrate_speed", "name",
		"onboot", "ostype", "protection", "reboot", "startdate", "startup", "template", "tags", "spice_enhancements":
		return generalOption
	case "boot", "bootdisk", "vmstatestorage":
		return diskOption
	case "cicustom", "cipassword", "citype", "ciuser", "ciupgrade", "nameserver", "searchdomain", "sshkeys":
		return cloudInitOption
	case "cdrom":
		return driveOption
	case "freeze":
		return powerOption
	}
	if isDrive(key) {
		return driveOption
	}
	base, _, _ := schema.SplitIndex(key)
	switch base {
	case "net":
		return networkOption
	case "ipconfig":
		return cloudInitOption
	case "unused":
		return diskOption
	case "numa":
		return cpuOption
	case "serial", "usb":
		return usbOrSerialOption
	}
	return otherOption
}

// privilege is what a kind of option needs, where one privilege decides.
func (k optionKind) privilege() string {
	switch k {
	case cpuOption:
		return "VM.Config.CPU"
	case memoryOption:
		return "VM.Config.Memory"
	case networkOption:
		return "VM.Config.Network"
	case hardwareOption, usbOrSerialOption:
		return "VM.Config.HWType"
	case generalOption:
		return "VM.Config.Options"
	case diskOption, driveOption:
		return "VM.Config.Disk"
	case powerOption:
		return "VM.PowerMgmt"
	default:
		return ""
	}
}

// checkOption tests the privilege for one key; value is "" for a deletion.
func (c *Cluster) checkOption(r *call, vmid int, key, value string) error {
	path := fmt.Sprintf("/vms/%d", vmid)
	kind := kindOfOption(key)
	passedThrough := kind == usbOrSerialOption && !slices.Contains([]string{"", "socket", "spice"}, value)
	switch {
	case kind == otherOption, passedThrough:
		if r.id.IsRoot() {
			return nil
		}
		return fail("only root can set '%s' config", key)
	case kind == cloudInitOption:
		return c.access.CheckAny(r.id, path, "VM.Config.Cloudinit", "VM.Config.Network")
	case kind == driveOption && strings.Contains(value, "media=cdrom"):
		return c.access.Check(r.id, path, "VM.Config.CDROM")
	default:
		return c.access.Check(r.id, path, kind.privilege())
	}
}

// checkBridge tests the right to use a NIC's bridge.
func (c *Cluster) checkBridge(r *call, net properties) error {
	if net["bridge"] == "" {
		return nil
	}
	path := "/sdn/zones/localnetwork/" + net["bridge"]
	if net["tag"] != "" {
		path += "/" + net["tag"]
	}
	return c.access.Check(r.id, path, "SDN.Use")
}

// checkDrive tests the rights on the storage of a drive that is to be set.
func (c *Cluster) checkDrive(r *call, vmid int, props properties) error {
	file := props["file"]
	if file == "none" || file == "" {
		return nil
	}
	if file == "cdrom" || strings.HasPrefix(file, "/") {
		if r.id.IsRoot() {
			return nil
		}
		return c.access.Check(r.id, "/", "Sys.Console")
	}
	storageName, name, _ := splitVolume(file)
	path := "/storage/" + storageName
	if _, ok := parseNewDisk(name); ok || name == "cloudinit" {
		return c.access.Check(r.id, path, "Datastore.AllocateSpace")
	}
	c.mu.Lock()
	_, v, err := c.volume(r.node, file)
	c.mu.Unlock()
	if err == nil && v.content == "images" && v.vmid != vmid {
		return c.access.Check(r.id, path, "Datastore.Allocate")
	}
	return c.access.CheckAny(r.id, path, "Datastore.AllocateSpace", "Datastore.Audit")
}

// parseNewDisk reads the size in GiB of "<storage>:<size>".
func parseNewDisk(name string) (int64, bool) {
	size, ok := parseSize(name + "G")
	return size, ok && name != "" && strings.Trim(name, "0123456789.") == ""
}

// checkChanges tests the privileges for all keys of a change.
func (c *Cluster) checkChanges(r *call, vmid int, ch *change) error {
	for _, key := range slices.Concat(ch.deletes, ch.reverts) {
		if err := c.checkOption(r, vmid, key, ""); err != nil {
			return err
		}
	}
	for _, key := range ch.keys() {
		value := ch.set[key]
		if err := c.checkOption(r, vmid, key, value); err != nil {
			return err
		}
		switch {
		case isDrive(key):
			if err := c.checkDrive(r, vmid, c.split(key, value)); err != nil {
				return err
			}
		case isIndexed(key, "net"):
			if err := c.checkBridge(r, c.split(key, value)); err != nil {
				return err
			}
		}
	}
	return nil
}

// immediate tells whether PVE changes a key of a running VM at once.
func immediate(key string) bool {
	if kindOfOption(key) == cloudInitOption || isIndexed(key, "unused") {
		return true
	}
	return slices.Contains([]string{
		"name", "description", "tags", "onboot", "protection", "startup", "hookscript", "lock", "balloon", "shares",
		"migrate_downtime", "migrate_speed", "autostart", "template",
	}, key)
}
