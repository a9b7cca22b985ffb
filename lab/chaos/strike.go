package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/client"

	"aether.internal/aether/lab/faults"
)

// Begin starts the workflow that is struck and returns its ID.
type Begin func(ctx context.Context) (id string, err error)

// ErrMissed says that a run ended without passing the point.
var ErrMissed = errors.New("the run did not pass the point")

// abandonTime is how long a call stays held after its workflow was cancelled:
// longer than a cancellation takes to reach an activity by its heartbeats.
const abandonTime = 20 * time.Second

// KillAt runs a workflow, kills the worker at the point, lets the call go,
// starts a worker again, and waits for the workflow to complete.
func (l *Lab) KillAt(ctx context.Context, p Point, start Begin) error {
	run, release, err := l.reach(ctx, p, start)
	if err != nil {
		return err
	}
	err = l.worker.Kill()
	release()
	if err != nil {
		return fmt.Errorf("kill the worker: %w", err)
	}
	if err := l.startWorker(ctx); err != nil {
		return err
	}
	return l.Completed(ctx, run.GetID())
}

// CancelAt runs a workflow, cancels it at the point, lets the call go once the
// activity has given it up or some time has passed, and waits for the workflow
// to be Canceled.
func (l *Lab) CancelAt(ctx context.Context, p Point, start Begin) error {
	run, release, err := l.reach(ctx, p, start)
	if err != nil {
		return err
	}
	defer release()
	before, err := l.pending(ctx, run)
	if err != nil {
		return err
	}
	if err := l.Temporal.CancelWorkflow(ctx, run.GetID(), run.GetRunID()); err != nil {
		return fmt.Errorf("cancel %s: %w", run.GetID(), err)
	}
	if p.Place != placeTemporal+"/"+completed {
		patience, stop := context.WithTimeout(ctx, abandonTime)
		defer stop()
		// An activity that waits for its call until the end is fine too.
		_ = eventually(patience, "the activity to give up", func(ctx context.Context) error {
			now, err := l.pending(ctx, run)
			if err != nil {
				return err
			}
			for id := range before {
				if !now[id] {
					return nil
				}
			}
			return errNotYet
		})
	}
	release()
	return l.cancelled(ctx, run)
}

// pending are the IDs of a run's open activities.
func (l *Lab) pending(ctx context.Context, run client.WorkflowRun) (map[string]bool, error) {
	description, err := l.Temporal.DescribeWorkflowExecution(ctx, run.GetID(), run.GetRunID())
	if err != nil {
		return nil, fmt.Errorf("describe %s: %w", run.GetID(), err)
	}
	ids := map[string]bool{}
	for _, a := range description.GetPendingActivities() {
		ids[a.GetActivityId()] = true
	}
	return ids, nil
}

// reach runs a workflow up to the point, where the call is held until release.
func (l *Lab) reach(ctx context.Context, p Point, start Begin) (run client.WorkflowRun, release func(), err error) {
	set := l.World.Faults()
	fault, err := set.Inject(faults.Fault{Kind: faults.Hold, Place: p.Place, Skip: p.Nth - 1, Count: 1})
	if err != nil {
		return nil, nil, err
	}
	release = func() { set.Clear(fault) }
	hit := make(chan struct{})
	l.mu.Lock()
	l.hits[fault] = hit
	l.mu.Unlock()
	id, err := start(ctx)
	if err != nil {
		release()
		return nil, nil, err
	}
	run = l.Temporal.GetWorkflow(ctx, id, "")
	ended := make(chan error, 1)
	wait, stop := context.WithCancel(ctx)
	defer stop()
	go func() { ended <- run.Get(wait, nil) }()
	select {
	case <-hit:
		return run, release, nil
	case err := <-ended:
		release()
		return nil, nil, errors.Join(ErrMissed, err)
	}
}
