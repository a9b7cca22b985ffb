package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// lookAgain is how long a wait trusts its watch before it looks by itself.
	lookAgain = 5 * time.Second
	// afterFailure is the pause before a watch is opened again.
	afterFailure = time.Second
)

// until looks with look, and again whenever one of the watched objects
// changes, until look says that it is done or fails for good. While it is not
// done, look says what is waited for, which goes into the heartbeats. An API
// server that does not answer is waited for too: that says nothing about the
// objects.
func until(ctx context.Context, c client.WithWatch, list client.ObjectList, options []client.ListOption, look func(context.Context) (waitsFor string, err error)) error {
	var changes watch.Interface
	defer func() {
		if changes != nil {
			changes.Stop()
		}
	}()
	for {
		waitsFor, err := look(ctx)
		switch {
		case err != nil && !unavailable(err):
			return err
		case err != nil:
			waitsFor = err.Error()
		case waitsFor == "":
			return nil
		}
		tell(ctx, waitsFor, "")
		if changes == nil {
			changes, err = c.Watch(ctx, list, options...)
			if err != nil {
				changes = nil
			}
		}
		open, err := nextChange(ctx, changes)
		if err != nil {
			return fmt.Errorf("wait for %s: %w", waitsFor, err)
		}
		if !open && changes != nil {
			changes.Stop()
			changes = nil
		}
	}
}

// nextChange returns when something changed or it is time to look again, and
// false when the watch is not open.
func nextChange(ctx context.Context, changes watch.Interface) (open bool, err error) {
	pause := lookAgain
	var events <-chan watch.Event
	if changes == nil {
		pause = afterFailure
	} else {
		events = changes.ResultChan()
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-timer.C:
		return changes != nil, nil
	case event, ok := <-events:
		return ok && event.Type != watch.Error, nil
	}
}

// unavailable tells whether an API server could not be asked.
func unavailable(err error) bool {
	if errors.Is(err, context.Canceled) {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return isConnection(err)
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsUnauthorized(err)
}
