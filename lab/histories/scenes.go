package histories

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/operator"
)

// Where the lab's Proxmox can be made to fail.
const (
	cloneCalls   = "pve/POST/nodes/*/qemu/*/clone"
	destroyCalls = "pve/DELETE/nodes/*/qemu/*"
)

const (
	workerProgram = "worker"
	mainTenant    = "main"
	poolName      = "workers"
	mostWorkers   = 6
)

// refused asks for more than the hosts have.
func (r *recorder) refused(ctx context.Context) error {
	run, err := r.StartTenant(ctx, "CreateTenant", operator.Tenant("refused", operator.Pool(poolName, 1000, 1000)))
	if err != nil {
		return err
	}
	return r.keep(ctx, run, "refused")
}

// failed has Proxmox forbid the proxy's clone.
func (r *recorder) failed(ctx context.Context) error {
	fault := faults.Fault{Kind: faults.HTTPStatus, Place: cloneCalls, Status: http.StatusForbidden, Message: "Permission check failed"}
	return r.during(ctx, fault, func(string) error {
		run, err := r.StartTenant(ctx, "CreateTenant", operator.Tenant("failed"))
		if err != nil {
			return err
		}
		return r.keep(ctx, run, "failed")
	})
}

// cancelled cancels a creation while proxy and control plane are being made.
func (r *recorder) cancelled(ctx context.Context) error {
	run, err := r.StartTenant(ctx, "CreateTenant", operator.Tenant("cancelled"))
	if err != nil {
		return err
	}
	if err := r.WaitStep(ctx, run, "start"); err != nil {
		return err
	}
	if err := r.Processes.Cancel(ctx, run.ID); err != nil {
		return err
	}
	return r.keep(ctx, run, "cancelled")
}

// killed ends the worker while it waits for a control plane.
func (r *recorder) killed(ctx context.Context) error {
	run, err := r.StartTenant(ctx, "CreateTenant", operator.Tenant("killed"))
	if err != nil {
		return err
	}
	if err := r.WaitStep(ctx, run, "control plane ready"); err != nil {
		return err
	}
	if err := r.killWorker(ctx); err != nil {
		return err
	}
	return r.keep(ctx, run, "worker-killed")
}

func (r *recorder) killWorker(ctx context.Context) error {
	return errors.Join(r.Lab.Kill(ctx, workerProgram), r.Lab.Restart(ctx, workerProgram))
}

// pools makes a tenant with a worker, then gives it a second pool, then asks
// for what cannot be.
func (r *recorder) pools(ctx context.Context) error {
	first := operator.Pool(poolName, 1, mostWorkers)
	run, err := r.StartTenant(ctx, "CreateTenant", operator.Tenant(mainTenant, first))
	if err != nil {
		return err
	}
	if err := r.keep(ctx, run, "completed"); err != nil {
		return err
	}
	joins, err := r.Runs(ctx, "JoinWorker", mainTenant, time.Time{})
	if err != nil {
		return err
	}
	if len(joins) != 1 {
		return fmt.Errorf("found %d joins of tenant %s, want 1", len(joins), mainTenant)
	}
	if err := r.keep(ctx, joins[0], "completed"); err != nil {
		return err
	}
	run, err = r.StartTenant(ctx, "ApplyTenant", operator.Tenant(mainTenant, first, operator.Pool("more", 1, 2)))
	if err != nil {
		return err
	}
	if err := r.keep(ctx, run, "pool-added"); err != nil {
		return err
	}
	run, err = r.StartTenant(ctx, "ApplyTenant", operator.Tenant(mainTenant, operator.Pool(poolName, 1, 1000), operator.Pool("more", 900, 1000)))
	if err != nil {
		return err
	}
	return r.keep(ctx, run, "refused")
}

// retriedJoins has a clone fail once, and kills the worker behind another
// clone's back: Proxmox has taken it, and nobody reads the answer.
func (r *recorder) retriedJoins(ctx context.Context) error {
	fails := faults.Fault{Kind: faults.FailedTask, Place: cloneCalls, Count: 1, Message: "clone failed: storage was busy"}
	err := r.during(ctx, fails, func(string) error {
		join, err := r.grow(ctx, 2)
		if err != nil {
			return err
		}
		return r.keep(ctx, join, "retried")
	})
	if err != nil {
		return err
	}
	var join temporalclient.Run
	holds := faults.Fault{Kind: faults.Hold, Place: cloneCalls, Count: 1}
	err = r.during(ctx, holds, func(id string) (err error) {
		if join, err = r.grow(ctx, 3); err != nil {
			return err
		}
		if err := r.waitHit(ctx, id); err != nil {
			return err
		}
		return r.killWorker(ctx)
	})
	if err != nil {
		return err
	}
	return r.keep(ctx, join, "worker-killed")
}

// endedJoins forbids a clone, and cancels another join while its VM boots.
func (r *recorder) endedJoins(ctx context.Context) error {
	forbidden := faults.Fault{Kind: faults.HTTPStatus, Place: cloneCalls, Status: http.StatusForbidden, Message: "Permission check failed"}
	err := r.during(ctx, forbidden, func(string) error {
		join, err := r.grow(ctx, 4)
		if err != nil {
			return err
		}
		return r.keep(ctx, join, "failed")
	})
	if err != nil {
		return err
	}
	join, err := r.grow(ctx, 5)
	if err != nil {
		return err
	}
	if err := r.WaitStep(ctx, join, "boot"); err != nil {
		return err
	}
	if err := r.Processes.Cancel(ctx, join.ID); err != nil {
		return err
	}
	return r.keep(ctx, join, "cancelled")
}

// deleted deletes the tenant, while Proxmox fails to destroy a VM once.
func (r *recorder) deleted(ctx context.Context) error {
	fails := faults.Fault{Kind: faults.FailedTask, Place: destroyCalls, Count: 1, Message: "destroy failed: volume was busy"}
	err := r.during(ctx, fails, func(string) error {
		run, err := r.DeleteTenant(ctx, mainTenant)
		if err != nil {
			return err
		}
		return r.keep(ctx, run, "completed")
	})
	if err != nil {
		return err
	}
	removals, err := r.Runs(ctx, "RemoveWorker", mainTenant, time.Time{})
	if err != nil {
		return err
	}
	for _, run := range removals {
		history, err := r.History(ctx, run)
		if err != nil {
			return err
		}
		name := "completed"
		if retried(history) {
			name = "retried"
		}
		if err := r.keep(ctx, run, name); err != nil {
			return err
		}
	}
	return nil
}

// grow gives the main tenant's first pool that many workers and returns the
// join that comes of it.
func (r *recorder) grow(ctx context.Context, workers int32) (temporalclient.Run, error) {
	before, err := r.Runs(ctx, "JoinWorker", mainTenant, time.Time{})
	if err != nil {
		return temporalclient.Run{}, err
	}
	pool := operator.Pool(poolName, 1, mostWorkers, "pv1-1", "pv1-2")
	if err := r.Scale(ctx, mainTenant, pool, workers); err != nil {
		return temporalclient.Run{}, err
	}
	joins, err := r.WaitRuns(ctx, "JoinWorker", mainTenant, time.Time{}, len(before)+1, operator.Started)
	if err != nil {
		return temporalclient.Run{}, err
	}
	return joins[len(joins)-1], nil
}

// during has a fault in force while do runs.
func (r *recorder) during(ctx context.Context, fault faults.Fault, do func(id string) error) error {
	id, err := r.Lab.Inject(ctx, fault)
	if err != nil {
		return err
	}
	err = do(id)
	_, clearErr := r.Lab.Clear(ctx, id)
	return errors.Join(err, clearErr)
}

// waitHit waits until a fault has happened.
func (r *recorder) waitHit(ctx context.Context, id string) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		list, err := r.Lab.Faults(ctx)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(list, func(f faults.Fault) bool { return f.ID == id && f.Hits > 0 }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for fault %s to happen: %w", id, ctx.Err())
		case <-ticker.C:
		}
	}
}
