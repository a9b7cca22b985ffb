package command

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/types/known/timestamppb"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"aether.internal/aether/internal/capi"
	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/workflows"
)

var update = flag.Bool("update", false, "write the golden files anew")

// server stands in for Temporal: one run per ID, and pollers or none.
type server struct {
	client.Client
	mu      sync.Mutex
	pollers int
	runs    map[string]*run
	started []string
	cancels []string
	// outcome is how runs end, at the first look.
	outcome enumspb.WorkflowExecutionStatus
	failure error
	steps   []workflows.Step
}

type run struct {
	kind, id string
	status   enumspb.WorkflowExecutionStatus
}

func (s *server) Close() {}

func (s *server) DescribeTaskQueue(context.Context, string, enumspb.TaskQueueType) (*workflowservice.DescribeTaskQueueResponse, error) {
	return &workflowservice.DescribeTaskQueueResponse{Pollers: make([]*taskqueuepb.PollerInfo, s.pollers)}, nil
}

func (s *server) ExecuteWorkflow(_ context.Context, o client.StartWorkflowOptions, workflow any, _ ...any) (client.WorkflowRun, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[o.ID]; r != nil && r.status == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
		return nil, serviceerror.NewWorkflowExecutionAlreadyStarted("running", "", "")
	}
	kind, _ := workflow.(string) //nolint:errcheck // empty shows in the test
	s.started = append(s.started, kind)
	s.runs[o.ID] = &run{kind: kind, id: "run-1", status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING}
	return handle{id: o.ID}, nil
}

func (s *server) DescribeWorkflowExecution(_ context.Context, id, _ string) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.runs[id]
	if r == nil {
		return nil, serviceerror.NewNotFound("no such workflow")
	}
	info := &workflowpb.WorkflowExecutionInfo{
		Execution: &commonpb.WorkflowExecution{WorkflowId: id, RunId: r.id}, Type: &commonpb.WorkflowType{Name: r.kind},
		Status: r.status, StartTime: timestamppb.New(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)),
	}
	return &workflowservice.DescribeWorkflowExecutionResponse{WorkflowExecutionInfo: info}, nil
}

// QueryWorkflow answers the progress, after which the run ends.
func (s *server) QueryWorkflow(_ context.Context, id, _, _ string, _ ...any) (converter.EncodedValue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.runs[id]
	if r.status == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
		r.status = s.outcome
	}
	return value{workflows.Progress{Workflow: r.kind, Subject: id, Phase: "Building", Steps: s.steps}}, nil
}

func (s *server) CancelWorkflow(_ context.Context, id, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancels = append(s.cancels, id)
	s.runs[id].status = enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED
	return nil
}

func (s *server) GetWorkflow(_ context.Context, id, _ string) client.WorkflowRun {
	return handle{id: id, err: s.failure}
}

type handle struct {
	client.WorkflowRun
	id  string
	err error
}

func (h handle) GetID() string                  { return h.id }
func (h handle) GetRunID() string               { return "run-1" }
func (h handle) Get(context.Context, any) error { return h.err }

// value is a query's answer.
type value struct{ progress workflows.Progress }

func (v value) HasValue() bool { return true }
func (v value) Get(into any) error {
	p, ok := into.(*workflows.Progress)
	if !ok {
		return errors.New("not a progress")
	}
	*p = v.progress
	return nil
}

// world is a command line with nothing real behind it.
type world struct {
	t        *testing.T
	kube     kubeclient.WithWatch
	kubeErr  error
	temporal *server
	in       string
}

func newWorld(t *testing.T, objects ...kubeclient.Object) *world {
	t.Helper()
	scheme, err := capi.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	return &world{
		t: t, kube: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(),
		temporal: &server{pollers: 1, runs: map[string]*run{}, outcome: enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED},
	}
}

// run runs a command line and returns its exit code and what it wrote.
func (w *world) run(args ...string) (code int, out, problems string) {
	w.t.Helper()
	var stdout, stderr bytes.Buffer
	p := newProgram(streams{in: strings.NewReader(w.in), out: &stdout, err: &stderr})
	p.kube = func() (kubeclient.WithWatch, error) { return w.kube, w.kubeErr }
	p.temporal = func(context.Context) (*temporal, error) {
		return &temporal{Client: w.temporal, processes: temporalclient.NewProcesses(w.temporal, workflows.TaskQueue), payloads: converter.GetDefaultDataConverter()}, nil
	}
	code = p.run(w.t.Context(), args)
	return code, stdout.String(), stderr.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), -update writes it anew:\n%s", path, diff)
	}
}
