package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	controllerlog "sigs.k8s.io/controller-runtime/pkg/log"

	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/controlplane"
	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/hypervisor"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/network"
	"aether.internal/aether/lab/proxmox"
	"aether.internal/aether/lab/registry"
	"aether.internal/aether/lab/temporal"
)

// World is a lab that runs. Its exported fields are set when Start returns and
// not changed afterwards; those of parts that were not started are nil.
type World struct {
	Clock      *latency.Clock
	Fabric     *network.Fabric
	Management *controlplane.ControlPlane // the management cluster
	Temporal   *temporal.Server
	Proxmox    *proxmox.Cluster
	Hypervisor *hypervisor.Hypervisor
	Registry   *registry.Registry
	Containers *container.Engine

	opts    Options
	faults  *faults.Set
	access  accessLog
	secrets secretStore
	store   *controlplane.Etcd // of tenants' control planes
	started time.Time

	ctx    context.Context // ends when the world fails or is asked to end
	end    context.CancelFunc
	runCtx context.Context // ends after the components were stopped
	endRun context.CancelFunc

	watchers sync.WaitGroup
	failed   chan error // the first failure

	mu         sync.Mutex
	ready      bool
	components []*component
	closers    []func() error
	logs       map[string]*os.File
	hostFaults map[string]string
	stopping   sync.Once
}

// Start starts a lab and returns when all of its parts are ready. What was
// started is ended when that fails, or when ctx ends.
func Start(ctx context.Context, opts Options) (*World, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	clock, err := latency.NewClock(opts.Speed)
	if err != nil {
		return nil, err
	}
	if err := opts.prepareDir(); err != nil {
		return nil, err
	}
	w := &World{
		Clock: clock, opts: opts, faults: &faults.Set{}, started: time.Now(),
		failed: make(chan error, 1), logs: map[string]*os.File{}, hostFaults: map[string]string{},
	}
	w.ctx, w.end = context.WithCancel(ctx)
	w.runCtx, w.endRun = context.WithCancel(context.WithoutCancel(ctx))
	err = w.startChosen()
	if err != nil {
		return nil, errors.Join(err, w.Stop())
	}
	w.mu.Lock()
	w.ready = true
	w.mu.Unlock()
	return w, nil
}

func (w *World) startChosen() error {
	// Libraries that log by themselves would do so on the terminal.
	log, err := w.logger("libraries")
	if err != nil {
		return err
	}
	controllerlog.SetLogger(logr.FromSlogHandler(log.Handler()))
	klog.SetSlogLogger(log)
	parts, err := chosen(w.parts(), w.opts.Parts)
	if err != nil {
		return err
	}
	return w.startParts(parts)
}

// startParts starts the parts and gives up as soon as one that was ready
// fails.
func (w *World) startParts(parts []part) error {
	err := startAll(w.ctx, parts, w.tellReady)
	select {
	case failure := <-w.failed:
		w.failed <- failure // Wait tells it again
		return failure
	default:
		return err
	}
}

// tellReady tells a person that a part is ready.
func (w *World) tellReady(name string, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.components {
		if c.name == name {
			c.mu.Lock()
			c.took = took
			c.mu.Unlock()
		}
	}
	// Nothing can be done when the terminal is gone.
	_, _ = fmt.Fprintf(w.opts.Out, "lab: %5.1fs  %-22s ready in %.1fs\n", time.Since(w.started).Seconds(), name, took.Seconds())
}

// fail records the first failure and begins the end.
func (w *World) fail(err error) {
	select {
	case w.failed <- err:
		w.opts.Log.Error("the lab ends", "error", err)
	default: // what follows from the first
	}
	w.end()
}

// Wait returns when the lab is asked to end or a part has failed, with that
// failure. Stop is still to be called.
func (w *World) Wait() error {
	<-w.ctx.Done()
	select {
	case err := <-w.failed:
		return err
	default:
		return nil
	}
}

// Shutdown begins the end and returns at once.
func (w *World) Shutdown() { w.end() }

// Faults are those in force; simulators ask it at each place that can fail.
func (w *World) Faults() *faults.Set { return w.faults }

// onStop adds what is done when the world ends, last added first.
func (w *World) onStop(f func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closers = append(w.closers, f)
}

// Stop ends all parts, the last started first, and returns when they are gone.
// It may be called again.
func (w *World) Stop() error {
	var errs []error
	w.stopping.Do(func() {
		w.end()
		w.watchers.Wait()
		w.mu.Lock()
		components, closers := slices.Clone(w.components), slices.Clone(w.closers)
		w.mu.Unlock()
		for _, c := range slices.Backward(components) {
			if c.stop == nil || c.isExpected() {
				continue
			}
			if err := c.stop(); err != nil {
				errs = append(errs, fmt.Errorf("stop %s: %w", c.name, err))
			}
		}
		w.endRun()
		for _, f := range slices.Backward(closers) {
			errs = append(errs, f())
		}
		for _, f := range w.logs {
			errs = append(errs, f.Close())
		}
	})
	return errors.Join(errs...)
}
