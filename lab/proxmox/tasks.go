package proxmox

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/proxmox/access"
	"aether.internal/aether/lab/proxmox/schema"
	"aether.internal/aether/lab/proxmox/task"
	"aether.internal/aether/lab/proxmox/wire"
)

type taskSpec struct {
	kind string
	vmid int    // 0: id is used
	id   string // of tasks that are not about a VM
}

// start begins a task for a request.
func (c *Cluster) start(r *call, s taskSpec, work func(*task.Task) error) *task.Task {
	spec := task.Spec{Type: s.kind, ID: s.id, User: r.id.AuthID()}
	if s.vmid != 0 {
		spec.ID = strconv.Itoa(s.vmid)
	}
	if f := c.cfg.Faults.Take(r.place, faults.FailedTask); f != nil {
		spec.Fail = f.Message
		if spec.Fail == "" {
			spec.Fail = "failed by the lab"
		}
	}
	return r.node.tasks.Start(spec, func(t *task.Task) error { return taskError(work(t)) })
}

// taskError gives an error the text that PVE's workers end with.
func taskError(err error) error {
	var e *wire.Error
	if !errors.As(err, &e) {
		return err
	}
	text := strings.TrimSpace(e.Message)
	if e.Status != http.StatusBadRequest {
		return errors.New(text)
	}
	for _, key := range slices.Sorted(maps.Keys(e.Errors)) {
		text += " " + key + ": " + e.Errors[key]
	}
	return errors.New("400 " + text)
}

// ownTask tells whether somebody may see a task without further rights: a
// token its own, a user its own and those of its tokens.
func ownTask(id access.Identity, u task.UPID) bool {
	user, token := u.Owner()
	return user == id.User && (id.Token == "" || id.Token == token)
}

func (c *Cluster) findTask(r *call, privilege string) (*task.Task, error) {
	upid := r.values.Get("upid")
	parsed, ok := task.Parse(upid)
	if !ok {
		return nil, paramError("upid", "unable to parse worker upid")
	}
	if !ownTask(r.id, parsed) {
		if err := c.access.Check(r.id, "/nodes/"+r.node.Name, privilege); err != nil {
			return nil, err
		}
	}
	t, _ := r.node.tasks.Find(upid)
	return t, nil
}

func taskStatus(c *Cluster, r *call) (any, error) {
	t, err := c.findTask(r, "Sys.Audit")
	if err != nil {
		return nil, err
	}
	if t == nil {
		return nil, paramError("upid", "no such task")
	}
	return t.Status(), nil
}

func taskLog(c *Cluster, r *call) (any, error) {
	const defaultLimit = 50
	t, err := c.findTask(r, "Sys.Audit")
	if err != nil {
		return nil, err
	}
	if t == nil {
		r.extra = map[string]any{"total": 1}
		return []task.Line{{N: 1, T: "unable to open file - No such file or directory"}}, nil
	}
	lines, total := t.Lines(r.values.Int("start", 0), r.values.Int("limit", defaultLimit))
	r.extra = map[string]any{"total": total}
	return lines, nil
}

func stopTask(c *Cluster, r *call) (any, error) {
	t, err := c.findTask(r, "Sys.Modify")
	if err != nil || t == nil {
		return nil, err
	}
	r.node.tasks.Stop(t)
	return nil, nil
}

func nodeTasks(c *Cluster, r *call) (any, error) {
	const defaultLimit = 50
	audit := c.access.Check(r.id, "/nodes/"+r.node.Name, "Sys.Audit") == nil
	var rows []map[string]any
	for _, t := range r.node.tasks.List() {
		if (audit || ownTask(r.id, t.UPID())) && taskMatches(t, r.values) {
			rows = append(rows, t.Row())
		}
	}
	r.extra = map[string]any{"total": len(rows)}
	start := min(r.values.Int("start", 0), len(rows))
	end := min(start+r.values.Int("limit", defaultLimit), len(rows))
	return append([]map[string]any{}, rows[start:end]...), nil
}

func taskMatches(t *task.Task, v schema.Values) bool {
	u, exit := t.UPID(), t.Exit()
	user, _ := u.Owner()
	active := exit == ""
	source := v.Get("source")
	switch {
	case source == "active" && !active,
		(source == "" || source == "archive") && active,
		v.Has("vmid") && u.ID != v.Get("vmid"),
		v.Has("typefilter") && u.Type != v.Get("typefilter"),
		v.Has("since") && u.StartTime < int64(v.Int("since", 0)),
		v.Has("until") && u.StartTime > int64(v.Int("until", 0)),
		v.Has("userfilter") && !strings.Contains(user, v.Get("userfilter")),
		v.Bool("errors") && (active || exit == "OK"):
		return false
	}
	return !v.Has("statusfilter") || slices.Contains(schema.SplitList(v.Get("statusfilter")), statusType(exit))
}

func statusType(exit string) string {
	switch {
	case exit == "OK":
		return "ok"
	case strings.HasPrefix(exit, "WARNINGS"):
		return "warning"
	case exit == "" || exit == "unexpected status":
		return "unknown"
	default:
		return "error"
	}
}

func clusterTasks(c *Cluster, r *call) (any, error) {
	const finishedPerNode = 25
	audit := c.access.Check(r.id, "/", "Sys.Audit") == nil
	rows := []map[string]any{}
	for _, n := range c.order {
		finished := 0
		for _, t := range n.tasks.List() {
			if !audit && !ownTask(r.id, t.UPID()) {
				continue
			}
			row := t.Row()
			if row["status"] == "RUNNING" {
				delete(row, "status")
			} else {
				if finished++; finished > finishedPerNode {
					continue
				}
				row["saved"] = "1"
			}
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b map[string]any) int { return int(asInt64(b["starttime"]) - asInt64(a["starttime"])) })
	return rows, nil
}

func asInt64(v any) int64 {
	n, _ := v.(int64)
	return n
}
