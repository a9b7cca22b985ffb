package workflows_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/proxy"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"aether.internal/aether/activities"
	"aether.internal/aether/internal/codec"
	"aether.internal/aether/workflows"
)

const (
	historiesDir   = "testdata/histories"
	codecKeyFile   = historiesDir + "/codec-key"
	registeredFile = "testdata/registered.golden"
)

// recorded finds the histories: <workflow>/<case>.json.
func recorded(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(historiesDir, "*", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("no history is in %s: nothing would be replayed. Record them with `make histories`.", historiesDir)
	}
	return files
}

func publishedCodec(t *testing.T) *codec.Codec {
	t.Helper()
	keys, err := codec.LoadKeys(codecKeyFile)
	if err != nil {
		t.Fatal(err)
	}
	return codec.New(keys)
}

// replayer is set up as a worker is, with the published key.
func replayer(t *testing.T) worker.WorkflowReplayer {
	t.Helper()
	data, failure := codec.Converters(publishedCodec(t))
	r, err := worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{DataConverter: data, FailureConverter: failure})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func readHistory(t *testing.T, file string) *historypb.History {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	history, err := client.HistoryFromJSON(bytes.NewReader(data), client.HistoryJSONOptions{})
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return history
}

// quiet keeps the replayer from telling every step.
func quiet() log.Logger {
	return log.NewStructuredLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
}

func TestReplay(t *testing.T) {
	r := replayer(t)
	workflows.Register(r)
	for _, file := range recorded(t) {
		t.Run(strings.TrimPrefix(file, historiesDir+"/"), func(t *testing.T) {
			if err := r.ReplayWorkflowHistory(quiet(), readHistory(t, file)); err != nil {
				t.Errorf("%v\nRuns like this one would be stuck after an upgrade of the worker. If such runs may be open anywhere, change the workflow with workflow.GetVersion. If this version never ran, delete the file and run `make histories`.", err)
			}
		})
	}
}

// TestRecordedKinds holds the folder to what it has to show.
func TestRecordedKinds(t *testing.T) {
	ends := map[string][]enumspb.EventType{}
	retried := map[string]bool{}
	for _, file := range recorded(t) {
		events := readHistory(t, file).GetEvents()
		name := events[0].GetWorkflowExecutionStartedEventAttributes().GetWorkflowType().GetName()
		if name != filepath.Base(filepath.Dir(file)) {
			t.Errorf("%s holds a history of %s", file, name)
		}
		ends[name] = append(ends[name], events[len(events)-1].GetEventType())
		for _, event := range events {
			retried[name] = retried[name] || event.GetActivityTaskStartedEventAttributes().GetAttempt() > 1
		}
	}
	const (
		completed = enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED
		failed    = enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED
		cancelled = enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED
	)
	for name, want := range map[string][]enumspb.EventType{
		"CreateTenant": {completed, failed, cancelled},
		"ApplyTenant":  {completed, failed},
		"DeleteTenant": {completed},
		"JoinWorker":   {completed, failed, cancelled},
		"RemoveWorker": {completed},
	} {
		for _, end := range want {
			if !slices.Contains(ends[name], end) {
				t.Errorf("no history of %s ends with %s; `make histories` adds it", name, end)
			}
		}
	}
	for _, name := range []string{"CreateTenant", "JoinWorker", "RemoveWorker"} {
		if !retried[name] {
			t.Errorf("no history of %s has an activity that was attempted twice; `make histories` adds it", name)
		}
	}
}

// TestReplayNoticesAChange proves that TestReplay can fail: a JoinWorker with
// two steps swapped, and one without its last step, do not replay.
func TestReplayNoticesAChange(t *testing.T) {
	steps := func(names ...string) func(workflow.Context, workflows.JoinWorkerInput) (*workflows.JoinWorkerResult, error) {
		return func(ctx workflow.Context, in workflows.JoinWorkerInput) (*workflows.JoinWorkerResult, error) {
			return inOrder(ctx, in, names)
		}
	}
	order := activitiesOf(readHistory(t, filepath.Join(historiesDir, "JoinWorker", "completed.json")))
	swapped := slices.Clone(order)
	swapped[1], swapped[2] = swapped[2], swapped[1]
	for name, test := range map[string]struct {
		names   []string
		replays bool
	}{
		"as recorded":       {order, true},
		"two steps swapped": {swapped, false},
		"last step missing": {order[:len(order)-1], false},
		"one step renamed":  {append(slices.Clone(order[:len(order)-1]), "ReportReady"), false},
	} {
		t.Run(name, func(t *testing.T) {
			r := replayer(t)
			r.RegisterWorkflowWithOptions(steps(test.names...), workflow.RegisterOptions{Name: "JoinWorker"})
			err := r.ReplayWorkflowHistory(quiet(), readHistory(t, filepath.Join(historiesDir, "JoinWorker", "completed.json")))
			if (err == nil) != test.replays {
				t.Errorf("replay ended with %v, want success: %t", err, test.replays)
			}
		})
	}
}

// activitiesOf lists the activities of a history in the order they were
// scheduled.
func activitiesOf(history *historypb.History) []string {
	var names []string
	for _, event := range history.GetEvents() {
		if scheduled := event.GetActivityTaskScheduledEventAttributes(); scheduled != nil {
			names = append(names, scheduled.GetActivityType().GetName())
		}
	}
	return names
}

// inOrder stands in for a changed JoinWorker: it does what the real one does
// before, between and after the activities, and runs those it is told to.
func inOrder(ctx workflow.Context, in workflows.JoinWorkerInput, names []string) (*workflows.JoinWorkerResult, error) {
	err := workflow.UpsertTypedSearchAttributes(ctx, workflows.TenantAttribute.ValueSet(in.Tenant), workflows.PoolAttribute.ValueSet(in.Pool), workflows.MachineAttribute.ValueSet(in.MachineID))
	if err != nil {
		return nil, err
	}
	phases := map[string]string{"LeaseMachine": "Building", "WaitMaintenance": "Joining"}
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	for _, name := range names {
		if phase, ok := phases[name]; ok {
			if err := workflow.UpsertTypedSearchAttributes(ctx, workflows.PhaseAttribute.ValueSet(phase)); err != nil {
				return nil, err
			}
		}
		if err := workflow.ExecuteActivity(ctx, name, activities.MachineRef{MachineID: in.MachineID}).Get(ctx, nil); err != nil {
			return nil, err
		}
	}
	return &workflows.JoinWorkerResult{}, workflow.UpsertTypedSearchAttributes(ctx, workflows.PhaseAttribute.ValueSet("Usable"))
}

// TestHistoriesAreEncrypted looks for what tenants and machines are made of:
// every payload must be encrypted with the published key, and what is in them
// in clear must not occur anywhere in the file.
func TestHistoriesAreEncrypted(t *testing.T) {
	decoder := publishedCodec(t)
	payloads := 0
	for _, file := range recorded(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		visitor := func(c *proxy.VisitPayloadsContext, list []*commonpb.Payload) ([]*commonpb.Payload, error) {
			for _, p := range list {
				payloads++
				if encoding := string(p.GetMetadata()["encoding"]); encoding != "binary/encrypted" {
					t.Errorf("%s: a payload of %T is not encrypted but %s", file, c.Parent, encoding)
				}
			}
			clear, err := decoder.Decode(list)
			for _, p := range clear {
				for _, word := range words(p.GetData()) {
					if bytes.Contains(text, []byte(word)) {
						t.Errorf("%s: %q is part of a payload of %T and occurs in clear", file, word, c.Parent)
					}
				}
			}
			return list, err
		}
		err = proxy.VisitPayloads(t.Context(), readHistory(t, file), proxy.VisitPayloadsOptions{Visitor: visitor, SkipSearchAttributes: true})
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	if payloads == 0 {
		t.Error("no payload was looked at")
	}
}

// address is what every plan, VM and Node has.
var address = regexp.MustCompile(`\b(?:192\.168|10)\.\d+\.\d+(?:\.\d+)?(?:/\d+)?\b`)

// words returns what in a payload would give a tenant away: addresses, and long
// strings in JSON. Names of tenants, pools, machines and phases are search
// attributes and workflow IDs, which the server must read.
func words(data []byte) []string {
	var found []string
	for _, match := range address.FindAll(data, -1) {
		found = append(found, string(match))
	}
	var text string
	if json.Unmarshal(data, &text) == nil && strings.Contains(text, " ") {
		found = append(found, text)
	}
	return found
}

// TestNothingOfTheMachineIsRecorded looks for process identities and names of
// the machine that recorded.
func TestNothingOfTheMachineIsRecorded(t *testing.T) {
	identity := regexp.MustCompile(`"identity":"([^"]*)"`)
	process := regexp.MustCompile(`\d+@[a-zA-Z]`)
	for _, file := range recorded(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range identity.FindAllSubmatch(text, -1) {
			if string(match[1]) != "someone" {
				t.Errorf("%s: identity %q was not taken out", file, match[1])
			}
		}
		if match := process.Find(text); match != nil {
			t.Errorf("%s: %q is the identity of a process", file, match)
		}
	}
}

// names notes what is registered.
type names struct{ found []string }

func (n *names) RegisterWorkflowWithOptions(_ any, options workflow.RegisterOptions) {
	n.found = append(n.found, "workflow "+options.Name)
}

// RegisterActivityWithOptions names the methods of a struct, as the SDK does.
func (n *names) RegisterActivityWithOptions(a any, options activity.RegisterOptions) {
	for method := range reflect.TypeOf(a).Methods() {
		if method.Type.NumOut() > 0 && method.Type.NumIn() > 1 && method.Type.In(1) == reflect.TypeFor[context.Context]() {
			n.found = append(n.found, "activity "+options.Name+method.Name)
		}
	}
}

// TestRegisteredGolden holds the names that open runs carry.
func TestRegisteredGolden(t *testing.T) {
	var n names
	workflows.Register(&n)
	activities.Set{
		Machines: &activities.Machines{}, Proxmox: &activities.Proxmox{}, Talos: &activities.Talos{}, Nodes: &activities.Nodes{},
		Tenants: &activities.Tenants{}, Pools: &activities.Pools{}, Kamaji: &activities.Kamaji{}, Envoy: &activities.Envoy{}, Cilium: &activities.Cilium{},
	}.Register(&n)
	slices.Sort(n.found)
	if doubled := slices.Compact(slices.Clone(n.found)); len(doubled) != len(n.found) {
		t.Errorf("a name is registered twice: %v", n.found)
	}
	golden, err := os.ReadFile(registeredFile)
	if err != nil {
		t.Fatalf("%v; it lists every registered name, one a line:\n%s", err, strings.Join(n.found, "\n"))
	}
	want := strings.Fields(strings.ReplaceAll(string(golden), " ", "/"))
	got := strings.Fields(strings.ReplaceAll(strings.Join(n.found, "\n"), " ", "/"))
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("%s is not registered any more. Renaming or removing one is a migration: open runs carry its name and would be stuck. Keep the old name registered until no run has it, then take it out of %s.", name, registeredFile)
		}
	}
	for _, name := range got {
		if !slices.Contains(want, name) {
			t.Errorf("%s is new: add it to %s. From its first release on, renaming it is a migration.", name, registeredFile)
		}
	}
}
