package proxmox

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// VMConfig is a VM's configuration, as far as Aether reads it.
type VMConfig struct {
	Digest      string // changes with every write
	Name        string
	Description string
	Tags        []string
	Template    bool
	Lock        string // clone, create, backup, …; empty when free
	Cores       int    // over all sockets
	MemoryMiB   int
	UUID        string // SMBIOS UUID, lower case
	Agent       bool   // the guest agent's device is switched on
	Protection  bool
	Boot        string
	NICs        []NIC
	Disks       []Disk
	Drives      []Drive

	values map[string]string
}

// NIC is a virtual network card.
type NIC struct {
	Index    int // N of netN
	Model    string
	MAC      net.HardwareAddr
	Bridge   string
	VLAN     int // 0: untagged
	MTU      int // 0: the model's default, 1: the bridge's
	LinkDown bool

	more []string // options Aether does not know, kept as they are
}

// Disk is a virtual disk.
type Disk struct {
	Slot      string // scsi0, virtio0, …
	Storage   string
	Volume    string // volume ID
	SizeBytes int64
}

// Drive is a CD-ROM drive.
type Drive struct {
	Slot      string
	Volume    string // volume ID, or none
	CloudInit bool   // made by Proxmox from the VM's cloud-init settings
}

// Disk returns the disk in a slot.
func (c VMConfig) Disk(slot string) (Disk, bool) {
	i := slices.IndexFunc(c.Disks, func(d Disk) bool { return d.Slot == slot })
	if i < 0 {
		return Disk{}, false
	}
	return c.Disks[i], true
}

// NIC returns the card of an index.
func (c VMConfig) NIC(index int) (NIC, bool) {
	i := slices.IndexFunc(c.NICs, func(n NIC) bool { return n.Index == index })
	if i < 0 {
		return NIC{}, false
	}
	return c.NICs[i], true
}

// parseConfig reads the flat object Proxmox answers. Its values are strings or
// numbers depending on the key, so all are taken as text first.
func parseConfig(raw map[string]json.RawMessage) (VMConfig, error) {
	values := make(map[string]string, len(raw))
	for key, value := range raw {
		values[key] = text(value)
	}
	c := VMConfig{
		values: values, Digest: values["digest"], Name: values["name"], Description: values["description"],
		Template: truth(values["template"]), Lock: values["lock"], Boot: values["boot"], Protection: truth(values["protection"]),
		Cores: max(1, number(values["cores"])) * max(1, number(values["sockets"])), MemoryMiB: number(options(values["memory"])[""]),
		Tags: strings.FieldsFunc(values["tags"], func(r rune) bool { return strings.ContainsRune(";, ", r) }),
		UUID: strings.ToLower(options(values["smbios1"])["uuid"]),
	}
	if c.MemoryMiB == 0 {
		c.MemoryMiB = max(number(options(values["memory"])["current"]), 512)
	}
	agent := options(values["agent"])
	c.Agent = truth(agent[""]) || truth(agent["enabled"])
	slot := regexp.MustCompile(`^(scsi|virtio|sata|ide)\d+$`)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		switch {
		case strings.HasPrefix(key, "net") && number(key[3:]) >= 0 && isDigits(key[3:]):
			nic, err := parseNIC(number(key[3:]), values[key])
			if err != nil {
				return VMConfig{}, err
			}
			c.NICs = append(c.NICs, nic)
		case slot.MatchString(key):
			c.addDrive(key, values[key])
		}
	}
	slices.SortFunc(c.NICs, func(a, b NIC) int { return a.Index - b.Index })
	return c, nil
}

func (c *VMConfig) addDrive(slot, value string) {
	parsed := options(value)
	volume := parsed[""]
	if volume == "" {
		volume = parsed["file"]
	}
	if parsed["media"] == "cdrom" {
		c.Drives = append(c.Drives, Drive{Slot: slot, Volume: volume, CloudInit: strings.Contains(volume, "cloudinit")})
		return
	}
	storage, _, _ := strings.Cut(volume, ":")
	c.Disks = append(c.Disks, Disk{Slot: slot, Storage: storage, Volume: volume, SizeBytes: size(parsed["size"])})
}

func parseNIC(index int, value string) (NIC, error) {
	nic := NIC{Index: index}
	for _, option := range strings.Split(value, ",") {
		key, setting, _ := strings.Cut(option, "=")
		switch key {
		case "bridge":
			nic.Bridge = setting
		case "tag":
			nic.VLAN = number(setting)
		case "mtu":
			nic.MTU = number(setting)
		case "link_down":
			nic.LinkDown = truth(setting)
		case "virtio", "e1000", "e1000e", "rtl8139", "vmxnet3", "model":
			nic.Model = key
			if key == "model" {
				nic.Model = setting
				continue
			}
			if mac, err := net.ParseMAC(setting); err == nil {
				nic.MAC = mac
			}
		case "macaddr":
			if mac, err := net.ParseMAC(setting); err == nil {
				nic.MAC = mac
			}
		default:
			nic.more = append(nic.more, option)
		}
	}
	if nic.Model == "" {
		return NIC{}, &Error{Op: fmt.Sprintf("read net%d", index), Kind: ErrUnknown, Message: "no known card model in " + value}
	}
	return nic, nil
}

// setting is the card as a value of netN.
func (n NIC) setting() string {
	model := n.Model
	if model == "" {
		model = "virtio"
	}
	parts := []string{model}
	if len(n.MAC) > 0 {
		parts[0] += "=" + strings.ToUpper(n.MAC.String())
	}
	parts = append(parts, "bridge="+n.Bridge)
	if n.VLAN != 0 {
		parts = append(parts, "tag="+strconv.Itoa(n.VLAN))
	}
	if n.MTU != 0 {
		parts = append(parts, "mtu="+strconv.Itoa(n.MTU))
	}
	if n.LinkDown {
		parts = append(parts, "link_down=1")
	}
	return strings.Join(append(parts, n.more...), ",")
}

// equal compares two cards; a wanted card without MAC or model takes any.
func (n NIC) equal(wanted NIC) bool {
	return n.Index == wanted.Index && n.Bridge == wanted.Bridge && n.VLAN == wanted.VLAN && n.MTU == wanted.MTU &&
		n.LinkDown == wanted.LinkDown && (wanted.Model == "" || n.Model == wanted.Model) &&
		(len(wanted.MAC) == 0 || n.MAC.String() == wanted.MAC.String())
}

// options splits a value as "local:x,media=cdrom"; what has no key stands
// under the empty one.
func options(value string) map[string]string {
	parsed := map[string]string{}
	for _, option := range strings.Split(value, ",") {
		key, setting, ok := strings.Cut(option, "=")
		if !ok {
			key, setting = "", option
		}
		if _, taken := parsed[key]; !taken {
			parsed[key] = setting
		}
	}
	return parsed
}

// text takes a JSON string or number as text.
func text(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return strings.Trim(string(raw), `"`)
}

func truth(value string) bool {
	return value == "1" || value == "true" || value == "on" || value == "yes"
}

func number(value string) int {
	n, err := strconv.Atoi(value)
	if err != nil {
		return 0
	}
	return n
}

func isDigits(value string) bool {
	return value != "" && strings.Trim(value, "0123456789") == ""
}

// size reads a disk size as Proxmox writes it: 20G, 512M, 1.5T, 4096K.
func size(value string) int64 {
	if value == "" {
		return 0
	}
	factor := int64(1)
	switch value[len(value)-1] {
	case 'K':
		factor = 1 << 10
	case 'M':
		factor = 1 << 20
	case 'G':
		factor = 1 << 30
	case 'T':
		factor = 1 << 40
	}
	if factor > 1 {
		value = value[:len(value)-1]
	}
	f, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return 0
	}
	return int64(f * float64(factor))
}
