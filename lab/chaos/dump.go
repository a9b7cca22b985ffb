package chaos

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
)

// dumpTime bounds the telling of a failure.
const dumpTime = 30 * time.Second

// Dump tells what there is to know after a failure: workflows with what they
// wait for, what there is, and the ends of the logs.
func (l *Lab) Dump(ctx context.Context, log func(format string, values ...any)) {
	ctx, cancel := context.WithTimeout(ctx, dumpTime)
	defer cancel()
	l.dumpWorkflows(ctx, log)
	if now, err := l.Take(ctx); err != nil {
		log("inventory: %v", err)
	} else {
		log("there is:\n  %s", strings.Join(now.Since(nil), "\n  "))
	}
	for _, name := range []string{"watched-worker", "shim", "proxmox", "kamaji"} {
		const most = 3000
		data, err := os.ReadFile(l.World.LogFile(name))
		if err != nil {
			log("%s: %v", filepath.Base(name), err)
			continue
		}
		log("== %s\n%s", name, data[max(0, len(data)-most):])
	}
}

func (l *Lab) dumpWorkflows(ctx context.Context, log func(format string, values ...any)) {
	answer, err := l.Temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{PageSize: 6})
	if err != nil {
		log("workflows: %v", err)
		return
	}
	for _, run := range answer.GetExecutions() {
		id, runID := run.GetExecution().GetWorkflowId(), run.GetExecution().GetRunId()
		log("%s %s: %s, %d events", run.GetType().GetName(), id, run.GetStatus(), run.GetHistoryLength())
		if run.GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED {
			continue
		}
		description, err := l.Temporal.DescribeWorkflowExecution(ctx, id, runID)
		if err != nil {
			log("  %v", err)
			continue
		}
		for _, p := range description.GetPendingActivities() {
			log("  pending %s, attempt %d: %s", p.GetActivityType().GetName(), p.GetAttempt(), p.GetLastFailure().GetMessage())
		}
	}
}
