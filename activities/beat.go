package activities

import (
	"context"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
)

// Beat is what a running activity tells in its heartbeats: what it waits for,
// for people, and the Proxmox task, so that another attempt finds it.
type Beat struct {
	WaitsFor string    `json:"waitsFor,omitempty"`
	Since    time.Time `json:"since"`
	Detail   string    `json:"detail,omitempty"`
	Task     string    `json:"task,omitempty"`
}

// beatEvery is well below the workflows' heartbeat time-out.
const beatEvery = 2 * time.Second

// Heartbeats returns an interceptor that beats for every activity while it
// runs, so that a dead worker is noticed within the heartbeat time-out even in
// the middle of one API call, and a cancellation reaches the activity. An
// activity changes what is told with tell.
func Heartbeats(now func() time.Time) interceptor.WorkerInterceptor {
	return &heartbeats{now: now}
}

type heartbeats struct {
	interceptor.WorkerInterceptorBase
	now func() time.Time
}

// InterceptActivity implements interceptor.WorkerInterceptor.
func (h *heartbeats) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	i := &beatingActivity{now: h.now}
	i.Next = next
	return i
}

type beatingActivity struct {
	interceptor.ActivityInboundInterceptorBase
	now func() time.Time
}

type beatKey struct{}

// current is what the activity last told.
type current struct {
	mu   sync.Mutex
	beat Beat
	now  func() time.Time
}

func (c *current) get() Beat {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.beat
}

// change must be called with the lock held.
func (c *current) change(waitsFor, detail, task string) {
	if c.beat.WaitsFor != waitsFor {
		c.beat.WaitsFor, c.beat.Since = waitsFor, c.now()
	}
	c.beat.Detail = detail
	if task != "" {
		c.beat.Task = task
	}
}

// ExecuteActivity implements interceptor.ActivityInboundInterceptor.
func (i *beatingActivity) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	if activity.GetInfo(ctx).HeartbeatTimeout == 0 {
		return i.Next.ExecuteActivity(ctx, in)
	}
	c := &current{now: i.now, beat: Beat{Since: i.now()}}
	if last, ok := lastBeat(ctx); ok {
		// The first beat of this attempt must not wipe out the task.
		c.beat.Task = last.Task
	}
	ctx = context.WithValue(ctx, beatKey{}, c)
	done := make(chan struct{})
	var beating sync.WaitGroup
	beating.Go(func() {
		ticker := time.NewTicker(beatEvery)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				activity.RecordHeartbeat(ctx, c.get())
			}
		}
	})
	result, err := i.Next.ExecuteActivity(ctx, in)
	close(done)
	beating.Wait()
	return result, err
}

// tell changes what the activity's heartbeats say, and sends it.
func tell(ctx context.Context, waitsFor, detail string) {
	tellTask(ctx, waitsFor, detail, "")
}

func tellTask(ctx context.Context, waitsFor, detail, task string) {
	c, ok := ctx.Value(beatKey{}).(*current)
	if !ok {
		return
	}
	c.mu.Lock()
	c.change(waitsFor, detail, task)
	beat := c.beat
	c.mu.Unlock()
	activity.RecordHeartbeat(ctx, beat)
}

// lastBeat returns what an earlier attempt told last.
func lastBeat(ctx context.Context) (Beat, bool) {
	var beat Beat
	if !activity.HasHeartbeatDetails(ctx) {
		return beat, false
	}
	return beat, activity.GetHeartbeatDetails(ctx, &beat) == nil
}
