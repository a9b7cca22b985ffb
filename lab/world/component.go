package world

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"aether.internal/aether/lab/upstream/process"
	"aether.internal/aether/lab/world/control"
)

// errNotKillable is the answer for parts that are not programs of their own.
var errNotKillable = errors.New("cannot be killed or restarted")

// component is something of the world that runs until it is ended.
type component struct {
	name    string
	address string
	logFile string
	// process is the current process; nil for what runs in the world's own.
	process func() *process.Process
	// running is the current run of what is not a process.
	running func() run
	kill    func() error
	restart func(ctx context.Context) error
	stop    func() error

	mu       sync.Mutex
	since    time.Time
	took     time.Duration
	expected bool // it was killed on purpose
}

// run is one life of a component.
type run interface {
	Done() <-chan struct{}
	Err() error
}

// current is the life that goes on now.
func (c *component) current() run {
	if c.process != nil {
		return c.process()
	}
	return c.running()
}

func (c *component) expect(expected bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expected = expected
	if !expected {
		c.since = time.Now()
	}
}

func (c *component) isExpected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.expected
}

// status is what the control API tells about it.
func (c *component) status() control.Component {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := control.Component{
		Name: c.name, Address: c.address, Log: c.logFile, Since: c.since, ReadyAfter: c.took, State: control.Running,
	}
	if c.process != nil {
		s.PID = c.process().PID()
		if resident, err := c.process().ResidentBytes(); err == nil {
			s.ResidentBytes = resident
		}
		if used, err := c.process().CPU(); err == nil {
			s.CPU = used
		}
	}
	if c.expected {
		s.State, s.PID, s.ResidentBytes, s.CPU = control.Killed, 0, 0, 0
	}
	return s
}

// supervise registers a component that runs and reports its unexpected end.
func (w *World) supervise(c *component) {
	c.since = time.Now()
	w.mu.Lock()
	w.components = append(w.components, c)
	w.mu.Unlock()
	w.watch(c)
}

// watch waits for the end of the current run.
func (w *World) watch(c *component) {
	life := c.current()
	w.watchers.Go(func() {
		select {
		case <-life.Done():
		case <-w.ctx.Done():
			return
		}
		// Only the end that nobody asked for is a failure; after a restart the
		// old life is not the current one any more.
		if w.ctx.Err() != nil || c.isExpected() || c.current() != life {
			return
		}
		w.fail(fmt.Errorf("%s ended: %w", c.name, life.Err()))
	})
}

// component finds one by name.
func (w *World) component(name string) (*component, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	names := make([]string, 0, len(w.components))
	for _, c := range w.components {
		if c.name == name {
			return c, nil
		}
		names = append(names, c.name)
	}
	return nil, fmt.Errorf("component %q is not in this lab; there are %v", name, names)
}

// Kill ends a component as a crash would, and leaves it so until Restart.
func (w *World) Kill(name string) error {
	c, err := w.component(name)
	if err != nil {
		return err
	}
	if c.kill == nil {
		return fmt.Errorf("component %s: %w", name, errNotKillable)
	}
	c.expect(true)
	if err := c.kill(); err != nil {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	return nil
}

// Restart starts a component again, ending it first when it runs, and returns
// when it is ready.
func (w *World) Restart(ctx context.Context, name string) error {
	c, err := w.component(name)
	if err != nil {
		return err
	}
	if c.restart == nil {
		return fmt.Errorf("component %s: %w", name, errNotKillable)
	}
	c.expect(true)
	if err := c.restart(ctx); err != nil {
		return fmt.Errorf("restart %s: %w", name, err)
	}
	c.expect(false)
	w.watch(c)
	return nil
}
