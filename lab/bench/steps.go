package bench

import (
	"errors"
	"fmt"
	"time"

	historypb "go.temporal.io/api/history/v1"
)

// timeline is what a history tells of a run whose activities come one after
// the other.
type timeline struct {
	start, end time.Time
	steps      []Step // from start
	events     int
	activities int
	retries    int
}

var errHistory = errors.New("history cannot be read as one step after the other")

// shortest is the length below which a step is not worth a line; it is given
// to its neighbour.
const shortest = time.Millisecond

// read takes a history apart. Every moment belongs to a step: an activity
// itself, its way to a worker ("dispatch …", with attempts that failed before),
// or the workflow's own work before it.
func read(history *historypb.History) (*timeline, error) {
	events := history.GetEvents()
	if len(events) < 2 {
		return nil, fmt.Errorf("%w: it has %d events", errHistory, len(events))
	}
	t := &timeline{start: events[0].GetEventTime().AsTime(), end: events[len(events)-1].GetEventTime().AsTime(), events: len(events)}
	open, started := "", time.Time{}
	for _, e := range events {
		at := e.GetEventTime().AsTime()
		switch {
		case e.GetActivityTaskScheduledEventAttributes() != nil:
			if open != "" {
				return nil, fmt.Errorf("%w: %s and another activity are open at once", errHistory, open)
			}
			open = e.GetActivityTaskScheduledEventAttributes().GetActivityType().GetName()
			t.activities++
			t.add("decide "+open, at)
		case e.GetActivityTaskStartedEventAttributes() != nil:
			attempts := int(e.GetActivityTaskStartedEventAttributes().GetAttempt())
			t.retries += attempts - 1
			started = at
		case e.GetActivityTaskCompletedEventAttributes() != nil:
			t.add("dispatch "+open, started)
			t.add(open, at)
			open = ""
		}
	}
	if open != "" {
		return nil, fmt.Errorf("%w: %s has not ended", errHistory, open)
	}
	t.add("complete", t.end)
	return t, nil
}

// add ends a step at that time; it begins where the one before it ended.
func (t *timeline) add(name string, at time.Time) {
	from := 0.0
	if n := len(t.steps); n > 0 {
		from = t.steps[n-1].End
	}
	end := at.Sub(t.start)
	if len(t.steps) > 0 && end.Seconds()-from < shortest.Seconds() && at != t.end {
		t.steps[len(t.steps)-1].End = end.Seconds()
		return
	}
	t.steps = append(t.steps, Step{Name: name, Start: from, End: end.Seconds()})
}

// makespan is the way from the start of the first run to the end of the last:
// the wait for that one's start, then its own steps.
func makespan(runs []*timeline) (total float64, steps []Step) {
	first, last := runs[0], runs[0]
	for _, r := range runs {
		if r.start.Before(first.start) {
			first = r
		}
		if r.end.After(last.end) {
			last = r
		}
	}
	offset := last.start.Sub(first.start).Seconds()
	if offset > 0 {
		steps = append(steps, Step{Name: "machine made by core and shim", Start: 0, End: offset})
	}
	for _, s := range last.steps {
		steps = append(steps, Step{Name: s.Name, Start: offset + s.Start, End: offset + s.End})
	}
	return last.end.Sub(first.start).Seconds(), steps
}
