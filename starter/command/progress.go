package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"golang.org/x/term"

	"aether.internal/aether/activities"
	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/workflows"
)

// lookEvery is the pause between two looks at a run. Each is one query.
const lookEvery = time.Second

// follow shows a run's progress until it has ended, and returns the reason of
// one that did not complete. On a terminal the list is drawn over; elsewhere a
// line is written when a step begins or ends.
func (t *temporal) follow(ctx context.Context, s streams, id, runID string) error {
	screen := newScreen(s.err)
	for {
		run, found, err := t.processes.Latest(ctx, id)
		if err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("workflow %s: nothing runs or ran for it within Temporal's retention; `aether tenant list` shows the tenants that exist", id)
		}
		p, err := t.progress(ctx, id, run.RunID)
		if err == nil {
			waits := t.waits(ctx, id, run.RunID)
			if err := screen.draw(p, waits); err != nil {
				return err
			}
		}
		if !run.Open() {
			return t.outcome(ctx, run)
		}
		if runID != "" && run.RunID != runID {
			return fmt.Errorf("another run of %s has begun meanwhile", id)
		}
		timer := time.NewTimer(lookEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("stopped watching; the workflow %s goes on: `aether tenant watch` shows it", id)
		case <-timer.C:
		}
	}
}

// progress asks a run for its steps.
func (t *temporal) progress(ctx context.Context, id, runID string) (workflows.Progress, error) {
	var p workflows.Progress
	answer, err := t.QueryWorkflow(ctx, id, runID, workflows.ProgressQuery)
	if err != nil {
		return p, fmt.Errorf("ask %s for its progress: %w", id, err)
	}
	if err := answer.Get(&p); err != nil {
		return p, fmt.Errorf("read the progress of %s: %w", id, err)
	}
	return p, nil
}

// waiting is what a running activity says.
type waiting struct {
	Summary string
	Attempt int32
	Beat    activities.Beat
	Failure string
}

// waits lists what the run's pending activities wait for, by their summaries.
func (t *temporal) waits(ctx context.Context, id, runID string) []waiting {
	described, err := t.DescribeWorkflowExecution(ctx, id, runID)
	if err != nil {
		return nil
	}
	var list []waiting
	for _, pending := range described.GetPendingActivities() {
		w := waiting{Attempt: pending.GetAttempt(), Failure: pending.GetLastFailure().GetMessage()}
		if details := pending.GetHeartbeatDetails(); details != nil {
			// Details of another version may not fit; the rest is shown anyway.
			_ = t.payloads.FromPayloads(details, &w.Beat) //nolint:errcheck // see above
		}
		list = append(list, w)
	}
	return list
}

// outcome returns nil for a completed run, and the reason of another.
func (t *temporal) outcome(ctx context.Context, run temporalclient.Run) error {
	switch run.Status {
	case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED:
		return nil
	case enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED:
		return fmt.Errorf("%s for %s was cancelled", run.Type, run.ID)
	}
	err := t.GetWorkflow(ctx, run.ID, run.RunID).Get(ctx, nil)
	if err == nil {
		return nil
	}
	return errors.New(workflows.Reason(err))
}

// screen shows progress.
type screen struct {
	out   io.Writer
	fancy bool
	drawn int            // lines on the terminal
	told  map[string]int // steps told, by name and state
}

func newScreen(out io.Writer) *screen {
	file, ok := out.(*os.File)
	return &screen{out: out, fancy: ok && term.IsTerminal(int(file.Fd())), told: map[string]int{}} //nolint:gosec // a descriptor
}

func (s *screen) draw(p workflows.Progress, waits []waiting) error {
	if s.fancy {
		return s.repaint(p, waits)
	}
	for i, step := range p.Steps {
		key := fmt.Sprintf("%d/%s", i, step.State)
		if s.told[key] > 0 {
			continue
		}
		s.told[key]++
		if _, err := fmt.Fprintln(s.out, line(p, step)); err != nil {
			return err
		}
	}
	return nil
}

func (s *screen) repaint(p workflows.Progress, waits []waiting) error {
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\x1b[J", s.drawn)
	}
	lines := []string{fmt.Sprintf("%s %s: %s", p.Workflow, p.Subject, p.Phase)}
	for _, step := range p.Steps {
		lines = append(lines, "  "+line(p, step))
	}
	for _, w := range waits {
		text := "    … " + w.Beat.WaitsFor
		if w.Beat.Detail != "" {
			text += " (" + w.Beat.Detail + ")"
		}
		if w.Attempt > 1 {
			text += fmt.Sprintf(" [attempt %d]", w.Attempt)
		}
		lines = append(lines, text)
	}
	for _, l := range lines {
		b.WriteString(l + "\n")
	}
	s.drawn = len(lines)
	_, err := io.WriteString(s.out, b.String())
	return err
}

// line is one step as text: time since the start, state, name, what it waits
// for or how long it took.
func line(p workflows.Progress, step workflows.Step) string {
	text := fmt.Sprintf("%6.1fs %-9s %s", step.Started.Sub(p.Started).Seconds(), step.State, step.Name)
	switch {
	case step.Ended != nil:
		text += fmt.Sprintf(" (%.1fs)", step.Ended.Sub(step.Started).Seconds())
	case step.WaitsFor != "":
		text += ": waits for " + step.WaitsFor
	}
	if step.Reason != "" {
		text += ": " + step.Reason
	}
	return text
}
