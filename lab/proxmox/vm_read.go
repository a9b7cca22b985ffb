package proxmox

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"aether.internal/aether/lab/proxmox/media"
)

const passwordMask = "**********"

// status is a VM as lists and status/current show it; c.mu is held. The key
// template is there only for templates: clients take any value for a yes.
func (c *Cluster) status(v *vm) map[string]any {
	row := map[string]any{
		"vmid": v.id, "name": v.name(), "status": "stopped", "cpus": cores(v.conf), "maxmem": int64(memoryMiB(v.conf)) << 20,
		"maxdisk": int64(0), "disk": 0, "uptime": 0, "cpu": 0.0, "mem": 0, "memhost": 0,
		"netin": 0, "netout": 0, "diskread": 0, "diskwrite": 0,
	}
	if disks := c.bootDisks(v.conf); len(disks) > 0 {
		if size, ok := parseSize(disks[0].props["size"]); ok {
			row["maxdisk"] = size
		}
	}
	for _, key := range []string{"lock", "tags"} {
		if v.conf[key] != "" {
			row[key] = v.conf[key]
		}
	}
	if v.conf["serial0"] != "" {
		row["serial"] = 1
	}
	if v.isTemplate() {
		row["template"] = 1
	}
	if v.running() {
		const idleCPU = 0.01
		memory := int64(v.hardware.MemoryMiB) << 20
		row["status"], row["pid"] = "running", v.pid
		row["uptime"] = max(1, int(time.Since(v.started).Seconds()))
		row["cpu"], row["mem"], row["memhost"] = idleCPU, memory/2, memory
		row["cpus"], row["maxmem"] = v.hardware.Cores, memory
	}
	return row
}

func (c *Cluster) mayAudit(r *call, vmid int) bool {
	_, ok := c.access.Permissions(r.id, fmt.Sprintf("/vms/%d", vmid))["VM.Audit"]
	return ok
}

// vmIDs lists the VMs of a node, or of all when n is nil, sorted.
func (c *Cluster) vmIDs(n *node) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []int
	for id, v := range c.vms {
		if n == nil || v.node == n {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func listVMs(c *Cluster, r *call) (any, error) {
	rows := []map[string]any{}
	for _, id := range c.vmIDs(r.node) {
		if !c.mayAudit(r, id) {
			continue
		}
		c.mu.Lock()
		if v := c.vms[id]; v != nil {
			rows = append(rows, c.status(v))
		}
		c.mu.Unlock()
	}
	return rows, nil
}

func currentStatus(c *Cluster, r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(r.node, r.vmid())
	if err != nil {
		return nil, err
	}
	row := c.status(v)
	row["qmpstatus"] = row["status"]
	row["ha"] = map[string]any{"managed": 0}
	if h := c.ha[v.id]; h != nil {
		row["ha"] = map[string]any{"managed": 1, "state": h.state}
	}
	if c.agentEnabled(v.conf) {
		row["agent"] = 1
	}
	if v.running() {
		row["running-machine"], row["running-qemu"] = "pc-i440fx-10.1+pve0", "10.1.2"
		row["balloon"] = row["maxmem"]
		nics := map[string]any{}
		for _, nic := range v.hardware.NICs {
			nics[fmt.Sprintf("tap%di%d", v.id, nic.Index)] = map[string]any{"netin": 0, "netout": 0}
		}
		row["nics"] = nics
	}
	return row, nil
}

func readConfig(c *Cluster, r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(r.node, r.vmid())
	if err != nil {
		return nil, err
	}
	conf := v.effective()
	if r.values.Bool("current") {
		conf = v.conf
	}
	if name := r.values.Get("snapshot"); name != "" {
		if conf, err = v.snapshotConf(name); err != nil {
			return nil, err
		}
	}
	out := map[string]any{"digest": v.digest()}
	for key, value := range conf {
		out[key] = c.typed(key, value)
	}
	return out, nil
}

// typed gives a configuration value the JSON type that PVE sends: integers and
// booleans as numbers, all else as text.
func (c *Cluster) typed(key, value string) any {
	switch key {
	case "cipassword":
		return passwordMask
	case "description":
		return strings.TrimRight(value, "\n") + "\n"
	}
	switch c.create.Type(key) {
	case "integer", "boolean":
		if n, err := strconv.Atoi(value); err == nil {
			return n
		}
	}
	return value
}

func pendingConfig(c *Cluster, r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(r.node, r.vmid())
	if err != nil {
		return nil, err
	}
	return c.triples(v.conf, v.pending, v.deletes), nil
}

// triples shows what a configuration is and what it will be.
func (c *Cluster) triples(conf, pending map[string]string, deletes map[string]bool) []map[string]any {
	keys := slices.Sorted(maps.Keys(conf))
	for key := range pending {
		if _, ok := conf[key]; !ok {
			keys = append(keys, key)
		}
	}
	rows := make([]map[string]any, 0, len(keys))
	for _, key := range keys {
		row := map[string]any{"key": key}
		if value, ok := conf[key]; ok {
			row["value"] = c.typed(key, value)
		}
		if value, ok := pending[key]; ok {
			row["pending"] = c.typed(key, value)
		}
		if deletes[key] {
			row["delete"] = 1
		}
		rows = append(rows, row)
	}
	return rows
}

// cloudInitPending compares the drive as it was made with the configuration.
func cloudInitPending(c *Cluster, r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(r.node, r.vmid())
	if err != nil {
		return nil, err
	}
	now := cloudInitKeys(v.conf)
	pending, deletes := map[string]string{}, map[string]bool{}
	seen := v.ciSeen
	if seen == nil {
		seen = now
	}
	for key, value := range now {
		if seen[key] != value {
			pending[key] = value
		}
	}
	for key := range seen {
		if _, ok := now[key]; !ok {
			deletes[key] = true
		}
	}
	return c.triples(seen, pending, deletes), nil
}

func dumpCloudInit(c *Cluster, r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(r.node, r.vmid())
	if err != nil {
		return nil, err
	}
	ci := media.NoCloud(v.cloudInitSource())
	return map[string]string{"user": ci.User, "network": ci.Network, "meta": ci.Meta}[r.values.Get("type")], nil
}

func regenerateCloudInit(c *Cluster, r *call) (any, error) {
	release, err := c.lockConfig(r.ctx, r.node, exclusive(r.vmid(), nil))
	if err != nil {
		return nil, err
	}
	defer release()
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(r.node, r.vmid())
	if err != nil {
		return nil, err
	}
	if err := v.checkLock(); err != nil {
		return nil, err
	}
	if err := c.generateCloudInit(v); err != nil {
		return nil, err
	}
	if v.running() {
		v.guest.SetMedia(c.media(v))
	}
	return nil, nil
}

// index answers the list of what is below a path.
func index(names ...string) handler {
	return func(*Cluster, *call) (any, error) {
		rows := make([]map[string]any, 0, len(names))
		for _, name := range names {
			rows = append(rows, map[string]any{"subdir": name})
		}
		return rows, nil
	}
}

// MachineInfo is a VM as it is now, for tests.
type MachineInfo struct {
	VMID     int
	Node     string
	Name     string
	Running  bool
	Template bool
	Lock     string
	Tags     []string
	UUID     string
	// Config holds what is stored, pending changes not merged in.
	Config  map[string]string
	Pending map[string]string
}

// VMs returns all VMs, sorted by ID, without going through the API.
func (c *Cluster) VMs() []MachineInfo {
	ids := c.vmIDs(nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]MachineInfo, 0, len(ids))
	for _, id := range ids {
		v := c.vms[id]
		if v == nil {
			continue
		}
		list = append(list, MachineInfo{
			VMID: id, Node: v.node.Name, Name: v.conf["name"], Running: v.running(), Template: v.isTemplate(), Lock: v.conf["lock"],
			Tags: strings.FieldsFunc(v.conf["tags"], func(r rune) bool { return r == ';' }), UUID: smbiosUUID(v.conf),
			Config: maps.Clone(v.conf), Pending: maps.Clone(v.pending),
		})
	}
	return list
}

// Volumes returns the volume IDs of a node's storages, sorted, for tests that
// look for leftovers.
func (c *Cluster) Volumes(node string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	if n := c.nodes[node]; n != nil {
		for name, s := range n.storages {
			for volume := range s.volumes {
				list = append(list, name+":"+volume)
			}
		}
	}
	slices.Sort(list)
	return list
}
