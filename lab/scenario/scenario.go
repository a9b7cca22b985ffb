package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Scenario is one thing that is proven in the lab.
type Scenario struct {
	Name string
	// Proves says in one sentence what holds when it passes.
	Proves string
	// Parts of the lab that it needs; none are all.
	Parts []string
	// Run does it and returns what was found, for the line that is printed.
	Run func(ctx context.Context, t *T) (string, error)
}

// All lists the scenarios: first those that need hosts and networks only.
func All() []Scenario {
	return slices.Concat(hostScenarios(), tenantScenarios(), durabilityScenarios())
}

// hostParts are the parts for scenarios without a tenant: hosts, networks,
// the management API server, the site.
func hostParts() []string { return []string{"site", "kinds"} }

// half is one of the two ways to do a task. It returns how it ended, for
// people, and an error if it ended otherwise than it has to.
type half func(ctx context.Context, t *T) (string, error)

// origin makes a scenario of a problem that the origin had: the naive half must
// fail and returns the reason it failed for, Aether's half returns passed() or
// refused(reason).
func origin(name, proves string, parts []string, naive, aether half) Scenario {
	return Scenario{Name: name, Proves: proves, Parts: parts, Run: func(ctx context.Context, t *T) (string, error) {
		failure, err := naive(ctx, t)
		if err != nil {
			return "", fmt.Errorf("naive half: %w", err)
		}
		t.Logf("naive half failed as in life: %s", failure)
		outcome, err := aether(ctx, t)
		if err != nil {
			return "", fmt.Errorf("half of Aether: %w", err)
		}
		return fmt.Sprintf("naive=failed(%s) aether=%s", failure, outcome), nil
	}}
}

// passed is the outcome of a half that did its task.
func passed() string { return "passed" }

// refused is the outcome of a half that said why it does not do the task.
func refused(reason string) string { return "refused(" + reason + ")" }

// errUnexpected is the root of what a scenario did not expect to see.
var errUnexpected = errors.New("not as expected")

// unexpected says what was seen instead.
func unexpected(format string, values ...any) error {
	return fmt.Errorf("%w: %s", errUnexpected, fmt.Sprintf(format, values...))
}
