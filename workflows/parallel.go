package workflows

import (
	"errors"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"
)

// parallel runs branches side by side. The first failure cancels the others;
// all are waited for, and the failure that caused the end is returned.
func parallel(ctx workflow.Context, branches ...func(workflow.Context) error) error {
	bctx, cancel := workflow.WithCancel(ctx)
	defer cancel()
	results := workflow.NewChannel(ctx)
	for _, branch := range branches {
		workflow.Go(bctx, func(ctx workflow.Context) {
			err := branch(ctx)
			// The parent's context: a cancelled branch must still report.
			results.Send(withoutCancel(ctx), outcome{err})
		})
	}
	var first error
	for range branches {
		var o outcome
		results.Receive(withoutCancel(ctx), &o)
		if o.err == nil {
			continue
		}
		if first == nil || (temporal.IsCanceledError(first) && !temporal.IsCanceledError(o.err)) {
			first = o.err
		}
		cancel()
	}
	if first != nil && errors.Is(ctx.Err(), workflow.ErrCanceled) {
		return ctx.Err()
	}
	return first
}

type outcome struct{ err error }

func withoutCancel(ctx workflow.Context) workflow.Context {
	dctx, _ := workflow.NewDisconnectedContext(ctx)
	return dctx
}
