package capi

import (
	"context"
	"errors"
	"slices"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"aether.internal/aether/internal/temporalclient"
)

// Pauses between looks at a workflow. Objects wake the reconcilers sooner.
const (
	lookAgainSoon = 2 * time.Second
	lookAgain     = 15 * time.Second
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
	run, err = p.Start(ctx, r)
	var running *temporalclient.RunningError
	if errors.As(err, &running) {
		return running.Run, running.Run.Type == r.Type, nil
	}
	return run, err == nil, err
}

func after(pause time.Duration) ctrl.Result { return ctrl.Result{RequeueAfter: pause} }
