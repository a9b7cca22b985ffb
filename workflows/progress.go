package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"
)

// StepState is where a step is.
type StepState string

// The states of a step.
const (
	StepRunning   StepState = "running"
	StepDone      StepState = "done"
	StepFailed    StepState = "failed"
	StepCancelled StepState = "cancelled"
)

// Step is one step of a workflow, for people.
type Step struct {
	Name  string    `json:"name"`
	State StepState `json:"state"`
	// WaitsFor says what the step waits for while it runs.
	WaitsFor string     `json:"waitsFor,omitempty"`
	Started  time.Time  `json:"started"`
	Ended    *time.Time `json:"ended,omitempty"`
	// Reason of a failed step.
	Reason string `json:"reason,omitempty"`
}

// Progress is the answer to ProgressQuery.
type Progress struct {
	Workflow string    `json:"workflow"`
	Subject  string    `json:"subject"`
	Phase    string    `json:"phase"`
	Started  time.Time `json:"started"`
	Steps    []Step    `json:"steps"`
}

// progress records the steps of one run and shows them: by query, by current
// details and by the phase search attribute.
type progress struct {
	state Progress
}

// newProgress registers the query.
func newProgress(ctx workflow.Context, subject string) (*progress, error) {
	p := &progress{state: Progress{
		Workflow: workflow.GetInfo(ctx).WorkflowType.Name,
		Subject:  subject,
		Started:  workflow.Now(ctx),
	}}
	err := workflow.SetQueryHandlerWithOptions(ctx, ProgressQuery, func() (Progress, error) {
		return p.state, nil
	}, workflow.QueryHandlerOptions{Description: "Steps of this run: state, times, and what is waited for."})
	if err != nil {
		return nil, fmt.Errorf("register query %s: %w", ProgressQuery, err)
	}
	return p, nil
}

// phase names the part of the process that runs now.
func (p *progress) phase(ctx workflow.Context, name string) error {
	p.state.Phase = name
	p.show(ctx)
	if err := workflow.UpsertTypedSearchAttributes(ctx, PhaseAttribute.ValueSet(name)); err != nil {
		return fmt.Errorf("set search attribute %s: %w", PhaseAttribute.GetName(), err)
	}
	return nil
}

// step runs one step and records how it went.
func (p *progress) step(ctx workflow.Context, name, waitsFor string, run func(workflow.Context) error) error {
	i := len(p.state.Steps)
	p.state.Steps = append(p.state.Steps, Step{Name: name, State: StepRunning, WaitsFor: waitsFor, Started: workflow.Now(ctx)})
	p.show(ctx)
	err := run(ctx)
	ended := workflow.Now(ctx)
	s := &p.state.Steps[i]
	s.Ended = &ended
	switch {
	case err == nil:
		s.State = StepDone
	case temporal.IsCanceledError(err):
		s.State = StepCancelled
	default:
		s.State = StepFailed
		s.Reason = Reason(err)
	}
	p.show(ctx)
	return err
}

var marks = map[StepState]string{StepRunning: "…", StepDone: "✓", StepFailed: "✗", StepCancelled: "–"}

// show puts a checklist into the workflow's current details.
func (p *progress) show(ctx workflow.Context) {
	var b strings.Builder
	fmt.Fprintf(&b, "**%s** %s: %s\n\n", p.state.Workflow, p.state.Subject, p.state.Phase)
	for _, s := range p.state.Steps {
		fmt.Fprintf(&b, "- %s %s", marks[s.State], s.Name)
		switch {
		case s.State == StepRunning && s.WaitsFor != "":
			fmt.Fprintf(&b, ": waits for %s since %s", s.WaitsFor, s.Started.UTC().Format(time.TimeOnly))
		case s.Ended != nil:
			fmt.Fprintf(&b, " (%s)", s.Ended.Sub(s.Started).Round(100*time.Millisecond))
		}
		if s.Reason != "" {
			fmt.Fprintf(&b, ": %s", s.Reason)
		}
		b.WriteString("\n")
	}
	workflow.SetCurrentDetails(ctx, b.String())
}
