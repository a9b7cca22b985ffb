package histories

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"

	"aether.internal/aether/internal/codec"
	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/lab/operator"
)

// Case is one kind of run to have a history of.
type Case struct {
	Workflow, Name string
	// Status is how such a run ends.
	Status enumspb.WorkflowExecutionStatus
	// Retried is true when an attempt of an activity must have failed or been
	// lost with its worker.
	Retried bool
}

// Cases lists what is recorded.
func Cases() []Case {
	const (
		completed = enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED
		failed    = enumspb.WORKFLOW_EXECUTION_STATUS_FAILED
		cancelled = enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED
	)
	return []Case{
		{Workflow: "CreateTenant", Name: "completed", Status: completed},
		{Workflow: "CreateTenant", Name: "refused", Status: failed},
		{Workflow: "CreateTenant", Name: "failed", Status: failed},
		{Workflow: "CreateTenant", Name: "cancelled", Status: cancelled},
		{Workflow: "CreateTenant", Name: "worker-killed", Status: completed, Retried: true},
		{Workflow: "ApplyTenant", Name: "pool-added", Status: completed},
		{Workflow: "ApplyTenant", Name: "refused", Status: failed},
		{Workflow: "DeleteTenant", Name: "completed", Status: completed},
		{Workflow: "JoinWorker", Name: "completed", Status: completed},
		{Workflow: "JoinWorker", Name: "failed", Status: failed},
		{Workflow: "JoinWorker", Name: "cancelled", Status: cancelled},
		{Workflow: "JoinWorker", Name: "retried", Status: completed, Retried: true},
		{Workflow: "JoinWorker", Name: "worker-killed", Status: completed, Retried: true},
		{Workflow: "RemoveWorker", Name: "completed", Status: completed},
		{Workflow: "RemoveWorker", Name: "retried", Status: completed, Retried: true},
	}
}

// Options say where histories are kept.
type Options struct {
	// Dir has a folder for each workflow.
	Dir string
	// Suffix is added to the cases' names, for histories of a changed workflow
	// beside those of the earlier one.
	Suffix string
	// Key is the file with the published key.
	Key string
	Out io.Writer
}

func (o Options) file(c Case) string {
	return filepath.Join(o.Dir, c.Workflow, c.Name+o.Suffix+".json")
}

// Missing lists the cases that have no file yet.
func (o Options) Missing() ([]Case, error) {
	var missing []Case
	for _, c := range Cases() {
		_, err := os.Stat(o.file(c))
		if errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, c)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look for the history of %s, %s: %w", c.Workflow, c.Name, err)
		}
	}
	return missing, nil
}

// Record makes runs of all kinds in a lab that nobody else uses, and adds the
// histories that are missing.
func Record(ctx context.Context, o *operator.Operator, options Options) error {
	sealer, err := options.sealer(o.CodecKeys)
	if err != nil {
		return err
	}
	r := &recorder{Operator: o, options: options, sealer: sealer}
	for _, s := range []struct {
		name string
		play func(context.Context) error
	}{
		{"a tenant that is refused", r.refused},
		{"a tenant that fails", r.failed},
		{"a tenant that is cancelled", r.cancelled},
		{"a tenant whose worker is killed", r.killed},
		{"a tenant and its pools", r.pools},
		{"joins that are retried", r.retriedJoins},
		{"joins that end early", r.endedJoins},
		{"the end of a tenant", r.deleted},
	} {
		r.printf("histories: %s\n", s.name)
		if err := s.play(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	missing, err := options.Missing()
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: %v", errUnseen, missing)
	}
	return nil
}

var errUnseen = errors.New("no run of these kinds happened")

func (o Options) sealer(labKeys string) (*Sealer, error) {
	from, err := codec.LoadKeys(labKeys)
	if err != nil {
		return nil, err
	}
	to, err := codec.LoadKeys(o.Key)
	if err != nil {
		return nil, err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("find the name to take out: %w", err)
	}
	return &Sealer{From: codec.New(from), To: codec.New(to), Hostname: hostname}, nil
}

// recorder plays scenes and keeps what they leave.
type recorder struct {
	*operator.Operator

	options Options
	sealer  *Sealer
}

func (r *recorder) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(r.options.Out, format, args...) // nothing can be done when the terminal is gone
}

var errOtherEnd = errors.New("a run ended otherwise than its case says")

// keep waits for the end of a run and adds its history as that of a case,
// unless there is one.
func (r *recorder) keep(ctx context.Context, run temporalclient.Run, name string) error {
	c, err := find(run.Type, name)
	if err != nil {
		return err
	}
	run, err = r.WaitClosed(ctx, run)
	if err != nil {
		return err
	}
	history, err := r.History(ctx, run)
	if err != nil {
		return err
	}
	if run.Status != c.Status {
		return fmt.Errorf("%w: %s, %s: found %s, want %s", errOtherEnd, c.Workflow, c.Name, run.Status, c.Status)
	}
	if c.Retried && !retried(history) {
		return fmt.Errorf("%w: %s, %s: no activity was attempted twice", errOtherEnd, c.Workflow, c.Name)
	}
	return r.add(ctx, c, history)
}

func find(workflow, name string) (Case, error) {
	for _, c := range Cases() {
		if c.Workflow == workflow && c.Name == name {
			return c, nil
		}
	}
	return Case{}, fmt.Errorf("no case %s of %s", name, workflow)
}

// retried tells whether an activity needed more than one attempt.
func retried(history *historypb.History) bool {
	for _, event := range history.GetEvents() {
		if event.GetActivityTaskStartedEventAttributes().GetAttempt() > 1 {
			return true
		}
	}
	return false
}

// add writes a history to a file that must not exist.
func (r *recorder) add(ctx context.Context, c Case, history *historypb.History) error {
	if err := r.sealer.Seal(ctx, history); err != nil {
		return err
	}
	data, err := Encode(history)
	if err != nil {
		return err
	}
	path := r.options.file(c)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("keep history: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		r.printf("histories: %s is there and stays\n", path)
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep history: %w", err)
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("keep history: %w", err)
	}
	r.printf("histories: added %s, %d events\n", path, len(history.GetEvents()))
	return nil
}
