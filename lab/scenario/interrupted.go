package scenario

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"

	enumspb "go.temporal.io/api/enums/v1"

	"aether.internal/aether/lab/faults"
)

// cancelJoin cancels a creation while a worker is being joined.
func cancelJoin() Scenario {
	const name = "regret"
	run := func(ctx context.Context, t *T) (string, error) {
		j, err := t.begin(ctx, name)
		if err != nil {
			return "", err
		}
		join, err := j.running(ctx, "machine/", "WaitMaintenance")
		if err != nil {
			return "", err
		}
		t.Logf("%s waits for Talos: the creation is cancelled", join)
		if err := j.temporal.CancelWorkflow(ctx, j.id(), ""); err != nil {
			return "", fmt.Errorf("cancel: %w", err)
		}
		status, err := j.closed(ctx)
		if err != nil {
			return "", err
		}
		if status != enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED {
			return "", unexpected("the cancelled creation ended as %s", status)
		}
		return "ok (Canceled, nothing is left)", t.leftovers(ctx, name)
	}
	return Scenario{Name: "cancel-join", Proves: "a creation that is cancelled during a join ends as Canceled and leaves nothing", Run: run}
}

// points of a tenant's creation at which Proxmox changes something.
func (t *T) points(ctx context.Context) ([]string, error) {
	if _, err := t.sharedTenant(ctx); err != nil {
		return nil, err
	}
	number := regexp.MustCompile(`/qemu/[0-9]+`)
	var places []string
	for _, r := range t.World.ProxmoxRequests() {
		if r.Verb == "GET" || r.Status != 200 || !strings.HasPrefix(r.User, "aether@pve!aether") || !strings.Contains(r.Path, "/qemu/") {
			continue
		}
		place := "pve/" + r.Verb + number.ReplaceAllString(strings.TrimPrefix(r.Path, "/api2/json"), "/qemu/*")
		if !slices.Contains(places, place) {
			places = append(places, place)
		}
	}
	slices.Sort(places)
	if len(places) == 0 {
		return nil, unexpected("no change was asked of Proxmox")
	}
	return places, nil
}

// sample chooses some of the points by the checked-out commit, so that over
// time all get their turn and each failure can be repeated.
func (t *T) sample(ctx context.Context, points []string, n int) ([]string, error) {
	cmd := exec.CommandContext(ctx, "git", "rev-parse", "HEAD")
	cmd.Dir = t.Source
	commit, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("commit as seed: %w", err)
	}
	sum := fnv.New64a()
	_, _ = sum.Write(commit) // a hash never fails
	chosen := slices.Clone(points)
	rand.New(rand.NewPCG(sum.Sum64(), 0)).Shuffle(len(chosen), func(i, k int) { chosen[i], chosen[k] = chosen[k], chosen[i] })
	chosen = chosen[:min(n, len(chosen))]
	slices.Sort(chosen)
	return chosen, nil
}

// killPoints is how many points of one creation the worker is killed at.
const killPoints = 3

// killWorker kills the worker after Proxmox has done what it was asked for and
// before it has answered.
func killWorker() Scenario {
	const name = "killed"
	run := func(ctx context.Context, t *T) (string, error) {
		points, err := t.points(ctx)
		if err != nil {
			return "", err
		}
		chosen, err := t.sample(ctx, slices.DeleteFunc(points, func(p string) bool { return strings.Contains(p, "DELETE") || strings.HasSuffix(p, "/stop") }), killPoints)
		if err != nil {
			return "", err
		}
		t.Cleanup(func(context.Context) error { t.World.Faults().Clear(""); return nil })
		for _, place := range chosen {
			if _, err := t.World.Faults().Inject(faults.Fault{Kind: faults.Hold, Place: place, Count: 1}); err != nil {
				return "", err
			}
		}
		j, err := t.begin(ctx, name)
		if err != nil {
			return "", err
		}
		for range chosen {
			if err := t.killAtHold(ctx); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("ok (points=%d of %d hit=%d: %s)", len(chosen), len(points), len(chosen), strings.Join(chosen, " ")), j.complete(ctx)
	}
	return Scenario{Name: "kill-worker", Proves: "a worker that is killed before Proxmox answers is made up for, with one VM each and nothing left", Run: run}
}

// killAtHold waits for the next held answer, kills the worker, lets the answer
// go, and starts the worker again.
func (t *T) killAtHold(ctx context.Context) error {
	var held faults.Fault
	err := eventually(ctx, "a chosen point to be hit", func(context.Context) error {
		var open []string
		for _, f := range t.World.Faults().List() {
			if f.Hits > 0 {
				held = f
				return nil
			}
			open = append(open, f.Place)
		}
		return unexpected("not hit yet: %s", strings.Join(open, " "))
	})
	if err != nil {
		return err
	}
	t.Logf("the worker is killed at %s", held.Place)
	if err := t.World.Kill("worker"); err != nil {
		return err
	}
	t.World.Faults().Clear(held.ID)
	return t.World.Restart(ctx, "worker")
}

// lostAnswers lets each change at Proxmox happen and breaks the connection
// before the answer, once at each kind of call.
func lostAnswers() Scenario {
	const name = "unheard"
	run := func(ctx context.Context, t *T) (string, error) {
		points, err := t.points(ctx)
		if err != nil {
			return "", err
		}
		points = slices.DeleteFunc(points, func(p string) bool { return path.Base(p) == "stop" || strings.Contains(p, "DELETE") })
		t.Cleanup(func(context.Context) error { t.World.Faults().Clear(""); return nil })
		for _, place := range points {
			if _, err := t.World.Faults().Inject(faults.Fault{Kind: faults.LostAnswer, Place: place, Count: 1}); err != nil {
				return "", err
			}
		}
		j, err := t.begin(ctx, name)
		if err != nil {
			return "", err
		}
		if err := j.arrives(ctx); err != nil {
			return "", err
		}
		hits := 0
		for _, f := range t.World.Faults().List() {
			hits += f.Hits
		}
		t.World.Faults().Clear("")
		if hits == 0 {
			return "", unexpected("no answer was lost at %v", points)
		}
		return fmt.Sprintf("ok (points=%d lost=%d)", len(points), hits), j.ends(ctx)
	}
	return Scenario{Name: "lost-answers", Proves: "an answer that is lost after the change makes no second VM", Run: run}
}

// hostOff creates a tenant on one host while the other has no power.
func hostOff() Scenario {
	const name, off = "onehost", "pv1-2"
	run := func(ctx context.Context, t *T) (string, error) {
		t.Cleanup(func(context.Context) error { return t.World.SetHost(off, true) })
		if err := t.World.SetHost(off, false); err != nil {
			return "", err
		}
		j, err := t.begin(ctx, name)
		if err != nil {
			return "", err
		}
		return "ok (a tenant was made and deleted on pv1-1)", j.complete(ctx)
	}
	return Scenario{Name: "host-off", Proves: "a host without power does not stop work on the other", Run: run}
}

// temporalRestart takes Temporal away in the middle of a join.
func temporalRestart() Scenario {
	return restarted("temporal-restart", "patient", "temporal", "WaitMaintenance", "a restart of Temporal in the middle of a join is made up for")
}

// apiAway takes the management API server away in the middle of a join.
func apiAway() Scenario {
	return restarted("api-away", "offline", "mgmt-kube-apiserver", "WaitMaintenance", "a management API server that is away in the middle of a join is waited for")
}

// restarted kills a component while an activity runs, and starts it again.
func restarted(scenario, name, component, during, proves string) Scenario {
	run := func(ctx context.Context, t *T) (string, error) {
		j, err := t.begin(ctx, name)
		if err != nil {
			return "", err
		}
		join, err := j.running(ctx, "machine/", during)
		if err != nil {
			return "", err
		}
		if err := t.World.Kill(component); err != nil {
			return "", err
		}
		t.Logf("%s was killed while %s was at %s", component, join, during)
		if err := t.World.Restart(ctx, component); err != nil {
			return "", err
		}
		return fmt.Sprintf("ok (%s was away during %s)", component, during), j.complete(ctx)
	}
	return Scenario{Name: scenario, Proves: proves, Run: run}
}
