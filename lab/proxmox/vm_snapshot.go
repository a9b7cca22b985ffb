package proxmox

import (
	"maps"
	"slices"
	"time"

	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/proxmox/task"
)

func snapshotVM(c *Cluster, r *call) (any, error) {
	name := r.values.Get("snapname")
	if name == "current" || name == "pending" {
		return nil, fail("unable to use snapshot name '%s' (reserved name)", name)
	}
	return c.onSnapshot(r, "qmsnapshot", func(v *vm) error {
		if v.isTemplate() {
			return fail("you can't take a snapshot if it's a template")
		}
		if _, err := v.snapshotConf(name); err == nil {
			return fail("snapshot name '%s' already used", name)
		}
		conf := maps.Clone(v.conf)
		v.snapshots = append(v.snapshots, vmSnapshot{name, r.values.Get("description"), time.Now(), conf})
		v.conf["parent"] = name
		return nil
	})
}

func deleteSnapshot(c *Cluster, r *call) (any, error) {
	name := r.values.Get("snapname")
	return c.onSnapshot(r, "qmdelsnapshot", func(v *vm) error {
		i := slices.IndexFunc(v.snapshots, func(s vmSnapshot) bool { return s.name == name })
		if i < 0 {
			return fail("snapshot '%s' does not exist", name)
		}
		v.snapshots = slices.Delete(v.snapshots, i, i+1)
		delete(v.conf, "parent")
		if len(v.snapshots) > 0 {
			v.conf["parent"] = v.snapshots[len(v.snapshots)-1].name
		}
		return nil
	})
}

// onSnapshot changes a VM's snapshots in a task under its lock.
func (c *Cluster) onSnapshot(r *call, kind string, work func(*vm) error) (any, error) {
	c.mu.Lock()
	v, err := c.find(r.node, r.vmid())
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	t := c.start(r, taskSpec{kind: kind, vmid: v.id}, func(t *task.Task) error {
		release, err := c.lockConfig(t.Context(), r.node, exclusive(v.id, t))
		if err != nil {
			return err
		}
		defer release()
		if err := t.Step(latency.VMConfig, 1); err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if err := v.checkLock(); err != nil {
			return err
		}
		return work(v)
	})
	return t.UPID().String(), nil
}

func listSnapshots(c *Cluster, r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(r.node, r.vmid())
	if err != nil {
		return nil, err
	}
	rows := []map[string]any{}
	parent := ""
	for _, s := range v.snapshots {
		row := map[string]any{"name": s.name, "description": s.description, "snaptime": s.taken.Unix(), "vmstate": 0}
		if parent != "" {
			row["parent"] = parent
		}
		parent = s.name
		rows = append(rows, row)
	}
	current := map[string]any{"name": "current", "digest": v.digest(), "running": boolInt(v.running()), "description": "You are here!"}
	if parent != "" {
		current["parent"] = parent
	}
	return append(rows, current), nil
}
