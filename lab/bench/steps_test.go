package bench

import (
	"math"
	"testing"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	historypb "go.temporal.io/api/history/v1"
	"google.golang.org/protobuf/types/known/timestamppb"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func event(seconds float64, attributes any) *historypb.HistoryEvent {
	e := &historypb.HistoryEvent{EventTime: timestamppb.New(epoch.Add(time.Duration(seconds * float64(time.Second))))}
	switch a := attributes.(type) {
	case *historypb.ActivityTaskScheduledEventAttributes:
		e.Attributes = &historypb.HistoryEvent_ActivityTaskScheduledEventAttributes{ActivityTaskScheduledEventAttributes: a}
	case *historypb.ActivityTaskStartedEventAttributes:
		e.Attributes = &historypb.HistoryEvent_ActivityTaskStartedEventAttributes{ActivityTaskStartedEventAttributes: a}
	case *historypb.ActivityTaskCompletedEventAttributes:
		e.Attributes = &historypb.HistoryEvent_ActivityTaskCompletedEventAttributes{ActivityTaskCompletedEventAttributes: a}
	}
	return e
}

func scheduled(seconds float64, name string) *historypb.HistoryEvent {
	return event(seconds, &historypb.ActivityTaskScheduledEventAttributes{ActivityType: &commonpb.ActivityType{Name: name}})
}

func started(seconds float64, attempt int32) *historypb.HistoryEvent {
	return event(seconds, &historypb.ActivityTaskStartedEventAttributes{Attempt: attempt})
}

func done(seconds float64) *historypb.HistoryEvent {
	return event(seconds, &historypb.ActivityTaskCompletedEventAttributes{})
}

func history(events ...*historypb.HistoryEvent) *historypb.History {
	return &historypb.History{Events: events}
}

func TestReadNamesEveryMoment(t *testing.T) {
	got, err := read(history(
		event(0, nil),
		scheduled(0.5, "CloneVM"), started(3, 2), done(5),
		scheduled(5.25, "StartVM"), started(5.2505, 1), done(9),
		event(10, nil),
	))
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{
		{"decide CloneVM", 0, 0.5},
		{"dispatch CloneVM", 0.5, 3}, // an attempt had failed before
		{"CloneVM", 3, 5},
		{"decide StartVM", 5, 5.2505}, // a dispatch too short for a line of its own
		{"StartVM", 5.2505, 9},
		{"complete", 9, 10},
	}
	if len(got.steps) != len(want) {
		t.Fatalf("steps %+v, want %+v", got.steps, want)
	}
	for i, s := range got.steps {
		if s.Name != want[i].Name || math.Abs(s.Start-want[i].Start) > 1e-6 || math.Abs(s.End-want[i].End) > 1e-6 {
			t.Errorf("step %d is %+v, want %+v", i, s, want[i])
		}
	}
	if got.activities != 2 || got.retries != 1 || got.events != 8 {
		t.Errorf("%d activities, %d retries, %d events", got.activities, got.retries, got.events)
	}
}

func TestReadRefusesWhatItCannotTell(t *testing.T) {
	for name, h := range map[string]*historypb.History{
		"nothing":             history(),
		"side by side":        history(event(0, nil), scheduled(1, "CloneVM"), scheduled(2, "StartVM"), event(3, nil)),
		"an activity is open": history(event(0, nil), scheduled(1, "CloneVM"), event(3, nil)),
	} {
		if _, err := read(h); err == nil {
			t.Errorf("%s: it was read", name)
		}
	}
}

func TestMakespanAddsUp(t *testing.T) {
	at := func(seconds float64) time.Time { return epoch.Add(time.Duration(seconds * float64(time.Second))) }
	early := &timeline{start: at(0), end: at(8), steps: []Step{{"a", 0, 8}}}
	late := &timeline{start: at(2), end: at(9), steps: []Step{{"a", 0, 4}, {"b", 4, 7}}}
	for name, test := range map[string]struct {
		runs  []*timeline
		total float64
		steps int
	}{
		"one":                     {[]*timeline{early}, 8, 1},
		"the last started later":  {[]*timeline{early, late}, 9, 3},
		"whatever order they are": {[]*timeline{late, early}, 9, 3},
	} {
		t.Run(name, func(t *testing.T) {
			total, steps := makespan(test.runs)
			if total != test.total || len(steps) != test.steps {
				t.Errorf("%v in %+v, want %v in %d steps", total, steps, test.total, test.steps)
			}
			at := 0.0
			for _, s := range steps {
				if s.Start != at {
					t.Errorf("%s begins at %v, want %v", s.Name, s.Start, at)
				}
				at = s.End
			}
			if at != total {
				t.Errorf("the steps end at %v, want %v", at, total)
			}
		})
	}
}
