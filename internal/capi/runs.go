package capi

import (
	"context"
	"errors"
	"slices"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"aether.internal/aether/internal/temporalclient"
)

// Pauses between looks at a workflow. Objects wake the reconcilers sooner.
const (
	lookAgainSoon = 2 * time.Second
	lookAgain     = 15 * time.Second
	// startAgain is the least time between the end of a run that did not
	// complete and the start of another of its type: what ends at once would
	// otherwise fill Temporal with runs.
	startAgain = 30 * time.Second
)

// replace makes sure that the open run of the request's ID is of the request's
// type: another one is cancelled and waited for, and when none is open the
// request is started. It returns the open run, or false while it waits.
func replace(ctx context.Context, p Processes, r temporalclient.Request, yields ...string) (temporalclient.Run, bool, error) {
	run, found, err := p.Latest(ctx, r.ID)
	if err != nil {
		return run, false, err
	}
	if found && run.Open() {
		if run.Type == r.Type {
			return run, true, nil
		}
		if !slices.Contains(yields, run.Type) {
			return run, false, nil
		}
		return run, false, p.Cancel(ctx, r.ID)
	}
	if found && resting(run, r.Type) {
		return run, false, nil
	}
	run, err = p.Start(ctx, r)
	var running *temporalclient.RunningError
	if errors.As(err, &running) {
		return running.Run, running.Run.Type == r.Type, nil
	}
	return run, err == nil, err
}

// resting tells whether a run of that type ended a moment ago without having
// completed. One that was cancelled was cancelled for a reason, and does not
// rest.
func resting(run temporalclient.Run, kind string) bool {
	switch run.Status {
	case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED:
		return false
	}
	return run.Type == kind && time.Since(run.Closed) < startAgain
}

func after(pause time.Duration) ctrl.Result { return ctrl.Result{RequeueAfter: pause} }
