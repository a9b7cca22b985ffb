package scenario

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// T is one run of a scenario.
type T struct {
	*Lab
	// Name of the scenario.
	Name string
	// Dir is a scratch folder of its own.
	Dir string

	log      func(format string, values ...any)
	cleanups []func(ctx context.Context) error
}

// Logf tells what the scenario does.
func (t *T) Logf(format string, values ...any) { t.log(format, values...) }

// Cleanup adds what is done when the scenario has ended, the last added first.
func (t *T) Cleanup(f func(ctx context.Context) error) { t.cleanups = append(t.cleanups, f) }

// cleanupTime bounds the cleaning up after one scenario.
const cleanupTime = 3 * time.Minute

// end cleans up, also after a scenario that ran out of time.
func (t *T) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	var errs []error
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		if err := t.cleanups[i](ctx); err != nil {
			errs = append(errs, fmt.Errorf("clean up: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Testdata is the path of one of the scenario's files.
func (t *T) Testdata(name string) string {
	return filepath.Join(t.Source, "lab", "scenario", "testdata", t.Name, name)
}

// lookEvery is the time between two looks at what cannot be watched.
const lookEvery = 50 * time.Millisecond

// eventually looks until there is no error left, and returns the last one when
// the context ends before.
func eventually(ctx context.Context, what string, look func(ctx context.Context) error) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var last error
	for {
		err := look(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err // not the end of our own patience
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w (%w)", what, last, ctx.Err())
		case <-ticker.C:
		}
	}
}
