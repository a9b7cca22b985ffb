package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// UPID names a task: UPID:node:pid:pstart:starttime:type:id:user:. The empty
// UPID stands for "nothing to wait for".
type UPID string

func (u UPID) part(i int) string {
	parts := strings.Split(string(u), ":")
	if len(parts) != 9 || parts[0] != "UPID" {
		return ""
	}
	return parts[i]
}

// Node is the node the task runs on.
func (u UPID) Node() string { return u.part(1) }

// Type is what the task does, as qmclone.
func (u UPID) Type() string { return u.part(5) }

// ID is what the task is about: mostly a VMID, for qmclone the source's.
func (u UPID) ID() string { return u.part(6) }

// Started is when the task began, by the node's clock.
func (u UPID) Started() time.Time {
	seconds, err := strconv.ParseInt(u.part(4), 16, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(seconds, 0)
}

// TaskStatus is the state of a task.
type TaskStatus struct {
	UPID       UPID
	Running    bool
	ExitStatus string // empty while it runs
}

// Warned tells whether the task succeeded with warnings.
func (s TaskStatus) Warned() bool { return strings.HasPrefix(s.ExitStatus, "WARNINGS") }

// Succeeded tells whether the task ended well, with or without warnings.
func (s TaskStatus) Succeeded() bool { return !s.Running && (s.ExitStatus == "OK" || s.Warned()) }

// TaskStatus asks for the state of a task.
func (c *Client) TaskStatus(ctx context.Context, upid UPID) (TaskStatus, error) {
	op := "read task " + string(upid)
	if upid.Node() == "" {
		return TaskStatus{}, &Error{Op: op, Kind: ErrInvalid, Message: "this is no task name"}
	}
	var answer struct {
		Status     string `json:"status"`
		ExitStatus string `json:"exitstatus"`
	}
	if err := c.get(ctx, op, taskPath(upid)+"/status", &answer); err != nil {
		return TaskStatus{}, err
	}
	return TaskStatus{UPID: upid, Running: answer.Status != "stopped", ExitStatus: answer.ExitStatus}, nil
}

func taskPath(upid UPID) string {
	return "/nodes/" + upid.Node() + "/tasks/" + url.PathEscape(string(upid))
}

// TaskLogTail returns the last lines of a task's log.
func (c *Client) TaskLogTail(ctx context.Context, upid UPID, lines int) ([]string, error) {
	var answer []struct {
		Text string `json:"t"`
	}
	// Limit 0 is the whole log; a clone writes about a line for each percent.
	if err := c.get(ctx, "read log of task "+string(upid), taskPath(upid)+"/log?start=0&limit=0", &answer); err != nil {
		return nil, err
	}
	answer = answer[max(0, len(answer)-lines):]
	tail := make([]string, 0, len(answer))
	for _, line := range answer {
		tail = append(tail, line.Text)
	}
	return tail, nil
}

// Progress is what a wait tells its caller, for a heartbeat.
type Progress struct {
	UPID   UPID   `json:"upid,omitempty"`
	Waits  string `json:"waits"`            // what is waited for, for people
	Detail string `json:"detail,omitempty"` // the last thing heard
}

// Beat is told a wait's progress, at least every few seconds. It may be nil.
type Beat func(Progress)

func (b Beat) tell(p Progress) {
	if b != nil {
		b(p)
	}
}

// TaskResult is a task that ended well.
type TaskResult struct {
	UPID     UPID
	Warnings []string // the log's warnings, when it ended with WARNINGS
}

const (
	slowestPoll = time.Second
	// lookShare bounds by which part of its length a task's end is seen late.
	lookShare    = 8
	detailEvery  = 3 * time.Second
	logTailLines = 20
)

// WaitTask waits until the task has ended. WARNINGS is success, its text in
// the result. A task that failed is a *TaskError. While the node cannot be
// reached it keeps waiting, and says so to beat, until ctx ends: the task goes
// on without us. The empty UPID has ended.
func (c *Client) WaitTask(ctx context.Context, upid UPID, beat Beat) (TaskResult, error) {
	if upid == "" {
		return TaskResult{}, nil
	}
	progress := Progress{UPID: upid, Waits: fmt.Sprintf("task %s on %s", upid.Type(), upid.Node())}
	begin, refused := time.Now(), 0
	nextDetail := begin.Add(detailEvery)
	for {
		beat.tell(progress)
		status, err := c.TaskStatus(ctx, upid)
		switch {
		case err == nil && !status.Running:
			return c.taskEnded(ctx, status)
		case err == nil:
			refused = 0
			if time.Now().After(nextDetail) {
				nextDetail = time.Now().Add(detailEvery)
				progress.Detail = c.lastLine(ctx, upid)
			}
		case ctx.Err() != nil:
			return TaskResult{}, fmt.Errorf("wait for task %s: %w", upid, ctx.Err())
		case errors.Is(err, ErrUnreachable):
			progress.Detail = err.Error()
		case errors.Is(err, ErrUnauthorized) && refused == 0:
			refused++ // once may be a node that is just starting
		default:
			return TaskResult{}, err
		}
		pause := min(max(c.poll, time.Since(begin)/lookShare), slowestPoll)
		if err := sleep(ctx, pause); err != nil {
			return TaskResult{}, fmt.Errorf("wait for task %s: %w", upid, err)
		}
	}
}

func (c *Client) lastLine(ctx context.Context, upid UPID) string {
	tail, err := c.TaskLogTail(ctx, upid, 1)
	if err != nil || len(tail) == 0 {
		return ""
	}
	return strings.TrimSpace(tail[0])
}

// taskEnded turns the end of a task into a result or an error.
func (c *Client) taskEnded(ctx context.Context, status TaskStatus) (TaskResult, error) {
	if status.ExitStatus == "OK" {
		return TaskResult{UPID: status.UPID}, nil
	}
	tail, err := c.TaskLogTail(ctx, status.UPID, logTailLines)
	if err != nil {
		tail = []string{"the task's log cannot be read: " + err.Error()}
	}
	if !status.Warned() {
		return TaskResult{}, &TaskError{UPID: status.UPID, ExitStatus: status.ExitStatus, LogTail: tail, Kind: kindOfMessage(status.ExitStatus)}
	}
	result := TaskResult{UPID: status.UPID}
	for _, line := range tail {
		if strings.Contains(strings.ToUpper(line), "WARN") && !strings.HasPrefix(line, "TASK ") {
			result.Warnings = append(result.Warnings, strings.TrimSpace(line))
		}
	}
	if len(result.Warnings) == 0 {
		result.Warnings = []string{status.ExitStatus}
	}
	c.log.WarnContext(ctx, "proxmox task ended with warnings", "upid", string(status.UPID), "warnings", result.Warnings)
	return result, nil
}

// RunningTasks lists the node's tasks of a type that have not ended, about the
// given VM when vmid is not 0.
func (c *Client) RunningTasks(ctx context.Context, node, taskType string, vmid int) ([]UPID, error) {
	parameters := map[string]any{"source": "active", "limit": 500}
	if taskType != "" {
		parameters["typefilter"] = taskType
	}
	if vmid != 0 {
		parameters["vmid"] = vmid
	}
	var rows []struct {
		UPID    string `json:"upid"`
		EndTime int64  `json:"endtime"`
		Type    string `json:"type"`
		ID      string `json:"id"`
	}
	if err := c.call(ctx, "list tasks of "+node, http.MethodGet, "/nodes/"+node+"/tasks", parameters, &rows); err != nil {
		return nil, err
	}
	var list []UPID
	for _, row := range rows {
		matches := (taskType == "" || row.Type == taskType) && (vmid == 0 || row.ID == strconv.Itoa(vmid))
		if matches && row.EndTime == 0 {
			list = append(list, UPID(row.UPID))
		}
	}
	return list, nil
}

func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
