package lock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func request(mode Mode, timeout time.Duration) Request {
	return Request{Name: "/l", Mode: mode, Timeout: timeout, OnTimeout: FileTimeout("/l")}
}

func TestModes(t *testing.T) {
	for name, c := range map[string]struct {
		first, second Mode
		waits         bool
	}{
		"shared shared":       {Shared, Shared, false},
		"shared exclusive":    {Shared, Exclusive, true},
		"exclusive shared":    {Exclusive, Shared, true},
		"exclusive exclusive": {Exclusive, Exclusive, true},
	} {
		t.Run(name, func(t *testing.T) {
			var table Table
			release, err := table.Acquire(t.Context(), request(c.first, time.Second))
			if err != nil {
				t.Fatal(err)
			}
			waited := false
			r := request(c.second, 20*time.Millisecond)
			r.OnWait = func() { waited = true }
			second, err := table.Acquire(t.Context(), r)
			var timeout *TimeoutError
			if errors.As(err, &timeout) != c.waits || waited != c.waits {
				t.Errorf("got %v, waited %v", err, waited)
			}
			if c.waits && err.Error() != "can't lock file '/l' - got timeout" {
				t.Error(err)
			}
			if err == nil {
				second()
			}
			release()
			third, err := table.Acquire(t.Context(), request(Exclusive, time.Second))
			if err != nil {
				t.Fatal("not free after release:", err)
			}
			third()
		})
	}
}

func TestCancelled(t *testing.T) {
	var table Table
	release, err := table.Acquire(t.Context(), request(Exclusive, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	cause := errors.New("host off")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := table.Acquire(ctx, request(Exclusive, time.Minute)); !errors.Is(err, cause) {
		t.Error(err)
	}
}

func TestExclusion(t *testing.T) {
	var table Table
	var inside, most atomic.Int32
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			release, err := table.Acquire(t.Context(), request(Exclusive, 10*time.Second))
			if err != nil {
				t.Error(err)
				return
			}
			if n := inside.Add(1); n > most.Load() {
				most.Store(n)
			}
			inside.Add(-1)
			release()
		})
	}
	wg.Wait()
	if most.Load() != 1 {
		t.Errorf("%d holders at once", most.Load())
	}
}

func TestTexts(t *testing.T) {
	if got := ClusterTimeout("storage-ceph").Error(); got != "cfs-lock 'storage-ceph' error: got lock request timeout" {
		t.Error(got)
	}
}
