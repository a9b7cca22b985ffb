package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Start powers the VM on, waits for the task and makes sure that it runs. A
// VM that runs is left alone.
func (c *Client) Start(ctx context.Context, ref Ref, beat Beat) (TaskResult, error) {
	op := "start " + ref.String()
	seen, err := c.own(ctx, op, ref)
	if err != nil || seen.VM.Running {
		return TaskResult{}, err
	}
	var upid UPID
	if err := c.call(ctx, op, http.MethodPost, vmPath(ref.Node, ref.VMID)+"/status/start", nil, &upid); err != nil {
		return TaskResult{}, err
	}
	result, failed := c.WaitTask(ctx, upid, beat)
	// Whatever the task says: what counts is whether it runs. Two starts at
	// once end with one "already running".
	seen, err = c.VM(ctx, ref.Node, ref.VMID)
	switch {
	case err == nil && seen.VM.Running:
		return result, nil
	case failed != nil:
		return result, failed
	case err != nil:
		return result, err
	default:
		return result, &Error{Op: op, Kind: ErrUnknown, Message: "the start task succeeded, but the VM does not run; look at its console in Proxmox"}
	}
}

// Shutdown presses the power button and waits until the VM is off, at most
// for grace; then it cuts the power.
func (c *Client) Shutdown(ctx context.Context, ref Ref, grace time.Duration, beat Beat) error {
	op := "shut down " + ref.String()
	return c.turnOff(ctx, op, ref, "shutdown", map[string]any{"timeout": int(grace.Seconds()), "forceStop": 1}, beat)
}

// Stop cuts the power and waits until the VM is off. A VM that is off is left
// alone.
func (c *Client) Stop(ctx context.Context, ref Ref, beat Beat) error {
	return c.turnOff(ctx, "stop "+ref.String(), ref, "stop", nil, beat)
}

func (c *Client) turnOff(ctx context.Context, op string, ref Ref, how string, parameters map[string]any, beat Beat) error {
	seen, err := c.own(ctx, op, ref)
	if err != nil {
		return err
	}
	if seen.VM.HAManaged {
		// The HA manager would start it again: it has to let go first.
		return c.leaveHA(ctx, ref, beat)
	}
	if !seen.VM.Running {
		return nil
	}
	var upid UPID
	if err := c.call(ctx, op, http.MethodPost, vmPath(ref.Node, ref.VMID)+"/status/"+how, parameters, &upid); err != nil {
		return err
	}
	_, failed := c.WaitTask(ctx, upid, beat)
	seen, err = c.VM(ctx, ref.Node, ref.VMID)
	switch {
	case errors.Is(err, ErrNotFound), err == nil && !seen.VM.Running:
		return nil
	case failed != nil:
		return failed
	case err != nil:
		return err
	default:
		return &Error{Op: op, Kind: ErrVMRunning, Message: "the task succeeded, but the VM still runs"}
	}
}

// Destroy turns the VM off and removes it with its disks, and returns once it
// is seen gone. A VM that does not exist is fine. One that is not ours is not
// touched. It can be repeated.
func (c *Client) Destroy(ctx context.Context, ref Ref, beat Beat) error {
	op := "destroy " + ref.String()
	seen, err := c.own(ctx, op, ref)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if upid, err := c.destroyInFlight(ctx, ref, seen); err != nil {
		return err
	} else if upid != "" {
		_, failed := c.WaitTask(ctx, upid, beat)
		return c.gone(ctx, op, ref, failed)
	}
	if err := c.Stop(ctx, ref, beat); err != nil {
		return err
	}
	var upid UPID
	parameters := map[string]any{"purge": 1, "destroy-unreferenced-disks": 1}
	err = c.call(ctx, op, http.MethodDelete, vmPath(ref.Node, ref.VMID), parameters, &upid)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	_, failed := c.WaitTask(ctx, upid, beat)
	return c.gone(ctx, op, ref, failed)
}

// destroyInFlight finds the running task of an earlier attempt. A VM that is
// locked without one needs a person: only root may remove a lock.
func (c *Client) destroyInFlight(ctx context.Context, ref Ref, seen Observed) (UPID, error) {
	lock := seen.lock()
	if lock == "" {
		return "", nil
	}
	running, err := c.RunningTasks(ctx, ref.Node, "", ref.VMID)
	if err != nil {
		return "", err
	}
	if len(running) > 0 {
		return running[0], nil
	}
	seen, err = c.VM(ctx, ref.Node, ref.VMID)
	if err != nil || seen.lock() == "" {
		return "", ignoreNotFound(err)
	}
	return "", &Error{Op: "destroy " + ref.String(), Kind: ErrLocked, Message: fmt.Sprintf(
		"it is locked (%s) and no task works on it; only root may remove the lock: qm unlock %d on %s, then repeat", lock, ref.VMID, ref.Node)}
}

func ignoreNotFound(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// gone makes sure that the VM does not exist; failed is what the task said.
func (c *Client) gone(ctx context.Context, op string, ref Ref, failed error) error {
	seen, err := c.VM(ctx, ref.Node, ref.VMID)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case failed != nil:
		return failed
	case err != nil:
		return err
	case seen.Belongs(ref.Machine) != nil:
		return nil //nolint:nilerr // gone, and its VMID is another's already
	default:
		return &Error{Op: op, Kind: ErrUnknown, Message: "the task succeeded, but the VM still exists"}
	}
}

// leaveHA asks the HA manager to disable the VM, waits until it is really
// off, and takes it out of HA. The manager's own stop answers at once and
// stops later; state disabled is also the way out of its error state.
func (c *Client) leaveHA(ctx context.Context, ref Ref, beat Beat) error {
	op := "take " + ref.String() + " out of high availability"
	resource := fmt.Sprintf("/cluster/ha/resources/vm:%d", ref.VMID)
	err := c.call(ctx, op, http.MethodPut, resource, map[string]any{"state": "disabled"}, nil)
	if err != nil && !errors.Is(err, ErrNotHAManaged) {
		return err
	}
	for {
		seen, err := c.VM(ctx, ref.Node, ref.VMID)
		if errors.Is(err, ErrNotFound) {
			break
		}
		if err != nil && !errors.Is(err, ErrUnreachable) {
			return err
		}
		if err == nil && !seen.VM.Running {
			break
		}
		beat.tell(Progress{Waits: fmt.Sprintf("high availability manager to stop VM %d", ref.VMID)})
		if err := sleep(ctx, slowestPoll); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	err = c.call(ctx, op, http.MethodDelete, resource, nil, nil)
	if errors.Is(err, ErrNotHAManaged) {
		return nil
	}
	return err
}
