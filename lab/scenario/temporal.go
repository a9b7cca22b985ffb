package scenario

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/lab/site"
)

// connectTemporal opens a client with the codec's keys, as the product's
// programs have them.
func (l *Lab) connectTemporal(ctx context.Context) (client.Client, error) {
	return temporalclient.Dial(ctx, temporalclient.Options{
		Address: l.World.Temporal.HostPort(), CodecKeys: site.CodecKeysFile(filepath.Dir(l.World.SiteFile())), Log: slog.New(slog.DiscardHandler),
	})
}

// executions lists all workflow runs.
func executions(ctx context.Context, c client.Client) ([]*workflowpb.WorkflowExecutionInfo, error) {
	var all []*workflowpb.WorkflowExecutionInfo
	var page []byte
	for {
		answer, err := c.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{NextPageToken: page})
		if err != nil {
			return nil, fmt.Errorf("list workflows: %w", err)
		}
		all = append(all, answer.GetExecutions()...)
		if page = answer.GetNextPageToken(); len(page) == 0 {
			return all, nil
		}
	}
}

// history reads all events of a run; an empty run ID is the latest.
func history(ctx context.Context, c client.Client, id, run string) ([]*historypb.HistoryEvent, error) {
	var events []*historypb.HistoryEvent
	iterator := c.GetWorkflowHistory(ctx, id, run, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for iterator.HasNext() {
		event, err := iterator.Next()
		if err != nil {
			return nil, fmt.Errorf("read history of %s: %w", id, err)
		}
		events = append(events, event)
	}
	return events, nil
}

// lastEvents is how many events of an open or failed run are shown.
const lastEvents = 6

// dumpWorkflows shows what runs, what it waits for, and how the rest ended.
func (l *Lab) dumpWorkflows(ctx context.Context, log func(format string, values ...any)) {
	if l.World.Temporal == nil {
		return
	}
	c, err := l.connectTemporal(ctx)
	if err != nil {
		log("workflows: %v", err)
		return
	}
	defer c.Close()
	runs, err := executions(ctx, c)
	if err != nil {
		log("workflows: %v", err)
		return
	}
	for _, run := range runs {
		id, runID := run.GetExecution().GetWorkflowId(), run.GetExecution().GetRunId()
		log("workflow %s %s: %s, %d events", run.GetType().GetName(), id, run.GetStatus(), run.GetHistoryLength())
		if run.GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED {
			continue
		}
		if described, err := c.DescribeWorkflowExecution(ctx, id, runID); err == nil {
			for _, p := range described.GetPendingActivities() {
				log("  pending %s, attempt %d: %s", p.GetActivityType().GetName(), p.GetAttempt(), p.GetLastFailure().GetMessage())
			}
		}
		events, err := history(ctx, c, id, runID)
		if err != nil {
			log("  %v", err)
		}
		for _, e := range events[max(0, len(events)-lastEvents):] {
			log("  %d %s", e.GetEventId(), e.GetEventType())
		}
	}
}

// dumpEvents shows the warnings of the management cluster.
func (l *Lab) dumpEvents(ctx context.Context, log func(format string, values ...any)) {
	events := &corev1.EventList{}
	if err := l.Kube.List(ctx, events); err != nil {
		log("events: %v", err)
		return
	}
	for _, e := range events.Items {
		if e.Type == corev1.EventTypeWarning {
			log("event %s %s/%s: %s: %s", e.InvolvedObject.Kind, e.Namespace, e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
}
