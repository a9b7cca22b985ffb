package temporal_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdk "go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"aether.internal/aether/lab/temporal"
	"aether.internal/aether/lab/upstream"
)

const (
	queue    = "test"
	codecURL = "http://127.0.0.1:9999/codec"
)

func start(t *testing.T) *temporal.Server {
	t.Helper()
	paths, err := upstream.Ensure(t.Context(), os.Stderr, upstream.Temporal)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := temporal.Start(ctx, temporal.Config{
		Program: paths[upstream.Temporal], Dir: t.TempDir(),
		CodecEndpoint: codecURL, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func dial(t *testing.T, s *temporal.Server) client.Client {
	t.Helper()
	c, err := client.Dial(s.ClientOptions())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestServer(t *testing.T) {
	s := start(t)
	c := dial(t, s)
	t.Run("namespace", func(t *testing.T) { testNamespace(t, c) })
	t.Run("ui", func(t *testing.T) { testUI(t, s) })
	t.Run("crash", func(t *testing.T) { testCrash(t, s, c) })
	t.Run("fairness", func(t *testing.T) { testFairness(t, c) })
	size, err := s.Process().ResidentBytes()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("resident %d MiB", size>>20)
}

func testNamespace(t *testing.T, c client.Client) {
	got, err := c.WorkflowService().DescribeNamespace(t.Context(), &workflowservice.DescribeNamespaceRequest{Namespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	if r := got.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration(); r != 7*24*time.Hour {
		t.Errorf("retention is %s, want a week", r)
	}
	attributes, err := c.OperatorService().ListSearchAttributes(t.Context(), &operatorservice.ListSearchAttributesRequest{Namespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	for name := range temporal.ProductSearchAttributes() {
		if kind := attributes.GetCustomAttributes()[name]; kind != enumspb.INDEXED_VALUE_TYPE_KEYWORD {
			t.Errorf("search attribute %s is %s, want Keyword", name, kind)
		}
	}
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, error %v", url, resp.Status, err)
	}
	return string(body)
}

// The UI is served, reaches the server, and knows the codec server.
func testUI(t *testing.T, s *temporal.Server) {
	if page := fetch(t, s.UIURL()); !strings.Contains(page, "<html") {
		t.Errorf("the UI serves %.200q, want a page", page)
	}
	var settings struct{ Codec struct{ Endpoint string } }
	if err := json.Unmarshal([]byte(fetch(t, s.UIURL()+"/api/v1/settings")), &settings); err != nil || settings.Codec.Endpoint != codecURL {
		t.Errorf("codec endpoint of the UI is %q, error %v", settings.Codec.Endpoint, err)
	}
	if list := fetch(t, s.UIURL()+"/api/v1/namespaces"); !strings.Contains(list, `"default"`) {
		t.Errorf("namespaces through the UI: %.200s", list)
	}
}

// greet waits for a name.
func greet(ctx workflow.Context) (string, error) {
	var name string
	workflow.GetSignalChannel(ctx, "name").Receive(ctx, &name)
	return "hello " + name, nil
}

// A workflow outlives the server's crash, and is found by its attribute.
func testCrash(t *testing.T, s *temporal.Server, c client.Client) {
	w := worker.New(c, queue, worker.Options{})
	w.RegisterWorkflow(greet)
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	tenant := sdk.NewSearchAttributeKeyKeyword("AetherTenant")
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{
		ID: "tenant/demo", TaskQueue: queue, TypedSearchAttributes: sdk.NewSearchAttributes(tenant.ValueSet("demo")),
	}, greet)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.SignalWorkflow(t.Context(), "tenant/demo", "", "name", "again"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var said string
	if err := run.Get(ctx, &said); err != nil || said != "hello again" {
		t.Errorf("the workflow said %q, error %v", said, err)
	}
	for {
		found, err := c.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{Query: "AetherTenant = 'demo' AND ExecutionStatus = 'Completed'"})
		if err != nil {
			t.Fatal(err)
		}
		if len(found.GetExecutions()) == 1 {
			return
		}
		time.Sleep(20 * time.Millisecond) // visibility lags a little
	}
}

// A tenant with two workflows does not wait behind another's thirty.
func testFairness(t *testing.T, c client.Client) {
	const many, few, fairQueue = 30, 2, "fair"
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var mu sync.Mutex
	var order []string
	note := func(_ workflow.Context, tenant string) error {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, tenant)
		return nil
	}
	var runs []client.WorkflowRun
	begin := func(tenant string, n int) {
		for i := range n {
			run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
				ID: fmt.Sprintf("%s-%d", tenant, i), TaskQueue: fairQueue, Priority: sdk.Priority{FairnessKey: tenant},
			}, "note", tenant)
			if err != nil {
				t.Fatal(err)
			}
			runs = append(runs, run)
		}
	}
	begin("big", many)
	begin("small", few)
	w := worker.New(c, fairQueue, worker.Options{MaxConcurrentWorkflowTaskExecutionSize: 2, MaxConcurrentWorkflowTaskPollers: 2})
	w.RegisterWorkflowWithOptions(note, workflow.RegisterOptions{Name: "note"})
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, run := range runs {
		if err := run.Get(ctx, nil); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Reverse(order)
	if last := len(order) - slices.Index(order, "small"); last > many/2 {
		t.Errorf("the small tenant's last workflow was number %d of %d: not fair", last, len(order))
	}
}

func TestStartRefuses(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, c := range []struct {
		name, want string
		cfg        temporal.Config
	}{
		{"no program", "names no program", temporal.Config{Dir: t.TempDir(), Log: log}},
		{"relative folder", "not an absolute path", temporal.Config{Program: "/bin/false", Dir: "x", Log: log}},
		{"no log", "Log is nil", temporal.Config{Program: "/bin/false", Dir: t.TempDir()}},
		{"program that ends", "exit status 1", temporal.Config{Program: "/bin/false", Dir: t.TempDir(), Log: log}},
		{"missing program", "no such file", temporal.Config{Program: "/nonexistent", Dir: t.TempDir(), Log: log}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := temporal.Start(t.Context(), c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}
