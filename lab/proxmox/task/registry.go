package task

import (
	"context"
	"sync"
	"time"

	"aether.internal/aether/lab/latency"
)

// Registry starts the tasks of one node and remembers them.
type Registry struct {
	node  string
	clock *latency.Clock
	boot  time.Time

	mu    sync.Mutex
	base  context.Context //nolint:containedctx // the node's life, parent of its tasks
	pid   int
	tasks []*Task // oldest first
	byID  map[string]*Task
	wg    sync.WaitGroup
}

const (
	firstPID = 1000
	ticks    = 100 // per second, of the kernel's start times
)

// NewRegistry returns the registry of a node that is to be booted.
func NewRegistry(node string, clock *latency.Clock) *Registry {
	return &Registry{node: node, clock: clock, boot: time.Now(), pid: firstPID, byID: map[string]*Task{}}
}

// Boot makes tasks possible; they end with ctx at the latest.
func (r *Registry) Boot(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.base = ctx
}

// Start runs work as a task and returns at once.
func (r *Registry) Start(spec Spec, work func(*Task) error) *Task {
	now := time.Now()
	r.mu.Lock()
	ctx, cancel := context.WithCancelCause(r.base)
	r.pid++
	t := &Task{
		upid: UPID{
			Node: r.node, PID: r.pid, PStart: int(now.Sub(r.boot).Seconds()*ticks) + firstPID,
			StartTime: now.Unix(), Type: spec.Type, ID: spec.ID, User: spec.User,
		},
		clock: r.clock, fail: spec.Fail, ctx: ctx, cancel: cancel, done: make(chan struct{}),
	}
	r.tasks = append(r.tasks, t)
	r.byID[t.upid.String()] = t
	r.wg.Add(1)
	r.mu.Unlock()
	go func() {
		defer r.wg.Done()
		defer cancel(nil)
		t.finish(work(t))
	}()
	return t
}

// Find returns a task by its UPID.
func (r *Registry) Find(upid string) (*Task, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, ok := r.byID[upid]
	return t, ok
}

// Stop ends a task as SIGTERM would.
func (r *Registry) Stop(t *Task) { t.cancel(ErrInterrupted) }

// KillAll ends all tasks as a power cut would, and waits until none runs.
func (r *Registry) KillAll() {
	for _, t := range r.List() {
		t.cancel(ErrKilled)
	}
	r.wg.Wait()
}

// List returns all tasks, newest first.
func (r *Registry) List() []*Task {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]*Task, 0, len(r.tasks))
	for i := len(r.tasks) - 1; i >= 0; i-- {
		list = append(list, r.tasks[i])
	}
	return list
}
