package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"

	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/workflows"
)

// Runs lists the runs of a workflow on a tenant, or of all tenants, that were
// started after since, the oldest first.
func (o *Operator) Runs(ctx context.Context, workflow, tenant string, since time.Time) ([]temporalclient.Run, error) {
	query := fmt.Sprintf("WorkflowType = %q AND StartTime > %q", workflow, since.UTC().Format(time.RFC3339Nano))
	if tenant != "" {
		query += fmt.Sprintf(" AND %s = %q", workflows.TenantAttribute.GetName(), tenant)
	}
	var runs []temporalclient.Run
	var page []byte
	for {
		answer, err := o.Temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{Query: query, NextPageToken: page})
		if err != nil {
			return nil, fmt.Errorf("list runs of %s: %w", workflow, err)
		}
		for _, info := range answer.GetExecutions() {
			run := temporalclient.Run{
				ID: info.GetExecution().GetWorkflowId(), RunID: info.GetExecution().GetRunId(), Type: workflow,
				Status: info.GetStatus(), Started: info.GetStartTime().AsTime(),
			}
			if !run.Open() {
				run.Closed = info.GetCloseTime().AsTime()
			}
			runs = append(runs, run)
		}
		if page = answer.GetNextPageToken(); len(page) == 0 {
			break
		}
	}
	slices.SortFunc(runs, func(a, b temporalclient.Run) int { return a.Started.Compare(b.Started) })
	return runs, nil
}

// WaitRuns waits until n runs of a workflow on a tenant have been started
// after since and look says yes to all.
func (o *Operator) WaitRuns(ctx context.Context, workflow, tenant string, since time.Time, n int, look func(temporalclient.Run) bool) (runs []temporalclient.Run, err error) {
	err = until(ctx, func() (bool, error) {
		var err error
		runs, err = o.Runs(ctx, workflow, tenant, since)
		return len(runs) >= n && !slices.ContainsFunc(runs, func(r temporalclient.Run) bool { return !look(r) }), err
	})
	if err != nil {
		return nil, fmt.Errorf("wait for %d runs of %s on tenant %s, there are %v: %w", n, workflow, tenant, runs, err)
	}
	return runs, nil
}

// Started says yes to every run.
func Started(temporalclient.Run) bool { return true }

// Closed says yes to a run that has ended.
func Closed(r temporalclient.Run) bool { return !r.Open() }

// WaitClosed waits for the end of a run and returns it with its status.
func (o *Operator) WaitClosed(ctx context.Context, run temporalclient.Run) (temporalclient.Run, error) {
	err := until(ctx, func() (bool, error) {
		described, err := o.Temporal.DescribeWorkflowExecution(ctx, run.ID, run.RunID)
		if err != nil {
			return false, fmt.Errorf("look at workflow %s: %w", run.ID, err)
		}
		info := described.GetWorkflowExecutionInfo()
		run.Status, run.Started = info.GetStatus(), info.GetStartTime().AsTime()
		if !run.Open() {
			run.Closed = info.GetCloseTime().AsTime()
		}
		return !run.Open(), nil
	})
	if err != nil {
		return run, fmt.Errorf("wait for the end of %s %s: %w", run.Type, run.ID, err)
	}
	return run, nil
}

// errEnded says that a run ended before what was waited for.
var errEnded = errors.New("the run has ended")

// WaitStep waits until a step of an open run has begun, as its progress says.
func (o *Operator) WaitStep(ctx context.Context, run temporalclient.Run, step string) error {
	err := until(ctx, func() (bool, error) {
		begun, err := o.begun(ctx, run, step)
		if err != nil || begun {
			return begun, err
		}
		described, err := o.Temporal.DescribeWorkflowExecution(ctx, run.ID, run.RunID)
		if err != nil {
			return false, fmt.Errorf("look at workflow %s: %w", run.ID, err)
		}
		if status := described.GetWorkflowExecutionInfo().GetStatus(); status != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
			return false, fmt.Errorf("%w: %s", errEnded, status)
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("wait for step %q of %s: %w", step, run.ID, err)
	}
	return nil
}

// begun tells whether a run's progress has a step.
func (o *Operator) begun(ctx context.Context, run temporalclient.Run, step string) (bool, error) {
	var p workflows.Progress
	answer, err := o.Temporal.QueryWorkflow(ctx, run.ID, run.RunID, workflows.ProgressQuery)
	if err == nil {
		err = answer.Get(&p)
	}
	var early *serviceerror.QueryFailed // its first task is not done yet
	if err != nil && !errors.As(err, &early) {
		return false, err
	}
	return slices.ContainsFunc(p.Steps, func(s workflows.Step) bool { return s.Name == step }), nil
}

// History reads all events of a run.
func (o *Operator) History(ctx context.Context, run temporalclient.Run) (*historypb.History, error) {
	history := &historypb.History{}
	events := o.Temporal.GetWorkflowHistory(ctx, run.ID, run.RunID, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		event, err := events.Next()
		if err != nil {
			return nil, fmt.Errorf("read the history of %s: %w", run.ID, err)
		}
		history.Events = append(history.Events, event)
	}
	return history, nil
}
