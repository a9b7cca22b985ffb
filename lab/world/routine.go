package world

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// errStill is the answer for a routine that does not end when it is asked to.
var errStill = errors.New("did not end when it was asked to")

// stopGrace is how long a component may take to end in order.
const stopGrace = 5 * time.Second

// routine runs a part of the world in the world's own process.
type routine struct {
	parent context.Context
	f      func(ctx context.Context) error
	log    string

	mu  sync.Mutex
	run *routineRun
}

// routineRun is one life of a routine.
type routineRun struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // set before done is closed
	log    string
}

// Done is closed when it has ended.
func (r *routineRun) Done() <-chan struct{} { return r.done }

// Err says how it ended, with the last lines of its log.
func (r *routineRun) Err() error {
	err := r.err
	if err == nil {
		err = errors.New("it returned without being asked to")
	}
	return fmt.Errorf("%w; last lines of %s:\n%s", err, r.log, tail(r.log))
}

func (r *routine) current() run {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.run
}

func (r *routine) start() {
	ctx, cancel := context.WithCancel(r.parent)
	life := &routineRun{cancel: cancel, done: make(chan struct{}), log: r.log}
	r.mu.Lock()
	r.run = life
	r.mu.Unlock()
	go func() {
		defer close(life.done)
		defer cancel()
		life.err = r.f(ctx)
	}()
}

func (r *routine) stop() error {
	r.mu.Lock()
	life := r.run
	r.mu.Unlock()
	life.cancel()
	select {
	case <-life.done:
		return nil
	case <-time.After(stopGrace):
		return errStill
	}
}

// run starts f as a component of the world. It runs until its context ends; a
// return before that is a failure of the world.
func (w *World) run(name, address string, f func(ctx context.Context) error) {
	r := &routine{parent: w.runCtx, f: f, log: w.logPath(name)}
	r.start()
	w.supervise(&component{
		name: name, address: address, logFile: r.log, running: r.current, kill: r.stop, stop: r.stop,
		restart: func(context.Context) error {
			if err := r.stop(); err != nil {
				return err
			}
			r.start()
			return nil
		},
	})
}

// logPath is where a component's log is, or a link to it.
func (w *World) logPath(name string) string { return filepath.Join(w.opts.Dir, "logs", name+".log") }

// logger writes to the component's own log file.
func (w *World) logger(name string) (*slog.Logger, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f, ok := w.logs[name]; ok {
		return newLogger(f), nil
	}
	f, err := os.OpenFile(w.logPath(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	w.logs[name] = f
	return newLogger(f), nil
}

func newLogger(f *os.File) *slog.Logger {
	return slog.New(slog.NewTextHandler(f, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// linkLog makes a log that a program keeps elsewhere visible among the others.
func (w *World) linkLog(name, file string) error {
	target, err := filepath.Rel(filepath.Dir(w.logPath(name)), file)
	if err != nil {
		return fmt.Errorf("link log of %s: %w", name, err)
	}
	if err := os.Symlink(target, w.logPath(name)); err != nil {
		return fmt.Errorf("link log of %s: %w", name, err)
	}
	return nil
}

// tailBytes is how much of a log a person is shown.
const tailBytes = 2000

// tail returns the last lines of a file, or why there are none.
func tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return "(" + err.Error() + ")"
	}
	if len(data) == 0 {
		return "(nothing)"
	}
	return string(data[max(0, len(data)-tailBytes):])
}
