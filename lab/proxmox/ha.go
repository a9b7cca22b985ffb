package proxmox

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"aether.internal/aether/lab/proxmox/task"
)

// haResource is a VM that the HA manager looks after.
type haResource struct {
	state   string // requested: started, stopped, disabled, ignored
	restart int
	move    int
	comment string
}

func (c *Cluster) haManaged(vmid int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.ha[vmid]
	return h != nil && h.state != "ignored"
}

// haRequest is what start and stop are for a managed VM: a task that is done
// when the request is noted. The manager acts on it later.
func (c *Cluster) haRequest(r *call, kind, state string) string {
	vmid := r.vmid()
	t := c.start(r, taskSpec{kind: kind, vmid: vmid}, func(t *task.Task) error {
		c.mu.Lock()
		if h := c.ha[vmid]; h != nil {
			h.state = state
		}
		c.mu.Unlock()
		t.Log("Requesting HA %s for VM %d", strings.TrimPrefix(kind, "ha"), vmid)
		c.haRound(vmid)
		return nil
	})
	return t.UPID().String()
}

// haRound lets the manager bring a VM into its requested state after a while.
func (c *Cluster) haRound(vmid int) {
	c.wg.Go(func() {
		c.pause(c.ctx, c.cfg.Clock.Scale(haDelay))
		c.mu.Lock()
		h, v := c.ha[vmid], c.vms[vmid]
		act := h != nil && v != nil && h.state != "ignored" && v.running() != (h.state == "started")
		start := act && h.state == "started"
		var n *node
		if act {
			n = v.node
		}
		c.mu.Unlock()
		switch {
		case c.ctx.Err() != nil || n == nil || !n.powered():
		case start:
			c.startByRoot(n, vmid)
		default:
			r := &call{id: rootIdentity(), node: n, place: fmt.Sprintf("pve/POST/nodes/%s/qemu/%d/status/stop", n.Name, vmid)}
			c.start(r, taskSpec{kind: "qmstop", vmid: vmid}, func(t *task.Task) error { return c.stopTask(n, vmid, t) })
		}
	})
}

// haID reads vm:100 or 100.
func haID(sid string) int {
	id, err := strconv.Atoi(strings.TrimPrefix(sid, "vm:"))
	if err != nil {
		return 0
	}
	return id
}

func (h *haResource) row(id int) map[string]any {
	row := map[string]any{
		"sid": fmt.Sprintf("vm:%d", id), "type": "vm", "state": h.state, "max_restart": h.restart, "max_relocate": h.move, "digest": "",
	}
	if h.comment != "" {
		row["comment"] = h.comment
	}
	return row
}

func listHA(c *Cluster, r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rows := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(c.ha)) {
		if r.values.Get("type") != "ct" {
			rows = append(rows, c.ha[id].row(id))
		}
	}
	return rows, nil
}

func readHA(c *Cluster, r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := haID(r.values.Get("sid"))
	if h := c.ha[id]; h != nil {
		return h.row(id), nil
	}
	return nil, fail("no such resource '%s'", r.values.Get("sid"))
}

func createHA(c *Cluster, r *call) (any, error) {
	if r.values.Has("group") {
		return nil, fail("invalid parameter 'group': ha groups have been migrated to rules")
	}
	if err := c.needQuorum(); err != nil {
		return nil, err
	}
	id := haID(r.values.Get("sid"))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.vms[id] == nil {
		return nil, fail("cannot manage service 'vm:%d', VM does not exist", id)
	}
	if c.ha[id] != nil {
		return nil, fail("resource ID 'vm:%d' already defined", id)
	}
	h := &haResource{state: "started", restart: r.values.Int("max_restart", 1), move: r.values.Int("max_relocate", 1), comment: r.values.Get("comment")}
	h.request(r)
	c.ha[id] = h
	c.haRound(id)
	return nil, nil
}

func (h *haResource) request(r *call) {
	if state := r.values.Get("state"); state != "" {
		h.state = strings.Replace(state, "enabled", "started", 1)
	}
}

func updateHA(c *Cluster, r *call) (any, error) {
	if r.values.Has("group") {
		return nil, fail("invalid parameter 'group': ha groups have been migrated to rules")
	}
	if err := c.needQuorum(); err != nil {
		return nil, err
	}
	id := haID(r.values.Get("sid"))
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.ha[id]
	if h == nil {
		return nil, fail("no such resource '%s'", r.values.Get("sid"))
	}
	h.request(r)
	h.restart, h.move = r.values.Int("max_restart", h.restart), r.values.Int("max_relocate", h.move)
	c.haRound(id)
	return nil, nil
}

func deleteHA(c *Cluster, r *call) (any, error) {
	if err := c.needQuorum(); err != nil {
		return nil, err
	}
	id := haID(r.values.Get("sid"))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ha[id] == nil {
		return nil, fail("cannot delete service '%s', not HA managed!", r.values.Get("sid"))
	}
	delete(c.ha, id)
	return nil, nil
}

func haRules(*Cluster, *call) (any, error) { return []map[string]any{}, nil }

func haStatus(c *Cluster, _ *call) (any, error) {
	quorate := c.quorate()
	c.mu.Lock()
	defer c.mu.Unlock()
	rows := []map[string]any{{
		"id": "quorum", "type": "quorum", "node": c.order[0].Name, "quorate": boolInt(quorate),
		"status": map[bool]string{true: "OK", false: "No quorum on node"}[quorate],
	}}
	rows = append(rows, map[string]any{
		"id": "master", "type": "master", "node": c.order[0].Name,
		"status": c.order[0].Name + " (active, " + time.Now().Format(time.ANSIC) + ")",
	})
	for _, n := range c.order {
		rows = append(rows, map[string]any{"id": "lrm:" + n.Name, "type": "lrm", "node": n.Name, "status": n.Name + " (idle)"})
	}
	for _, id := range slices.Sorted(maps.Keys(c.ha)) {
		v := c.vms[id]
		if v == nil {
			continue
		}
		state := "stopped"
		if v.running() {
			state = "started"
		}
		rows = append(rows, map[string]any{
			"id": fmt.Sprintf("service:vm:%d", id), "type": "service", "sid": fmt.Sprintf("vm:%d", id), "node": v.node.Name,
			"state": state, "request_state": c.ha[id].state, "status": fmt.Sprintf("vm:%d (%s, %s)", id, v.node.Name, state),
		})
	}
	return rows, nil
}
