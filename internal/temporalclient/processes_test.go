package temporalclient_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/timestamppb"

	"aether.internal/aether/internal/temporalclient"
)

// server answers what a test gives it, and keeps what it was asked.
type server struct {
	client.Client
	options   client.StartWorkflowOptions
	workflow  any
	startErr  error
	info      *workflowpb.WorkflowExecutionInfo
	lookErr   error
	cancelErr error
	pollers   int
	pollErr   error
}

func (s *server) ExecuteWorkflow(_ context.Context, o client.StartWorkflowOptions, workflow any, _ ...any) (client.WorkflowRun, error) {
	s.options, s.workflow = o, workflow
	return handle{}, s.startErr
}

func (s *server) DescribeWorkflowExecution(context.Context, string, string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	return &workflowservice.DescribeWorkflowExecutionResponse{WorkflowExecutionInfo: s.info}, s.lookErr
}

func (s *server) CancelWorkflow(context.Context, string, string) error { return s.cancelErr }

func (s *server) DescribeTaskQueue(context.Context, string, enumspb.TaskQueueType) (*workflowservice.DescribeTaskQueueResponse, error) {
	return &workflowservice.DescribeTaskQueueResponse{Pollers: make([]*taskqueuepb.PollerInfo, s.pollers)}, s.pollErr
}

type handle struct{ client.WorkflowRun }

func (handle) GetRunID() string { return "run-1" }

func info(status enumspb.WorkflowExecutionStatus, closed bool) *workflowpb.WorkflowExecutionInfo {
	started := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	i := &workflowpb.WorkflowExecutionInfo{
		Execution: &commonpb.WorkflowExecution{RunId: "run-0"}, Type: &commonpb.WorkflowType{Name: "CreateTenant"}, Status: status, StartTime: timestamppb.New(started),
	}
	if closed {
		i.CloseTime = timestamppb.New(started.Add(time.Minute))
	}
	return i
}

func request() temporalclient.Request {
	return temporalclient.Request{ID: "tenant/demo", Type: "DeleteTenant", Tenant: "demo", Summary: "DeleteTenant demo"}
}

// TestStart: the ID is the lock, and the tenant the key of fairness.
func TestStart(t *testing.T) {
	s := &server{}
	run, err := temporalclient.NewProcesses(s, "aether").Start(t.Context(), request())
	if err != nil || run.RunID != "run-1" || !run.Open() || run.Type != "DeleteTenant" {
		t.Fatalf("%+v, %v", run, err)
	}
	o := s.options
	if o.ID != "tenant/demo" || o.TaskQueue != "aether" || !o.WorkflowExecutionErrorWhenAlreadyStarted || o.Priority.FairnessKey != "demo" || o.StaticSummary != "DeleteTenant demo" ||
		o.WorkflowIDConflictPolicy != enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL || o.WorkflowIDReusePolicy != enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE {
		t.Errorf("options %+v", o)
	}
}

func TestASecondStartSaysWhichRunsSinceWhen(t *testing.T) {
	already := serviceerror.NewWorkflowExecutionAlreadyStarted("running", "", "")
	s := &server{startErr: already, info: info(enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, false)}
	_, err := temporalclient.NewProcesses(s, "aether").Start(t.Context(), request())
	var running *temporalclient.RunningError
	if !errors.As(err, &running) || running.Run.Type != "CreateTenant" || !strings.Contains(err.Error(), "CreateTenant is running for tenant/demo since 2026-11-30T12:00:00Z") {
		t.Errorf("got %v", err)
	}
	s.info = info(enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, true)
	if _, err := temporalclient.NewProcesses(s, "aether").Start(t.Context(), request()); err == nil || errors.As(err, &running) || !strings.Contains(err.Error(), "try again") {
		t.Errorf("one that ended at this moment: %v", err)
	}
	s.startErr = serviceerror.NewUnavailable("away")
	if _, err := temporalclient.NewProcesses(s, "aether").Start(t.Context(), request()); err == nil || !strings.Contains(err.Error(), "start DeleteTenant as tenant/demo") {
		t.Errorf("a server that is away: %v", err)
	}
}

func TestLatest(t *testing.T) {
	for name, test := range map[string]struct {
		server      server
		found, open bool
		fails       bool
	}{
		"running":   {server{info: info(enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, false)}, true, true, false},
		"ended":     {server{info: info(enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, true)}, true, false, false},
		"not known": {server{lookErr: serviceerror.NewNotFound("no")}, false, false, false},
		"away":      {server{lookErr: serviceerror.NewUnavailable("away")}, false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			run, found, err := temporalclient.NewProcesses(&test.server, "aether").Latest(t.Context(), "tenant/demo")
			if found != test.found || run.Open() != test.open || (err != nil) != test.fails {
				t.Errorf("%+v, %t, %v", run, found, err)
			}
			if found && run.Closed.IsZero() != test.open {
				t.Errorf("closed %s", run.Closed)
			}
		})
	}
}

func TestCancel(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		fails bool
	}{"asked": {nil, false}, "ended meanwhile": {serviceerror.NewNotFound("no"), false}, "away": {serviceerror.NewUnavailable("away"), true}} {
		if err := temporalclient.NewProcesses(&server{cancelErr: test.err}, "aether").Cancel(t.Context(), "tenant/demo"); (err != nil) != test.fails {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheckWorker(t *testing.T) {
	if err := temporalclient.CheckWorker(t.Context(), &server{pollers: 1}, "aether"); err != nil {
		t.Error(err)
	}
	if err := temporalclient.CheckWorker(t.Context(), &server{}, "aether"); !errors.Is(err, temporalclient.ErrNoWorker) || !strings.Contains(err.Error(), "go run ./worker") {
		t.Errorf("got %v", err)
	}
	if err := temporalclient.CheckWorker(t.Context(), &server{pollErr: serviceerror.NewUnavailable("away")}, "aether"); err == nil || errors.Is(err, temporalclient.ErrNoWorker) {
		t.Errorf("one that cannot be asked is no answer: %v", err)
	}
}

func TestDialSaysWhereItTried(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := temporalclient.Dial(ctx, temporalclient.Options{Address: "127.0.0.1:1"})
	if err == nil || !strings.Contains(err.Error(), "connect to Temporal at 127.0.0.1:1") || !strings.Contains(err.Error(), "TEMPORAL_ADDRESS") {
		t.Errorf("got %v", err)
	}
	if _, err := temporalclient.Lazy(temporalclient.Options{CodecKeys: "/nonexistent"}); err == nil {
		t.Error("codec keys that cannot be read are passed over, and payloads sent in clear")
	}
}
