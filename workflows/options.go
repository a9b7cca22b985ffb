package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"
)

// heartbeatTimeout bounds how long a dead worker goes unnoticed. The worker's
// interceptor beats for every activity, so even short calls may carry it.
const heartbeatTimeout = 10 * time.Second

// quickCall is for one or a few API calls. It is repeated for as long as an
// operator needs to bring an API server back.
func quickCall(ctx workflow.Context, summary string) workflow.Context {
	return withOptions(ctx, workflow.ActivityOptions{
		Summary:                summary,
		StartToCloseTimeout:    time.Minute,
		ScheduleToCloseTimeout: 30 * time.Minute,
		HeartbeatTimeout:       heartbeatTimeout,
		RetryPolicy:            retry(10 * time.Second),
	})
}

// longTask is for work that others do while the activity watches: a Proxmox
// task, a boot, a control plane.
func longTask(ctx workflow.Context, summary string) workflow.Context {
	return withOptions(ctx, workflow.ActivityOptions{
		Summary:                summary,
		StartToCloseTimeout:    30 * time.Minute,
		ScheduleToCloseTimeout: time.Hour,
		HeartbeatTimeout:       heartbeatTimeout,
		RetryPolicy:            retry(15 * time.Second),
	})
}

// untilDone is for undo and removal: it is repeated until it succeeds or a
// person ends the workflow, since giving up would leave something behind.
func untilDone(ctx workflow.Context, summary string) workflow.Context {
	return withOptions(ctx, workflow.ActivityOptions{
		Summary:             summary,
		StartToCloseTimeout: 30 * time.Minute,
		HeartbeatTimeout:    heartbeatTimeout,
		RetryPolicy:         retry(30 * time.Second),
	})
}

func withOptions(ctx workflow.Context, o workflow.ActivityOptions) workflow.Context {
	// A cancelled activity is waited for: what it did must be known before it
	// is undone.
	o.WaitForCancellation = true
	return workflow.WithActivityOptions(ctx, o)
}

func retry(longest time.Duration) *temporal.RetryPolicy {
	return &temporal.RetryPolicy{
		InitialInterval:    500 * time.Millisecond,
		BackoffCoefficient: 2,
		MaximumInterval:    longest,
	}
}
