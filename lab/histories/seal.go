package histories

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/proxy"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"aether.internal/aether/internal/codec"
)

// Sealer makes a history fit to be published.
type Sealer struct {
	// From decodes the payloads that a worker wrote, To encrypts them again.
	From, To *codec.Codec
	// Hostname of the machine, which must not be in it.
	Hostname string
}

const (
	// someone stands for the identities of processes, which carry process IDs
	// and the machine's name.
	someone = "someone"
	// somewhere stands for the machine's name.
	somewhere = "host"
)

// Seal changes the history: payloads encrypted with the published key,
// identities and the machine's name taken out.
func (s *Sealer) Seal(ctx context.Context, history *historypb.History) error {
	hostname := name(s.Hostname)
	scrub(history.ProtoReflect(), hostname)
	visitor := func(_ *proxy.VisitPayloadsContext, payloads []*commonpb.Payload) ([]*commonpb.Payload, error) {
		clear, err := s.From.Decode(payloads)
		if err != nil {
			return nil, err
		}
		for i, p := range clear {
			clear[i] = proto.CloneOf(p)
			clear[i].Data = hostname.ReplaceAll(p.GetData(), []byte(somewhere))
		}
		return s.To.Encode(clear)
	}
	// Search attributes are what the server itself must read.
	err := proxy.VisitPayloads(ctx, history, proxy.VisitPayloadsOptions{Visitor: visitor, SkipSearchAttributes: true})
	if err != nil {
		return fmt.Errorf("seal history: %w", err)
	}
	return nil
}

// name matches a machine's name where it stands by itself: one as short as "vm"
// is part of many words.
func name(hostname string) *regexp.Regexp {
	if hostname == "" {
		return regexp.MustCompile(`\z.`) // nothing
	}
	return regexp.MustCompile(`\b` + regexp.QuoteMeta(hostname) + `\b`)
}

// scrub walks a message and replaces identities, sticky queues and the
// machine's name in all strings.
func scrub(m protoreflect.Message, hostname *regexp.Regexp) {
	if queue, ok := m.Interface().(*taskqueuepb.TaskQueue); ok && queue.GetKind() == enumspb.TASK_QUEUE_KIND_STICKY {
		queue.Name = "sticky" // it is named after the machine and the process
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
			if field.MapValue().Message() == nil {
				return true
			}
			value.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				scrub(v.Message(), hostname)
				return true
			})
		case field.IsList() && field.Message() != nil:
			for i := range value.List().Len() {
				scrub(value.List().Get(i).Message(), hostname)
			}
		case field.IsList():
		case field.Message() != nil:
			scrub(value.Message(), hostname)
		case field.Kind() == protoreflect.StringKind:
			m.Set(field, protoreflect.ValueOfString(scrubbed(string(field.Name()), value.String(), hostname)))
		}
		return true
	})
}

func scrubbed(field, value string, hostname *regexp.Regexp) string {
	if field == "identity" {
		return someone
	}
	return hostname.ReplaceAllString(value, somewhere)
}

// Encode writes a history as Temporal's tools do, one event a line.
func Encode(history *historypb.History) ([]byte, error) {
	var out bytes.Buffer
	out.WriteString("{\"events\":[\n")
	for i, event := range history.GetEvents() {
		data, err := protojson.Marshal(event)
		if err != nil {
			return nil, fmt.Errorf("encode event %d: %w", event.GetEventId(), err)
		}
		if i > 0 {
			out.WriteString(",\n")
		}
		// protojson varies its spaces on purpose.
		if err := json.Compact(&out, data); err != nil {
			return nil, fmt.Errorf("encode event %d: %w", event.GetEventId(), err)
		}
	}
	out.WriteString("\n]}\n")
	return out.Bytes(), nil
}
