package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	enumspb "go.temporal.io/api/enums/v1"

	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/lab/operator"
	"aether.internal/aether/lab/world/control"
)

const (
	tenant = "bench"
	pool   = "workers"
	most   = 10
	// workerProgram is the process whose use of the machine is measured.
	workerProgram = "worker"
	// settle lets what a change set off come to rest before the next
	// measurement begins.
	settle = 10 * time.Second
)

// hosts are the two that the workers are shared out over.
func hosts() []string { return []string{"pv1-1", "pv1-2"} }

// Run makes a tenant in a lab that nobody else uses and measures one join, then
// ten at once on two hosts.
func Run(ctx context.Context, o *operator.Operator, speed float64, out io.Writer) (Report, error) {
	r := Report{Recorded: time.Now().UTC(), Speed: speed}
	var err error
	if r.Machine, err = thisMachine(); err != nil {
		return r, err
	}
	b := &bench{Operator: o, out: out}
	if err := b.prepare(ctx); err != nil {
		return r, err
	}
	if r.Join1, err = b.measure(ctx, 1); err != nil {
		return r, err
	}
	if err := b.empty(ctx, 1); err != nil {
		return r, err
	}
	r.Join10, err = b.measure(ctx, most)
	return r, err
}

type bench struct {
	*operator.Operator

	out io.Writer
}

func (b *bench) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(b.out, format, args...) // nothing can be done when the terminal is gone
}

var errUnsuccessful = errors.New("a run did not complete")

// prepare makes a tenant that has no worker yet.
func (b *bench) prepare(ctx context.Context) error {
	b.printf("bench: making tenant %s without workers\n", tenant)
	run, err := b.StartTenant(ctx, "CreateTenant", operator.Tenant(tenant, operator.Pool(pool, 0, most, hosts()...)))
	if err != nil {
		return err
	}
	run, err = b.WaitClosed(ctx, run)
	if err != nil {
		return err
	}
	return completed(run)
}

func completed(run temporalclient.Run) error {
	if run.Status != enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED {
		return fmt.Errorf("%w: %s %s: %s", errUnsuccessful, run.Type, run.ID, run.Status)
	}
	return nil
}

// measure gives the empty pool n workers and waits until all have joined.
func (b *bench) measure(ctx context.Context, n int) (Join, error) {
	j := Join{Workers: n, Hosts: len(hosts())}
	floor, err := b.Lab.Floor(ctx, control.FloorRequest{Workers: n, Hosts: j.Hosts})
	if err != nil {
		return j, err
	}
	j.FloorSeconds, j.FloorSteps = floor.Seconds, floor.Steps
	if err := rest(ctx); err != nil {
		return j, err
	}
	if j.Load[0], err = load(); err != nil {
		return j, err
	}
	before, err := b.worker(ctx)
	if err != nil {
		return j, err
	}
	b.printf("bench: joining %d\n", n)
	runs, err := b.join(ctx, n)
	if err != nil {
		return j, err
	}
	after, err := b.worker(ctx)
	if err != nil {
		return j, err
	}
	if j.Load[1], err = load(); err != nil {
		return j, err
	}
	j.CPUSeconds = (after.CPU - before.CPU).Seconds()
	j.ResidentMiB = float64(after.ResidentBytes) / (1 << 20)
	j.fill(runs)
	b.printf("bench: %s\n", j.Line())
	return j, nil
}

// fill adds what the histories tell.
func (j *Join) fill(runs []*timeline) {
	for _, r := range runs {
		j.HistoryEvents, j.Activities = max(j.HistoryEvents, r.events), max(j.Activities, r.activities)
		j.Retries += r.retries
	}
	j.MeasuredSeconds, j.Steps = makespan(runs)
	j.OverheadSeconds = j.MeasuredSeconds - j.FloorSeconds
}

// join scales the pool and reads the histories of the joins that come of it.
func (b *bench) join(ctx context.Context, n int) ([]*timeline, error) {
	earlier, err := b.Runs(ctx, "JoinWorker", tenant, time.Time{})
	if err != nil {
		return nil, err
	}
	if err := b.Scale(ctx, tenant, operator.Pool(pool, 0, most, hosts()...), int32(n)); err != nil { //nolint:gosec // at most ten
		return nil, err
	}
	runs, err := b.WaitRuns(ctx, "JoinWorker", tenant, time.Time{}, len(earlier)+n, operator.Closed)
	if err != nil {
		return nil, err
	}
	timelines := make([]*timeline, 0, n)
	for _, run := range runs[len(earlier):] {
		if err := completed(run); err != nil {
			return nil, err
		}
		history, err := b.History(ctx, run)
		if err != nil {
			return nil, err
		}
		t, err := read(history)
		if err != nil {
			return nil, fmt.Errorf("join %s: %w", run.ID, err)
		}
		timelines = append(timelines, t)
	}
	return timelines, nil
}

// empty takes all workers away again.
func (b *bench) empty(ctx context.Context, n int) error {
	b.printf("bench: removing %d\n", n)
	if err := b.Scale(ctx, tenant, operator.Pool(pool, 0, most, hosts()...), 0); err != nil {
		return err
	}
	runs, err := b.WaitRuns(ctx, "RemoveWorker", tenant, time.Time{}, n, operator.Closed)
	if err != nil {
		return err
	}
	for _, run := range runs {
		if err := completed(run); err != nil {
			return err
		}
	}
	return nil
}

// worker is what the worker's process uses.
func (b *bench) worker(ctx context.Context) (control.Component, error) {
	status, err := b.Lab.Status(ctx)
	if err != nil {
		return control.Component{}, err
	}
	c, ok := status.Component(workerProgram)
	if !ok {
		return c, fmt.Errorf("component %s is not in this lab", workerProgram)
	}
	return c, nil
}

// rest waits for the machine to settle.
func rest(ctx context.Context) error {
	timer := time.NewTimer(settle)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return fmt.Errorf("let the lab settle: %w", ctx.Err())
	case <-timer.C:
		return nil
	}
}
