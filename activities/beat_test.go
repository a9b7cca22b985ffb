package activities

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

// beats collects what an activity's heartbeats said.
type beats struct {
	mu   sync.Mutex
	list []Beat
}

func (b *beats) all() []Beat {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.list)
}

// runBeating runs an activity under the interceptor, in a workflow that gives
// it a heartbeat time-out.
func runBeating(t *testing.T, heartbeat time.Duration, body func(context.Context) error) (*beats, error) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(time.Minute)
	seen := &beats{}
	env.SetOnActivityHeartbeatListener(func(_ *activity.Info, details converter.EncodedValues) {
		var beat Beat
		if err := details.Get(&beat); err != nil {
			t.Error(err)
		}
		seen.mu.Lock()
		defer seen.mu.Unlock()
		seen.list = append(seen.list, beat)
	})
	env.SetWorkerOptions(worker.Options{
		Interceptors: []interceptor.WorkerInterceptor{Heartbeats(time.Now)}, DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
	})
	env.RegisterActivityWithOptions(body, activity.RegisterOptions{Name: "Body"})
	env.ExecuteWorkflow(func(ctx workflow.Context) error {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
			StartToCloseTimeout: time.Minute, HeartbeatTimeout: heartbeat,
			RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Millisecond, MaximumAttempts: 3},
		})
		return workflow.ExecuteActivity(ctx, "Body").Get(ctx, nil)
	})
	return seen, env.GetWorkflowError()
}

// TestAnActivityBeatsByItself, also in the middle of one long call, and says
// what it was last told.
func TestAnActivityBeatsByItself(t *testing.T) {
	// The SDK sends a beat at once and the next ones after four fifths of the
	// time-out.
	const heartbeat = 2 * beatEvery
	seen, err := runBeating(t, heartbeat, func(ctx context.Context) error {
		tellTask(ctx, "task qmclone on pv1-1", "clone 40%", "UPID:1")
		time.Sleep(heartbeat * 9 / 10)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	list := seen.all()
	if len(list) < 2 {
		t.Fatalf("%d beats", len(list))
	}
	for _, beat := range list {
		if beat.WaitsFor != "task qmclone on pv1-1" || beat.Detail != "clone 40%" || beat.Task != "UPID:1" || beat.Since.IsZero() {
			t.Errorf("beat %+v", beat)
		}
	}
}

// TestSinceIsWhenTheWaitBegan, not when its detail last changed; and the task
// stays until there is another.
func TestSinceIsWhenTheWaitBegan(t *testing.T) {
	clock := time.Unix(0, 0)
	c := &current{now: func() time.Time { clock = clock.Add(time.Second); return clock }}
	told := func(waitsFor, detail, task string) Beat {
		t.Helper()
		// Not an activity's context, so nothing may be sent.
		c.mu.Lock()
		defer c.mu.Unlock()
		c.change(waitsFor, detail, task)
		return c.beat
	}
	first := told("task", "1%", "UPID:1")
	second := told("task", "2%", "")
	third := told("Node", "", "")
	if !second.Since.Equal(first.Since) || second.Detail != "2%" || second.Task != "UPID:1" {
		t.Errorf("first %+v, second %+v", first, second)
	}
	if !third.Since.After(second.Since) || third.Task != "UPID:1" {
		t.Errorf("third %+v", third)
	}
}

// TestTheTaskOfTheLastAttemptIsKept: the first beat of a new attempt must not
// wipe it out.
func TestTheTaskOfTheLastAttemptIsKept(t *testing.T) {
	attempts := 0
	seen, err := runBeating(t, 10*time.Second, func(ctx context.Context) error {
		attempts++
		if attempts == 1 {
			tellTask(ctx, "task", "", "UPID:1")
			return errors.New("cut off")
		}
		tell(ctx, "the VM to be read", "")
		return nil
	})
	if err != nil || attempts != 2 {
		t.Fatalf("%v after %d attempts", err, attempts)
	}
	list := seen.all()
	if last := list[len(list)-1]; last.WaitsFor != "the VM to be read" || last.Task != "UPID:1" {
		t.Errorf("last beat %+v", last)
	}
}

func TestAnActivityWithoutATimeOutDoesNotBeat(t *testing.T) {
	seen, err := runBeating(t, 0, func(ctx context.Context) error {
		tell(ctx, "nobody listens", "")
		return nil
	})
	if err != nil || len(seen.all()) != 0 {
		t.Errorf("%v, beats %+v", err, seen.all())
	}
}

func TestTheActivitysResultPasses(t *testing.T) {
	_, err := runBeating(t, 10*time.Second, func(context.Context) error {
		return classify(refused("spec.version: found nothing"))
	})
	if !IsRefused(err) {
		t.Errorf("got %v", err)
	}
}
