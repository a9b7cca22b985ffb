package task

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"aether.internal/aether/lab/latency"
)

// ErrKilled is the cause of a worker's end that leaves no trace of itself: the
// host lost power or somebody sent SIGKILL. Clean-up must not run.
var ErrKilled = errors.New("unexpected status")

// ErrInterrupted is the cause when a client stops a task. Clean-up runs.
var ErrInterrupted = errors.New("interrupted by signal")

// Spec describes a task to start.
type Spec struct {
	Type string
	ID   string
	User string
	// Fail injects an end: a text beginning with WARNINGS leaves the work
	// done, "unexpected status" kills the worker, any other fails it.
	Fail string
}

// Task is a running or finished worker.
type Task struct {
	upid   UPID
	clock  *latency.Clock
	fail   string
	cancel context.CancelCauseFunc
	ctx    context.Context //nolint:containedctx // a task is a process; this is its life
	done   chan struct{}

	mu       sync.Mutex
	log      []string
	warnings int
	exit     string // "" while it runs
	end      time.Time
}

// Context ends when the task is stopped.
func (t *Task) Context() context.Context { return t.ctx }

// UPID returns the task's name.
func (t *Task) UPID() UPID { return t.upid }

// Done is closed when the task has ended.
func (t *Task) Done() <-chan struct{} { return t.done }

// Log appends a line to the task's log.
func (t *Task) Log(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.log = append(t.log, strings.Split(fmt.Sprintf(format, args...), "\n")...)
}

// Warn logs a warning that counts: the task ends as "WARNINGS: n".
func (t *Task) Warn(format string, args ...any) {
	t.Log("WARN: "+format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.warnings++
}

// Step takes the time of n steps of the latency table. It returns why the task
// must end, if it must.
func (t *Task) Step(step latency.Step, n float64) error {
	if err := t.clock.Sleep(t.ctx, step, n); err != nil {
		return context.Cause(t.ctx)
	}
	return t.injected()
}

func (t *Task) injected() error {
	switch {
	case t.fail == "" || strings.HasPrefix(t.fail, "WARNINGS"):
		return nil
	case t.fail == ErrKilled.Error():
		return ErrKilled
	default:
		return errors.New(t.fail)
	}
}

// finish records how the worker ended.
func (t *Task) finish(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = time.Now()
	defer close(t.done)
	switch {
	case errors.Is(err, ErrKilled):
		t.exit = ErrKilled.Error()
	case err != nil:
		t.exit = strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), " ")
		t.log = append(t.log, "TASK ERROR: "+t.exit)
	case strings.HasPrefix(t.fail, "WARNINGS"):
		t.exit = t.fail
		t.log = append(t.log, "WARN: injected", "TASK "+t.exit)
	case t.warnings > 0:
		t.exit = fmt.Sprintf("WARNINGS: %d", t.warnings)
		t.log = append(t.log, "TASK "+t.exit)
	default:
		t.exit = "OK"
		t.log = append(t.log, "TASK OK")
	}
}

// Exit returns the exit status, "" while the task runs.
func (t *Task) Exit() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.exit
}

// Status is the body of …/tasks/{upid}/status.
func (t *Task) Status() map[string]any {
	s := t.fields()
	s["status"] = "running"
	if exit := t.Exit(); exit != "" {
		s["status"], s["exitstatus"] = "stopped", exit
	}
	return s
}

func (t *Task) fields() map[string]any {
	user, token := t.upid.Owner()
	f := map[string]any{
		"upid": t.upid.String(), "node": t.upid.Node, "pid": t.upid.PID, "pstart": t.upid.PStart,
		"starttime": t.upid.StartTime, "type": t.upid.Type, "id": t.upid.ID, "user": user,
	}
	if token != "" {
		f["tokenid"] = token
	}
	return f
}

// Row is the task in a list, where status is the exit status.
func (t *Task) Row() map[string]any {
	row := t.fields()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.exit == "" {
		row["status"] = "RUNNING"
		return row
	}
	row["status"], row["endtime"] = t.exit, t.end.Unix()
	return row
}

// Line is one line of a task's log.
type Line struct {
	N int    `json:"n"`
	T string `json:"t"`
}

// Lines returns a part of the log and its length; limit 0 means all.
func (t *Task) Lines(start, limit int) ([]Line, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	log := t.log
	if len(log) == 0 {
		log = []string{"no content"}
	}
	lines := []Line{}
	for i := start; i < len(log) && (limit == 0 || i < start+limit); i++ {
		lines = append(lines, Line{N: i + 1, T: log[i]})
	}
	return lines, len(log)
}
