package histories

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"testing"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	historypb "go.temporal.io/api/history/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/proto"

	"aether.internal/aether/internal/codec"
)

func newCodec(t *testing.T, id string, fill byte) *codec.Codec {
	t.Helper()
	keys, err := codec.ParseKeys(id + ":" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, 32)))
	if err != nil {
		t.Fatal(err)
	}
	return codec.New(keys)
}

func encode(t *testing.T, c *codec.Codec, text string) *commonpb.Payload {
	t.Helper()
	encoded, err := c.Encode([]*commonpb.Payload{{Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	return encoded[0]
}

func TestSeal(t *testing.T) {
	from, to := newCodec(t, "lab", 1), newCodec(t, "published", 2)
	const hostname = "vm" // as short as they come: it is part of other words
	tenant := &commonpb.Payload{Data: []byte(`"demo"`)}
	history := &historypb.History{Events: []*historypb.HistoryEvent{
		{EventId: 1, Attributes: &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{WorkflowExecutionStartedEventAttributes: &historypb.WorkflowExecutionStartedEventAttributes{
			Identity: "17@" + hostname, Input: &commonpb.Payloads{Payloads: []*commonpb.Payload{encode(t, from, `{"vmid":1001,"seen":"10.1.1.50 by vm"}`)}},
			SearchAttributes: &commonpb.SearchAttributes{IndexedFields: map[string]*commonpb.Payload{"AetherTenant": tenant}},
		}}},
		{EventId: 2, Attributes: &historypb.HistoryEvent_WorkflowTaskScheduledEventAttributes{WorkflowTaskScheduledEventAttributes: &historypb.WorkflowTaskScheduledEventAttributes{
			TaskQueue: &taskqueuepb.TaskQueue{Name: hostname + ":6f1e", Kind: enumspb.TASK_QUEUE_KIND_STICKY, NormalName: "aether"},
		}}},
		{EventId: 3, Attributes: &historypb.HistoryEvent_ActivityTaskStartedEventAttributes{ActivityTaskStartedEventAttributes: &historypb.ActivityTaskStartedEventAttributes{
			Identity: "18@" + hostname, LastFailure: &failurepb.Failure{Message: "Encoded failure", Source: "vm: vmbr0", EncodedAttributes: encode(t, from, `{"message":"no route"}`)},
		}}},
	}}
	sealer := &Sealer{From: from, To: to, Hostname: hostname}
	if err := sealer.Seal(t.Context(), history); err != nil {
		t.Fatal(err)
	}
	data, err := Encode(history)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{`"vm`, "17@", "18@", "10.1.1.50", "no route"} {
		if bytes.Contains(data, []byte(word)) {
			t.Errorf("%q is in %s", word, data)
		}
	}
	if !json.Valid(data) {
		t.Errorf("not JSON: %s", data)
	}
	read, err := client.HistoryFromJSON(bytes.NewReader(data), client.HistoryJSONOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(read, history) {
		t.Errorf("read back %v, want %v", read, history)
	}
	started := read.GetEvents()[0].GetWorkflowExecutionStartedEventAttributes()
	input, err := to.Decode(started.GetInput().GetPayloads())
	if err != nil || string(input[0].GetData()) != `{"vmid":1001,"seen":"10.1.1.50 by host"}` {
		t.Errorf("input is %v, %v", input, err)
	}
	if got := started.GetSearchAttributes().GetIndexedFields()["AetherTenant"]; !proto.Equal(got, tenant) {
		t.Errorf("search attribute is %v, want it as it was", got)
	}
	if source := read.GetEvents()[2].GetActivityTaskStartedEventAttributes().GetLastFailure().GetSource(); source != "host: vmbr0" {
		t.Errorf("source is %q", source)
	}
	if queue := read.GetEvents()[1].GetWorkflowTaskScheduledEventAttributes().GetTaskQueue(); queue.GetName() != "sticky" || queue.GetNormalName() != "aether" {
		t.Errorf("task queue is %v", queue)
	}
}

func TestSealNeedsTheLabsKey(t *testing.T) {
	history := &historypb.History{Events: []*historypb.HistoryEvent{
		{Attributes: &historypb.HistoryEvent_ActivityTaskCompletedEventAttributes{ActivityTaskCompletedEventAttributes: &historypb.ActivityTaskCompletedEventAttributes{
			Result: &commonpb.Payloads{Payloads: []*commonpb.Payload{encode(t, newCodec(t, "other", 3), `1`)}},
		}}},
	}}
	sealer := &Sealer{From: newCodec(t, "lab", 1), To: newCodec(t, "published", 2)}
	if err := sealer.Seal(t.Context(), history); err == nil {
		t.Error("a payload of an unknown key was passed on")
	}
}

func TestMissingNeverCountsWhatIsThere(t *testing.T) {
	options := Options{Dir: t.TempDir()}
	missing, err := options.Missing()
	if err != nil || len(missing) != len(Cases()) {
		t.Fatalf("an empty folder lacks %d of %d cases, %v", len(missing), len(Cases()), err)
	}
	r := &recorder{options: Options{Dir: options.Dir, Out: &bytes.Buffer{}}, sealer: &Sealer{From: newCodec(t, "lab", 1), To: newCodec(t, "published", 2)}}
	first := &historypb.History{Events: []*historypb.HistoryEvent{{EventId: 1}}}
	second := &historypb.History{Events: []*historypb.HistoryEvent{{EventId: 2}}}
	for _, history := range []*historypb.History{first, second} {
		if err := r.add(t.Context(), Cases()[0], history); err != nil {
			t.Fatal(err)
		}
	}
	missing, err = options.Missing()
	if err != nil || len(missing) != len(Cases())-1 {
		t.Errorf("with one history there lack %d of %d cases, %v", len(missing), len(Cases()), err)
	}
	if kept := r.options.file(Cases()[0]); !bytes.Contains(contents(t, kept), []byte(`"eventId":"1"`)) {
		t.Error("the first history was written over")
	}
}

func contents(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
