package proxmox

import (
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // PVE's digest is a SHA-1
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/proxmox/schema"
)

// vm is a virtual machine: its configuration file and what runs of it.
type vm struct {
	id        int
	node      *node
	conf      map[string]string
	pending   map[string]string
	deletes   map[string]bool // pending deletions
	snapshots []vmSnapshot

	guest     machine.Guest // nil when off
	hardware  machine.Hardware
	pid       int
	started   time.Time
	rebooting bool
	execs     map[int]execResult
	nextExec  int
	ciSeen    map[string]string // cloud-init keys of the generated drive
}

type vmSnapshot struct {
	name, description string
	taken             time.Time
	conf              map[string]string
}

func newVM(id int, n *node, conf map[string]string) *vm {
	return &vm{id: id, node: n, conf: conf, pending: map[string]string{}, deletes: map[string]bool{}, execs: map[int]execResult{}}
}

// find returns the VM on a node, or PVE's error; c.mu is held.
func (c *Cluster) find(n *node, id int) (*vm, error) {
	v := c.vms[id]
	if v == nil || v.node != n {
		return nil, fail("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", n.Name, id)
	}
	return v, nil
}

// findRunning is find on the paths of PVE that look for the process first.
func (c *Cluster) findRunning(n *node, id int) (*vm, error) {
	v := c.vms[id]
	if v == nil || v.node != n {
		return nil, fail("unable to find configuration file for VM %d on node '%s'", id, n.Name)
	}
	return v, nil
}

func (v *vm) running() bool    { return v.guest != nil }
func (v *vm) isTemplate() bool { return v.conf["template"] == "1" }

func (v *vm) name() string {
	if name := v.conf["name"]; name != "" {
		return name
	}
	return fmt.Sprintf("VM %d", v.id)
}

func (v *vm) checkLock() error {
	if l := v.conf["lock"]; l != "" {
		return fail("VM is locked (%s)", l)
	}
	return nil
}

// digest is the SHA-1 of the configuration file.
func (v *vm) digest() string {
	var b strings.Builder
	writeConf(&b, v.conf)
	b.WriteString("[PENDING]\n")
	for _, key := range slices.Sorted(maps.Keys(v.deletes)) {
		b.WriteString("delete: " + key + "\n")
	}
	writeConf(&b, v.pending)
	for _, s := range v.snapshots {
		b.WriteString("[" + s.name + "]\n")
		writeConf(&b, s.conf)
	}
	sum := sha1.Sum([]byte(b.String())) //nolint:gosec // as above
	return hex.EncodeToString(sum[:])
}

func writeConf(b *strings.Builder, conf map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(conf)) {
		b.WriteString(key + ": " + conf[key] + "\n")
	}
}

func (v *vm) checkDigest(given string) error {
	if given != "" && given != v.digest() {
		return fail("checksum mismatch (file change by other user?)")
	}
	return nil
}

// effective is the configuration with pending changes merged in.
func (v *vm) effective() map[string]string {
	conf := maps.Clone(v.conf)
	for key := range v.deletes {
		delete(conf, key)
	}
	maps.Copy(conf, v.pending)
	return conf
}

func (v *vm) applyPending() {
	v.conf = v.effective()
	v.pending, v.deletes = map[string]string{}, map[string]bool{}
}

func confInt(conf map[string]string, key string, def int) int {
	n, err := strconv.Atoi(conf[key])
	if err != nil {
		return def
	}
	return n
}

// memoryMiB reads memory, which may be written as current=N.
func memoryMiB(conf map[string]string) int {
	const pveDefault = 512
	text := strings.TrimPrefix(conf["memory"], "current=")
	n, err := strconv.Atoi(text)
	if err != nil {
		return pveDefault
	}
	return n
}

func cores(conf map[string]string) int {
	return confInt(conf, "cores", 1) * confInt(conf, "sockets", 1)
}

func (c *Cluster) newMAC() string {
	var b [3]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("BC:24:11:%02X:%02X:%02X", b[0], b[1], b[2])
}

func newUUID() string { return uuid.NewString() }

// smbiosUUID returns the UUID of smbios1, lower case.
func smbiosUUID(conf map[string]string) string {
	for part := range strings.SplitSeq(conf["smbios1"], ",") {
		if value, ok := strings.CutPrefix(part, "uuid="); ok {
			return strings.ToLower(value)
		}
	}
	return ""
}

func withUUID(smbios, id string) string {
	parts := []string{"uuid=" + id}
	for part := range strings.SplitSeq(smbios, ",") {
		if part != "" && !strings.HasPrefix(part, "uuid=") {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ",")
}

// properties is an option such as "virtio=MAC,bridge=vmbr0" taken apart.
type properties map[string]string

// split takes an option apart by the format in the schema of create.
func (c *Cluster) split(key, text string) properties {
	return c.create.Properties(key, text)
}

func (p properties) join(first string) string {
	parts := []string{first}
	for _, key := range slices.Sorted(maps.Keys(p)) {
		parts = append(parts, key+"="+p[key])
	}
	return strings.Join(parts, ",")
}

// joinNet writes a NIC the way PVE stores it.
func (p properties) joinNet() string {
	rest := maps.Clone(p)
	model, mac := rest["model"], rest["macaddr"]
	delete(rest, "model")
	delete(rest, "macaddr")
	return rest.join(model + "=" + mac)
}

// joinDrive writes a drive the way PVE stores it.
func (p properties) joinDrive() string {
	rest := maps.Clone(p)
	file := rest["file"]
	delete(rest, "file")
	return rest.join(file)
}

func isDrive(key string) bool {
	if key == "efidisk0" || key == "tpmstate0" {
		return true
	}
	base, _, ok := schema.SplitIndex(key)
	return ok && slices.Contains([]string{"ide", "sata", "scsi", "virtio"}, base)
}

func isIndexed(key, want string) bool {
	base, _, ok := schema.SplitIndex(key)
	return ok && base == want
}

// drive is a disk or CD-ROM of a VM.
type drive struct {
	key   string
	props properties
}

func (d drive) file() string { return d.props["file"] }

func (d drive) isCloudInit() bool { return strings.HasSuffix(d.file(), "-cloudinit") }

func (d drive) isCDROM() bool { return d.props["media"] == "cdrom" || d.isCloudInit() }

// drives lists the drives of a configuration, sorted by PVE's order of buses.
func (c *Cluster) drives(conf map[string]string) []drive {
	var list []drive
	for key, text := range conf {
		if isDrive(key) {
			list = append(list, drive{key: key, props: c.split(key, text)})
		}
	}
	slices.SortFunc(list, func(a, b drive) int { return busOrder(a.key) - busOrder(b.key) })
	return list
}

func busOrder(key string) int {
	const perBus = 100
	base, index, _ := schema.SplitIndex(key)
	return slices.Index([]string{"ide", "scsi", "virtio", "sata", "efidisk", "tpmstate"}, base)*perBus + index
}

// bootDisks lists the disks in the order in which the VM tries them.
func (c *Cluster) bootDisks(conf map[string]string) []drive {
	order := strings.Split(strings.TrimPrefix(conf["boot"], "order="), ";")
	rank := func(d drive) int {
		if i := slices.Index(order, d.key); i >= 0 {
			return i
		}
		return len(order) + busOrder(d.key)
	}
	var disks []drive
	for _, d := range c.drives(conf) {
		if !d.isCDROM() && d.key != "efidisk0" && d.key != "tpmstate0" {
			disks = append(disks, d)
		}
	}
	slices.SortStableFunc(disks, func(a, b drive) int { return rank(a) - rank(b) })
	return disks
}

// parseSize reads PVE's sizes: 20G, 512M, bytes.
func parseSize(text string) (int64, bool) {
	units := map[byte]int64{'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}
	unit := int64(1)
	if text != "" && units[text[len(text)-1]] != 0 {
		unit, text = units[text[len(text)-1]], text[:len(text)-1]
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f < 0 {
		return 0, false
	}
	return int64(f * float64(unit)), true
}

// formatSize writes a size the way PVE does: in the largest unit that fits.
func formatSize(bytes int64) string {
	for _, unit := range []struct {
		suffix string
		size   int64
	}{{"T", 1 << 40}, {"G", 1 << 30}, {"M", 1 << 20}, {"K", 1 << 10}} {
		if bytes > 0 && bytes%unit.size == 0 {
			return strconv.FormatInt(bytes/unit.size, 10) + unit.suffix
		}
	}
	return strconv.FormatInt(bytes, 10)
}

// normalizeTags sorts tags and drops repeats.
func normalizeTags(text string) string {
	tags := schema.SplitList(strings.ToLower(text))
	slices.Sort(tags)
	return strings.Join(slices.Compact(tags), ";")
}

// nicKeys lists netN in the order of N.
func nicKeys(conf map[string]string) []int {
	var list []int
	for key := range conf {
		if base, index, ok := schema.SplitIndex(key); ok && base == "net" {
			list = append(list, index)
		}
	}
	return list
}
