package proxmox

import (
	"fmt"
	"maps"
	"strconv"
	"time"

	"aether.internal/aether/lab/latency"
)

const (
	pveVersion = "9.2.11"
	pveRelease = "9.2"
	pveRepo    = "0123456789abcdef"

	configVersion = 1 // of corosync.conf

	firstVMID = 100
	afterVMID = 1000000
)

func version(*Cluster, *call) (any, error) {
	return map[string]any{"release": pveRelease, "version": pveVersion, "repoid": pveRepo}, nil
}

func clusterStatus(c *Cluster, r *call) (any, error) {
	quorate := c.quorate()
	rows := []map[string]any{}
	if len(c.order) > 1 {
		rows = append(rows, map[string]any{
			"type": "cluster", "id": "cluster", "name": c.cfg.Cluster, "version": configVersion, "nodes": len(c.order), "quorate": boolInt(quorate),
		})
	}
	for _, n := range c.order {
		id := n.index
		if len(c.order) == 1 {
			id = 0
		}
		rows = append(rows, map[string]any{
			"type": "node", "id": "node/" + n.Name, "name": n.Name, "nodeid": id, "ip": n.Address,
			"online": boolInt(n.powered()), "local": boolInt(n == r.front), "level": "",
		})
	}
	return rows, nil
}

// nextID answers text, unlike its schema says. It reserves nothing.
func nextID(c *Cluster, r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.values.Has("vmid") {
		id := r.values.Int("vmid", 0)
		if c.vms[id] != nil {
			return nil, paramError("vmid", fmt.Sprintf("VM %d already exists", id))
		}
		return strconv.Itoa(id), nil
	}
	for id := firstVMID; id < afterVMID; id++ {
		if c.vms[id] == nil {
			return strconv.Itoa(id), nil
		}
	}
	return nil, fail("unable to get any free VMID in range [%d, %d]", firstVMID, afterVMID)
}

func clusterOptions(_ *Cluster, _ *call) (any, error) {
	return map[string]any{"keyboard": "en-us", "mac_prefix": "BC:24:11"}, nil
}

// broadcast is pvestatd: what cluster/resources tells of a VM is as old as
// its last round.
func (c *Cluster) broadcast() {
	defer c.wg.Done()
	ticker := time.NewTicker(c.cfg.Clock.Of(latency.ResourcesLag))
	defer ticker.Stop()
	for {
		c.collectStats()
		select {
		case <-c.ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (c *Cluster) collectStats() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, v := range c.vms {
		if !v.node.powered() {
			continue
		}
		row := c.status(v)
		for _, live := range []string{"lock", "tags", "vmid", "pid", "serial"} {
			delete(row, live)
		}
		row["maxcpu"] = row["cpus"]
		delete(row, "cpus")
		row["template"] = boolInt(v.isTemplate())
		c.stats[id] = row
	}
}

func clusterResources(c *Cluster, r *call) (any, error) {
	kind := r.values.Get("type")
	rows := []map[string]any{}
	if kind == "" || kind == "vm" {
		rows = append(rows, c.vmResources(r)...)
	}
	if kind == "" || kind == "node" {
		rows = append(rows, c.nodeRows(r)...)
	}
	if kind == "" || kind == "storage" {
		rows = append(rows, c.storageResources(r)...)
	}
	if kind == "" {
		rows = append(rows, c.poolResources(r)...)
	}
	if kind == "" || kind == "sdn" {
		rows = append(rows, c.networkResources(r)...)
	}
	return rows, nil
}

func (c *Cluster) vmResources(r *call) []map[string]any {
	var rows []map[string]any
	for _, id := range c.vmIDs(nil) {
		if !c.mayAudit(r, id) {
			continue
		}
		pool := c.poolOf(fmt.Sprintf("/vms/%d", id))
		c.mu.Lock()
		if v := c.vms[id]; v != nil {
			row := map[string]any{"id": fmt.Sprintf("qemu/%d", id), "type": "qemu", "vmid": id, "node": v.node.Name, "status": "unknown"}
			if v.node.powered() {
				maps.Copy(row, c.stats[id])
			}
			for _, key := range []string{"lock", "tags"} {
				if v.conf[key] != "" {
					row[key] = v.conf[key]
				}
			}
			if pool != "" {
				row["pool"] = pool
			}
			if h := c.ha[id]; h != nil {
				row["hastate"] = h.state
			}
			rows = append(rows, row)
		}
		c.mu.Unlock()
	}
	return rows
}

func (c *Cluster) storageResources(r *call) []map[string]any {
	var rows []map[string]any
	for _, n := range c.order {
		for _, spec := range n.Storages {
			if c.access.CheckAny(r.id, "/storage/"+spec.Name, "Datastore.Audit", "Datastore.AllocateSpace") != nil {
				continue
			}
			c.mu.Lock()
			info := n.storages[spec.Name].row()
			c.mu.Unlock()
			row := map[string]any{
				"id": "storage/" + n.Name + "/" + spec.Name, "storage": spec.Name, "node": n.Name, "type": "storage",
				"plugintype": spec.Type, "status": "available", "shared": info["shared"], "content": info["content"],
				"maxdisk": info["total"], "disk": info["used"],
			}
			if !n.powered() {
				row["status"] = "unknown"
			}
			rows = append(rows, row)
		}
	}
	return rows
}

func (c *Cluster) poolResources(r *call) []map[string]any {
	var rows []map[string]any
	for _, name := range c.poolNames() {
		if c.access.Check(r.id, "/pool/"+name, "Pool.Audit") == nil {
			rows = append(rows, map[string]any{"id": "/pool/" + name, "type": "pool", "pool": name})
		}
	}
	return rows
}

func (c *Cluster) networkResources(r *call) []map[string]any {
	var rows []map[string]any
	if c.access.CheckAny(r.id, "/sdn/zones/"+localZone, "SDN.Audit", "SDN.Use", "SDN.Allocate") != nil {
		return nil
	}
	for _, n := range c.order {
		status := "available"
		if !n.powered() {
			status = "unknown"
		}
		rows = append(rows, map[string]any{
			"id": "network/" + n.Name + "/zone/" + localZone, "type": "network", "network": localZone, "network-type": "zone",
			"node": n.Name, "status": status,
		})
	}
	return rows
}

// localZone is the implicit zone of all plain bridges.
const localZone = "localnetwork"

func sdnZones(c *Cluster, r *call) (any, error) {
	// The implicit zone is not configured and so not listed.
	return []map[string]any{}, nil
}

func sdnZone(_ *Cluster, r *call) (any, error) {
	return nil, fail("sdn '%s' does not exist", r.values.Get("zone"))
}

func sdnVNets(*Cluster, *call) (any, error) { return []map[string]any{}, nil }

func sdnVNet(_ *Cluster, r *call) (any, error) {
	return nil, fail("sdn vnet '%s' does not exist", r.values.Get("vnet"))
}
