// Package faults lets tests and the command line make the simulated world
// fail: by kind, place and count. A simulator asks Take at each place where
// it can fail; nothing fails that was not asked for.
package faults

import (
	"fmt"
	"path"
	"slices"
	"sync"
	"time"
)

// Kind says how a place fails.
type Kind string

// The kinds of faults. Which of them a place knows is in its simulator's docs.
const (
	// HTTPStatus answers Status and Message instead of doing the work.
	HTTPStatus Kind = "http-status"
	// LostAnswer does the work, then breaks the connection before the answer.
	LostAnswer Kind = "lost-answer"
	// Delay waits Delay before the work.
	Delay Kind = "delay"
	// FailedTask starts the task and ends it with Message as exit status.
	FailedTask Kind = "failed-task"
	// HostOff makes a host unreachable until the fault is cleared.
	HostOff Kind = "host-off"
	// NoAgent keeps a guest agent from ever answering.
	NoAgent Kind = "no-agent"
	// NoQuorum makes the cluster refuse writes until the fault is cleared.
	NoQuorum Kind = "no-quorum"
	// Away makes a server unreachable until the fault is cleared.
	Away Kind = "away"
	// Hold stops after the work and before the answer until the fault is
	// cleared, so that a test can kill the caller in between.
	Hold Kind = "hold"
)

// Kinds lists all kinds.
func Kinds() []Kind {
	return []Kind{HTTPStatus, LostAnswer, Delay, FailedTask, HostOff, NoAgent, NoQuorum, Away, Hold}
}

// Fault is one thing that shall go wrong.
type Fault struct {
	ID    string `json:"id"`
	Kind  Kind   `json:"kind"`
	Place string `json:"place"` // pattern of path.Match, as pve/POST/qemu/*/clone
	// Count is how many times it happens; 0 means until it is cleared.
	Count int `json:"count,omitempty"`
	// Skip lets that many matching calls pass first.
	Skip int `json:"skip,omitempty"`

	Status  int           `json:"status,omitempty"`
	Message string        `json:"message,omitempty"`
	Delay   time.Duration `json:"delay,omitempty"`

	// Hits counts how often it happened.
	Hits int `json:"hits"`

	released chan struct{}
}

// Released is closed when a Hold was cleared.
func (f *Fault) Released() <-chan struct{} { return f.released }

// Set holds the faults that are in force. The zero value is ready, and a nil
// Set never fails anything.
type Set struct {
	mu     sync.Mutex
	next   int
	faults []*Fault
	onHit  []func(Fault)
}

// Inject puts a fault in force and returns its ID.
func (s *Set) Inject(f Fault) (string, error) {
	if !slices.Contains(Kinds(), f.Kind) {
		return "", fmt.Errorf("kind: %q is not a fault; allowed are %v", f.Kind, Kinds())
	}
	if _, err := path.Match(f.Place, ""); err != nil || f.Place == "" {
		return "", fmt.Errorf("place: %q is not a pattern; give a path such as pve/POST/qemu/*/clone", f.Place)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	f.ID = fmt.Sprintf("fault-%d", s.next)
	f.Hits = 0
	f.released = make(chan struct{})
	s.faults = append(s.faults, &f)
	return f.ID, nil
}

// Take asks whether the place shall fail now in one of the kinds, and counts
// it. It returns nil when nothing shall fail.
func (s *Set) Take(place string, kinds ...Kind) *Fault {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	var hit *Fault
	for _, f := range s.faults {
		if matched, err := path.Match(f.Place, place); err != nil || !matched || !slices.Contains(kinds, f.Kind) {
			continue
		}
		if f.Skip > 0 {
			f.Skip--
			continue
		}
		if f.Count > 0 && f.Hits >= f.Count {
			continue
		}
		f.Hits++
		hit = f
		break
	}
	var hooks []func(Fault)
	var copied Fault
	if hit != nil {
		hooks, copied = slices.Clone(s.onHit), *hit
	}
	s.mu.Unlock()
	for _, hook := range hooks {
		hook(copied)
	}
	if hit == nil {
		return nil
	}
	return &copied
}

// InForce tells whether an unlimited fault of that kind covers the place, and
// does not count it.
func (s *Set) InForce(place string, kind Kind) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.faults, func(f *Fault) bool {
		matched, err := path.Match(f.Place, place)
		return err == nil && matched && f.Kind == kind
	})
}

// Clear lifts the fault of that ID, or all faults when id is empty, and
// returns how many it lifted.
func (s *Set) Clear(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.faults)
	s.faults = slices.DeleteFunc(s.faults, func(f *Fault) bool {
		if id != "" && f.ID != id {
			return false
		}
		close(f.released)
		return true
	})
	return before - len(s.faults)
}

// List returns the faults in force with their hits.
func (s *Set) List() []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Fault, 0, len(s.faults))
	for _, f := range s.faults {
		list = append(list, *f)
	}
	return list
}

// OnHit calls hook, outside the lock, each time a fault happens.
func (s *Set) OnHit(hook func(Fault)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onHit = append(s.onHit, hook)
}
