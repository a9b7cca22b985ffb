package scenario

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	sdkpb "go.temporal.io/api/sdk/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/encoding/protojson"

	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/lab/site"
)

// metadataQuery is the query by which the UI gets a workflow's current details.
const metadataQuery = "__temporal_workflow_metadata"

// uiMetadata reads what the Temporal UI shows of a creation while it runs.
func uiMetadata() Scenario {
	const name = "shown"
	run := func(ctx context.Context, t *T) (string, error) {
		payloads, err := t.payloads()
		if err != nil {
			return "", err
		}
		j, err := t.begin(ctx, name)
		if err != nil {
			return "", err
		}
		told := 0
		err = eventually(ctx, "the end of the creation", func(ctx context.Context) error {
			described, err := j.temporal.DescribeWorkflowExecution(ctx, j.id(), "")
			if err != nil {
				return fmt.Errorf("look at %s: %w", j.id(), err)
			}
			if described.GetWorkflowExecutionInfo().GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
				return nil
			}
			if len(described.GetPendingActivities()) > 0 {
				details, err := currentDetails(ctx, j.temporal, j.id())
				if err == nil && strings.Contains(details, "waits for") {
					told++
				}
			}
			return unexpected("it runs")
		})
		if err != nil {
			return "", err
		}
		if told == 0 {
			return "", unexpected("the details never said what is waited for")
		}
		seen, err := summaries(ctx, j.temporal, payloads, name)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("ok (activities=%d, all with a summary; details told what is waited for)", seen), j.complete(ctx)
	}
	return Scenario{Name: "ui-metadata", Proves: "each activity has a summary, and the details say what is waited for", Run: run}
}

// payloads decodes what the product's programs encode.
func (l *Lab) payloads() (converter.DataConverter, error) {
	return temporalclient.Options{CodecKeys: site.CodecKeysFile(filepath.Dir(l.World.SiteFile()))}.Converter()
}

// currentDetails asks a workflow for what the UI shows first.
func currentDetails(ctx context.Context, c client.Client, id string) (string, error) {
	answer, err := c.QueryWorkflow(ctx, id, "", metadataQuery)
	if err != nil {
		return "", fmt.Errorf("ask %s for its details: %w", id, err)
	}
	metadata := &sdkpb.WorkflowMetadata{}
	if err := answer.Get(metadata); err != nil {
		return "", fmt.Errorf("details of %s: %w", id, err)
	}
	return metadata.GetCurrentDetails(), nil
}

// summaries counts the activities of all runs that concern a tenant, and is an
// error if one has no summary.
func summaries(ctx context.Context, c client.Client, payloads converter.DataConverter, tenant string) (int, error) {
	runs, err := executions(ctx, c)
	if err != nil {
		return 0, err
	}
	seen := 0
	for _, run := range runs {
		if !hasTenant(run.GetSearchAttributes(), tenant) {
			continue
		}
		events, err := history(ctx, c, run.GetExecution().GetWorkflowId(), run.GetExecution().GetRunId())
		if err != nil {
			return 0, err
		}
		for _, e := range events {
			if e.GetEventType() != enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED {
				continue
			}
			var summary string
			if p := e.GetUserMetadata().GetSummary(); p != nil {
				if err := payloads.FromPayload(p, &summary); err != nil {
					return 0, fmt.Errorf("read summary: %w", err)
				}
			}
			if summary == "" {
				return 0, unexpected("activity %s of %s has no summary", e.GetActivityTaskScheduledEventAttributes().GetActivityType().GetName(), run.GetExecution().GetWorkflowId())
			}
			seen++
		}
	}
	if seen == 0 {
		return 0, unexpected("no activity was scheduled for tenant %s", tenant)
	}
	return seen, nil
}

// hasTenant tells whether a run has the tenant's name as search attribute.
func hasTenant(attributes *commonpb.SearchAttributes, tenant string) bool {
	return strings.Contains(string(attributes.GetIndexedFields()["AetherTenant"].GetData()), `"`+tenant+`"`)
}

// exported is a history as `temporal workflow show -o json` writes it.
func exported(ctx context.Context, c client.Client, id, run string) ([]byte, error) {
	events, err := history(ctx, c, id, run)
	if err != nil {
		return nil, err
	}
	var all []byte
	for _, e := range events {
		data, err := protojson.Marshal(e)
		if err != nil {
			return nil, fmt.Errorf("export history of %s: %w", id, err)
		}
		all = append(all, data...)
	}
	return all, nil
}
