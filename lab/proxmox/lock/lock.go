package lock

import (
	"context"
	"sync"
	"time"
)

// Mode is how a lock is held.
type Mode int

// The modes of flock(2).
const (
	Shared Mode = iota
	Exclusive
)

// TimeoutError says that a lock was held by others for the whole time-out.
type TimeoutError struct{ Text string }

// Error implements error with PVE's words.
func (e *TimeoutError) Error() string { return e.Text }

// FileTimeout is the error for a lock file of a node.
func FileTimeout(path string) *TimeoutError {
	return &TimeoutError{Text: "can't lock file '" + path + "' - got timeout"}
}

// ClusterTimeout is the error for a cluster-wide lock, as of a shared storage.
func ClusterTimeout(name string) *TimeoutError {
	return &TimeoutError{Text: "cfs-lock '" + name + "' error: got lock request timeout"}
}

// Table holds locks by name. The zero value is ready.
type Table struct {
	mu    sync.Mutex
	locks map[string]*state
}

type state struct {
	holders   int
	exclusive bool
	changed   chan struct{} // closed at the next release
}

// Request is what to lock and how.
type Request struct {
	Name    string
	Mode    Mode
	Timeout time.Duration
	// OnTimeout is the error when the time is up.
	OnTimeout *TimeoutError
	// OnWait is called once if the lock is not free at once.
	OnWait func()
}

// Acquire takes a lock or fails with the request's error. The release is to be
// called exactly once.
func (t *Table) Acquire(ctx context.Context, r Request) (release func(), err error) {
	deadline := time.NewTimer(r.Timeout)
	defer deadline.Stop()
	waited := false
	for {
		changed, ok := t.try(r)
		if ok {
			return func() { t.release(r.Name) }, nil
		}
		if !waited && r.OnWait != nil {
			r.OnWait()
		}
		waited = true
		select {
		case <-changed:
		case <-deadline.C:
			return nil, r.OnTimeout
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (t *Table) try(r Request) (<-chan struct{}, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.locks == nil {
		t.locks = map[string]*state{}
	}
	s := t.locks[r.Name]
	if s == nil {
		s = &state{changed: make(chan struct{})}
		t.locks[r.Name] = s
	}
	if s.holders > 0 && (s.exclusive || r.Mode == Exclusive) {
		return s.changed, false
	}
	s.holders++
	s.exclusive = r.Mode == Exclusive
	return nil, true
}

func (t *Table) release(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.locks[name]
	s.holders--
	close(s.changed)
	if s.holders == 0 {
		delete(t.locks, name)
		return
	}
	s.changed = make(chan struct{})
}
