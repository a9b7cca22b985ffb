package proxmox

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// Storage is a storage as a host sees it.
type Storage struct {
	Name       string
	Type       string   // dir, lvmthin, …
	Content    []string // images, iso, …
	Active     bool
	Shared     bool
	TotalBytes int64
	FreeBytes  int64
}

// Holds tells whether the storage takes that kind of content.
func (s Storage) Holds(content string) bool { return slices.Contains(s.Content, content) }

// Storages lists the storages of a host that the token may see.
func (c *Client) Storages(ctx context.Context, node string) ([]Storage, error) {
	var rows []struct {
		Storage string `json:"storage"`
		Type    string `json:"type"`
		Content string `json:"content"`
		Enabled int    `json:"enabled"`
		Active  int    `json:"active"`
		Shared  int    `json:"shared"`
		Total   int64  `json:"total"`
		Avail   int64  `json:"avail"`
	}
	if err := c.get(ctx, "list storages of "+node, "/nodes/"+node+"/storage", &rows); err != nil {
		return nil, err
	}
	list := make([]Storage, 0, len(rows))
	for _, row := range rows {
		list = append(list, Storage{
			Name: row.Storage, Type: row.Type, Content: strings.Split(row.Content, ","),
			Active: row.Active == 1 && row.Enabled == 1, Shared: row.Shared == 1, TotalBytes: row.Total, FreeBytes: row.Avail,
		})
	}
	slices.SortFunc(list, func(a, b Storage) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Bridge is a Linux or Open vSwitch bridge of a host.
type Bridge struct {
	Name      string
	Active    bool
	VLANAware bool
	VLANs     []VLANRange // allowed tags; empty on a VLAN aware bridge: all
	MTU       int         // 0: not stated, so 1500
}

// VLANRange is a range of VLAN tags, both ends included.
type VLANRange struct{ From, To int }

// Carries returns nil when VMs with that tag (0: none) can be attached, and
// otherwise says what to do on the host.
func (b Bridge) Carries(tag int) error {
	op := fmt.Sprintf("check bridge %s for VLAN %d", b.Name, tag)
	switch {
	case !b.Active:
		return &Error{Op: op, Kind: ErrInvalid, Message: "the bridge is not up; run ifreload -a on the host"}
	case tag == 0:
		return nil
	case !b.VLANAware:
		return &Error{Op: op, Kind: ErrInvalid, Message: "the bridge is not VLAN aware; add \"bridge-vlan-aware yes\" and \"bridge-vids 2-4094\" to it in /etc/network/interfaces and run ifreload -a"}
	case len(b.VLANs) == 0:
		return nil
	case !slices.ContainsFunc(b.VLANs, func(r VLANRange) bool { return r.From <= tag && tag <= r.To }):
		return &Error{Op: op, Kind: ErrInvalid, Message: fmt.Sprintf("the bridge does not allow the tag; add %d to its bridge-vids and run ifreload -a", tag)}
	default:
		return nil
	}
}

// Bridges lists the bridges of a host.
func (c *Client) Bridges(ctx context.Context, node string) ([]Bridge, error) {
	var rows []struct {
		Name   string          `json:"iface"`
		Type   string          `json:"type"`
		Active int             `json:"active"`
		Aware  json.RawMessage `json:"bridge_vlan_aware"`
		VIDs   string          `json:"bridge_vids"`
		MTU    json.RawMessage `json:"mtu"`
	}
	if err := c.call(ctx, "list bridges of "+node, http.MethodGet, "/nodes/"+node+"/network", map[string]any{"type": "any_bridge"}, &rows); err != nil {
		return nil, err
	}
	list := make([]Bridge, 0, len(rows))
	for _, row := range rows {
		// An Open vSwitch bridge carries tags without being told to.
		b := Bridge{Name: row.Name, Active: row.Active == 1, VLANAware: truth(text(row.Aware)) || row.Type == "OVSBridge", MTU: number(text(row.MTU))}
		for _, word := range strings.FieldsFunc(row.VIDs, func(r rune) bool { return r == ' ' || r == ',' || r == ';' }) {
			from, to, ranged := strings.Cut(word, "-")
			if !ranged {
				to = from
			}
			b.VLANs = append(b.VLANs, VLANRange{From: number(from), To: number(to)})
		}
		list = append(list, b)
	}
	slices.SortFunc(list, func(a, b Bridge) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// CloudInitSlot is the only slot a template may have a cloud-init drive in.
const CloudInitSlot = "ide2"

// Finding is something about a template that would fail later.
type Finding struct {
	Field string // of the VM's configuration
	Found string
	Do    string
}

// String shows the finding in one line.
func (f Finding) String() string { return fmt.Sprintf("%s: found %s; %s", f.Field, f.Found, f.Do) }

// LintTemplate reads a template and says what about it would fail later.
// storage is where new disks shall be, linked tells whether clones are linked.
func (c *Client) LintTemplate(ctx context.Context, node string, vmid int, storage string, linked bool) ([]Finding, VMConfig, error) {
	config, err := c.VMConfig(ctx, node, vmid)
	if err != nil {
		return nil, VMConfig{}, err
	}
	return lint(config, vmid, storage, linked), config, nil
}

func lint(config VMConfig, vmid int, storage string, linked bool) []Finding {
	var list []Finding
	add := func(field, found, do string) { list = append(list, Finding{Field: field, Found: found, Do: do}) }
	if !config.Template {
		add("template", "no template", fmt.Sprintf("shut it down and run qm template %d", vmid))
	}
	if config.Lock != "" {
		add("lock", config.Lock, fmt.Sprintf("wait for what is done to it, or run qm unlock %d", vmid))
	}
	if config.Boot != "" && !strings.HasPrefix(config.Boot, "order=") {
		add("boot", fmt.Sprintf("%q, the old form", config.Boot), fmt.Sprintf("run qm set %d --boot order=scsi0", vmid))
	}
	if len(config.Disks) != 1 {
		add("disks", fmt.Sprintf("%d", len(config.Disks)), "leave exactly one disk, the system's")
	}
	for _, disk := range config.Disks {
		if linked && disk.Storage != storage {
			add(disk.Slot, "storage "+disk.Storage, "linked clones stay on the template's storage: move it to "+storage+" or use cloneMode full")
		}
		if config.Template && linked && !regexp.MustCompile(`(^|[:/])base-\d+-`).MatchString(disk.Volume) {
			add(disk.Slot, disk.Volume+", which was not converted", fmt.Sprintf("run qm template %d, which converts the disks", vmid))
		}
		if len(config.Boot) > 0 && strings.HasPrefix(config.Boot, "order=") && !slices.Contains(strings.Split(config.Boot[len("order="):], ";"), disk.Slot) {
			add("boot", config.Boot, "put "+disk.Slot+" into the boot order")
		}
	}
	for _, drive := range config.Drives {
		switch {
		case drive.CloudInit && drive.Slot == CloudInitSlot:
			// Used by workers, replaced by a proxy's own medium.
		case drive.CloudInit:
			add(drive.Slot, "a cloud-init drive", fmt.Sprintf("run qm set %d --delete %s: a second medium beside %s would be read too", vmid, drive.Slot, CloudInitSlot))
		case drive.Volume != "none":
			add(drive.Slot, "the image "+drive.Volume, fmt.Sprintf("run qm set %d --%s none,media=cdrom: clones would carry it along", vmid, drive.Slot))
		}
	}
	return list
}
