package proxmox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Ref names a VM that is expected to be ours. Every write reads the VM first
// and compares the mark with Machine.
type Ref struct {
	Node    string
	VMID    int
	Machine string // UUID in the mark
}

func (r Ref) String() string { return fmt.Sprintf("VM %d on %s", r.VMID, r.Node) }

// own reads a VM and makes sure that it may be written.
func (c *Client) own(ctx context.Context, op string, ref Ref) (Observed, error) {
	if err := writable(op, ref.VMID); err != nil {
		return Observed{}, err
	}
	seen, err := c.VM(ctx, ref.Node, ref.VMID)
	if err != nil {
		return Observed{}, err
	}
	return seen, seen.Belongs(ref.Machine)
}

// ConfigWish is what a VM's configuration shall be. Zero values are left as
// they are.
type ConfigWish struct {
	Name      string
	Mark      *Mark // description and tags
	UUID      string
	Cores     int
	MemoryMiB int
	Agent     *bool
	OnBoot    *bool
	NICs      []NIC // those indexes; without a MAC the card keeps its own
	Boot      []string
	CloudInit *CloudInit
	ISO       map[string]string // slot → volume ID
	// Remove are keys to delete, as net1 or ide2; missing ones are fine.
	Remove []string
}

// CloudInit are Proxmox's own cloud-init settings.
type CloudInit struct {
	Slot    string // of the drive, as ide2
	Storage string // where the drive is made when the VM has none
	// Addresses by index of the card. A card without one gets none.
	Addresses   map[int]AddressConfig
	Nameservers []netip.Addr
	Domain      string
}

// AddressConfig is the address of a card.
type AddressConfig struct {
	Address netip.Prefix
	Gateway netip.Addr // zero: none
}

// WriteConfig makes the VM's configuration what is wished and reads it back.
// What is so already is not written, so it can be repeated.
func (c *Client) WriteConfig(ctx context.Context, ref Ref, wish ConfigWish) error {
	op := "configure " + ref.String()
	seen, err := c.own(ctx, op, ref)
	if err != nil {
		return err
	}
	changes := wish.changes(seen.Config)
	if len(changes) == 0 {
		return nil
	}
	changes["digest"] = seen.Config.Digest
	if err := c.call(ctx, op, http.MethodPut, vmPath(ref.Node, ref.VMID)+"/config", changes, nil); err != nil {
		return err
	}
	after, err := c.VMConfig(ctx, ref.Node, ref.VMID)
	if err != nil {
		return err
	}
	if rest := wish.changes(after); len(rest) > 0 {
		return &Error{Op: op, Kind: ErrConflict, Message: "Proxmox accepted the change, but these settings are not as wished: " + strings.Join(slices.Sorted(maps.Keys(rest)), ", ")}
	}
	return nil
}

// changes returns the parameters that turn the configuration into the wished
// one.
func (w ConfigWish) changes(now VMConfig) map[string]any {
	set := map[string]any{}
	different := func(key, wanted, found string) {
		if wanted != "" && wanted != found {
			set[key] = wanted
		}
	}
	different("name", w.Name, now.Name)
	if w.Mark != nil {
		if mark, ok := ParseMark(now.Description); !ok || mark != *w.Mark {
			set["description"] = w.Mark.Description()
		}
		if tags := w.Mark.Tags(); !containsAll(now.Tags, tags) {
			set["tags"] = strings.Join(tags, ";")
		}
	}
	if w.UUID != "" && !strings.EqualFold(w.UUID, now.UUID) {
		set["smbios1"] = "uuid=" + strings.ToLower(w.UUID)
	}
	if w.Cores != 0 && w.Cores != now.Cores {
		set["cores"], set["sockets"] = w.Cores, 1
	}
	if w.MemoryMiB != 0 && w.MemoryMiB != now.MemoryMiB {
		set["memory"] = w.MemoryMiB
	}
	if w.Agent != nil && *w.Agent != now.Agent {
		set["agent"] = flag(*w.Agent)
	}
	if w.OnBoot != nil && *w.OnBoot != truth(now.values["onboot"]) {
		set["onboot"] = flag(*w.OnBoot)
	}
	if len(w.Boot) > 0 {
		different("boot", "order="+strings.Join(w.Boot, ";"), now.Boot)
	}
	for _, nic := range w.NICs {
		w.changeNIC(set, nic, now)
	}
	for slot, volume := range w.ISO {
		if options(now.values[slot])[""] != volume {
			set[slot] = volume + ",media=cdrom"
		}
	}
	if w.CloudInit != nil {
		w.CloudInit.changes(set, now)
	}
	w.removals(set, now)
	return set
}

func (w ConfigWish) removals(set map[string]any, now VMConfig) {
	var remove []string
	for _, key := range w.Remove {
		if _, there := now.values[key]; there {
			remove = append(remove, key)
		}
	}
	if len(remove) > 0 {
		set["delete"] = strings.Join(remove, ",")
	}
}

func (w ConfigWish) changeNIC(set map[string]any, nic NIC, now VMConfig) {
	found, ok := now.NIC(nic.Index)
	if ok && found.equal(nic) {
		return
	}
	if ok && len(nic.MAC) == 0 {
		nic.MAC = found.MAC
	}
	set["net"+strconv.Itoa(nic.Index)] = nic.setting()
}

func (ci *CloudInit) changes(set map[string]any, now VMConfig) {
	has := slices.ContainsFunc(now.Drives, func(d Drive) bool { return d.CloudInit })
	if !has && ci.Slot != "" {
		set[ci.Slot] = ci.Storage + ":cloudinit"
	}
	for index, address := range ci.Addresses {
		key, value := "ipconfig"+strconv.Itoa(index), "ip="+address.Address.String()
		if address.Gateway.IsValid() {
			value += ",gw=" + address.Gateway.String()
		}
		if now.values[key] != value {
			set[key] = value
		}
	}
	if len(ci.Nameservers) > 0 {
		list := make([]string, 0, len(ci.Nameservers))
		for _, server := range ci.Nameservers {
			list = append(list, server.String())
		}
		if joined := strings.Join(list, " "); now.values["nameserver"] != joined {
			set["nameserver"] = joined
		}
	}
	if ci.Domain != "" && now.values["searchdomain"] != ci.Domain {
		set["searchdomain"] = ci.Domain
	}
}

func flag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}

func containsAll(have, want []string) bool {
	return !slices.ContainsFunc(want, func(one string) bool { return !slices.Contains(have, one) })
}

// SetLinkDown pulls (true) or plugs (false) the cable of a card and reads the
// result back. All else about the card stays.
func (c *Client) SetLinkDown(ctx context.Context, ref Ref, index int, down bool) error {
	op := fmt.Sprintf("set link of net%d of %s", index, ref)
	seen, err := c.own(ctx, op, ref)
	if err != nil {
		return err
	}
	nic, ok := seen.Config.NIC(index)
	if !ok {
		return &Error{Op: op, Kind: ErrInvalid, Message: fmt.Sprintf("the VM has no card net%d", index)}
	}
	if nic.LinkDown == down {
		return nil
	}
	nic.LinkDown = down
	return c.WriteConfig(ctx, ref, ConfigWish{NICs: []NIC{nic}})
}

// Grow makes a disk the given size, waiting for the task, and reads the size
// back. A disk that has it is left alone; a larger one is refused, for disks
// cannot shrink. The size sent is absolute, so it can be repeated.
func (c *Client) Grow(ctx context.Context, ref Ref, slot string, gib int, beat Beat) error {
	op := fmt.Sprintf("grow disk %s of %s to %d GiB", slot, ref, gib)
	seen, err := c.own(ctx, op, ref)
	if err != nil {
		return err
	}
	wanted := int64(gib) << 30
	disk, ok := seen.Config.Disk(slot)
	switch {
	case !ok:
		return &Error{Op: op, Kind: ErrInvalid, Message: "the VM has no such disk"}
	case disk.SizeBytes == wanted:
		return nil
	case disk.SizeBytes > wanted:
		return &Error{Op: op, Kind: ErrInvalid, Message: fmt.Sprintf("the disk has %d GiB already and disks cannot shrink; ask for at least that", (disk.SizeBytes+1<<30-1)>>30)}
	}
	// Before PVE 8 the answer was null and the work was done by then.
	var upid *UPID
	parameters := map[string]any{"disk": slot, "size": strconv.Itoa(gib) + "G"}
	if err := c.call(ctx, op, http.MethodPut, vmPath(ref.Node, ref.VMID)+"/resize", parameters, &upid); err != nil {
		return err
	}
	var failed error
	if upid != nil {
		_, failed = c.WaitTask(ctx, *upid, beat)
	}
	config, err := c.VMConfig(ctx, ref.Node, ref.VMID)
	if err != nil {
		return errors.Join(failed, err)
	}
	if disk, _ = config.Disk(slot); disk.SizeBytes == wanted {
		return nil
	}
	if failed != nil {
		return failed
	}
	return &Error{Op: op, Kind: ErrConflict, Message: fmt.Sprintf("the task succeeded, but the disk has %d bytes", disk.SizeBytes)}
}
