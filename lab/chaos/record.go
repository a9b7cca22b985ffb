package chaos

import (
	"context"
	"fmt"

	enumspb "go.temporal.io/api/enums/v1"
)

// RecordCreate makes a tenant and returns the points of its CreateTenant.
func (l *Lab) RecordCreate(ctx context.Context, tenant string) ([]Point, error) {
	return l.recorded(ctx, func() (string, error) {
		id, err := l.StartCreate(ctx, tenant)
		if err != nil {
			return "", err
		}
		return id, l.Completed(ctx, id)
	})
}

// RecordJoin makes a worker and returns the points of its JoinWorker.
func (l *Lab) RecordJoin(ctx context.Context, tenant, host string) ([]Point, error) {
	return l.recorded(ctx, func() (string, error) {
		id, err := l.StartJoin(ctx, tenant, host)
		if err != nil {
			return "", err
		}
		return id, l.Completed(ctx, id)
	})
}

func (l *Lab) recorded(ctx context.Context, run func() (string, error)) ([]Point, error) {
	var id string
	seen, err := l.record(func() error {
		var err error
		id, err = run()
		return err
	})
	if err != nil {
		return nil, err
	}
	names, err := l.completedActivities(ctx, id)
	if err != nil {
		return nil, err
	}
	n := 0
	for i := range seen {
		if seen[i].place == placeTemporal+"/"+completed && n < len(names) {
			seen[i].what = names[n]
			n++
		}
	}
	return points(seen), nil
}

// completedActivities are the types of a run's activities in the order of
// their ends.
func (l *Lab) completedActivities(ctx context.Context, id string) ([]string, error) {
	kinds := map[int64]string{}
	var names []string
	events := l.Temporal.GetWorkflowHistory(ctx, id, "", false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		event, err := events.Next()
		if err != nil {
			return nil, fmt.Errorf("read the history of %s: %w", id, err)
		}
		if a := event.GetActivityTaskScheduledEventAttributes(); a != nil {
			kinds[event.GetEventId()] = a.GetActivityType().GetName()
		}
		if a := event.GetActivityTaskCompletedEventAttributes(); a != nil {
			names = append(names, kinds[a.GetScheduledEventId()])
		}
	}
	return names, nil
}
