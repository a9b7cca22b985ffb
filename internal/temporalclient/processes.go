package temporalclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
)

// Processes starts, looks at and cancels workflows by their IDs. One ID has at
// most one open run, so the ID is the lock of what it names.
type Processes struct {
	client client.Client
	queue  string
}

// NewProcesses returns the processes of a task queue.
func NewProcesses(c client.Client, queue string) *Processes {
	return &Processes{client: c, queue: queue}
}

// Request says which workflow to start.
type Request struct {
	ID string
	// Type is the registered name of the workflow.
	Type  string
	Input any
	// Tenant is the fairness key on the task queue.
	Tenant string
	// Summary is shown in the list of workflows.
	Summary    string
	Attributes []temporal.SearchAttributeUpdate
}

// Run is one run of a workflow.
type Run struct {
	ID, RunID, Type string
	Status          enumspb.WorkflowExecutionStatus
	Started         time.Time
	Closed          time.Time // zero while it is open
}

// Open tells whether the run has not ended.
func (r Run) Open() bool { return r.Status == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING }

// RunningError says that the ID is taken by an open run.
type RunningError struct{ Run Run }

// Error tells which run, since when.
func (e *RunningError) Error() string {
	return fmt.Sprintf("%s is running for %s since %s; wait for it or cancel it", e.Run.Type, e.Run.ID, e.Run.Started.UTC().Format(time.RFC3339))
}

// Start starts a workflow, or returns a *RunningError when its ID has an open
// run.
func (p *Processes) Start(ctx context.Context, r Request) (Run, error) {
	options := client.StartWorkflowOptions{
		ID:                                       r.ID,
		TaskQueue:                                p.queue,
		WorkflowIDConflictPolicy:                 enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		WorkflowIDReusePolicy:                    enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		WorkflowExecutionErrorWhenAlreadyStarted: true,
		StaticSummary:                            r.Summary,
		TypedSearchAttributes:                    temporal.NewSearchAttributes(r.Attributes...),
		Priority:                                 temporal.Priority{FairnessKey: r.Tenant},
	}
	started, err := p.client.ExecuteWorkflow(ctx, options, r.Type, r.Input)
	var already *serviceerror.WorkflowExecutionAlreadyStarted
	if errors.As(err, &already) {
		run, found, err := p.Latest(ctx, r.ID)
		if err != nil {
			return Run{}, err
		}
		if found && run.Open() {
			return Run{}, &RunningError{Run: run}
		}
		return Run{}, fmt.Errorf("start %s as %s: another run ended at this moment; try again", r.Type, r.ID)
	}
	if err != nil {
		return Run{}, fmt.Errorf("start %s as %s: %w", r.Type, r.ID, err)
	}
	return Run{ID: r.ID, RunID: started.GetRunID(), Type: r.Type, Status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING}, nil
}

// Latest returns the newest run of an ID, and false when there is none within
// the namespace's retention.
func (p *Processes) Latest(ctx context.Context, id string) (Run, bool, error) {
	described, err := p.client.DescribeWorkflowExecution(ctx, id, "")
	var notFound *serviceerror.NotFound
	if errors.As(err, &notFound) {
		return Run{}, false, nil
	}
	if err != nil {
		return Run{}, false, fmt.Errorf("look at workflow %s: %w", id, err)
	}
	info := described.GetWorkflowExecutionInfo()
	run := Run{
		ID: id, RunID: info.GetExecution().GetRunId(), Type: info.GetType().GetName(),
		Status: info.GetStatus(), Started: info.GetStartTime().AsTime(),
	}
	if info.GetCloseTime() != nil {
		run.Closed = info.GetCloseTime().AsTime()
	}
	return run, true, nil
}

// Cancel asks the open run of an ID to cancel. One that ended meanwhile is
// fine.
func (p *Processes) Cancel(ctx context.Context, id string) error {
	err := p.client.CancelWorkflow(ctx, id, "")
	var notFound *serviceerror.NotFound
	if err != nil && !errors.As(err, &notFound) {
		return fmt.Errorf("cancel workflow %s: %w", id, err)
	}
	return nil
}
