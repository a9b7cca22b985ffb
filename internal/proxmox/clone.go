package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// CloneSpec says what to clone into what.
type CloneSpec struct {
	Node     string // host of the template and of the new VM
	Template int    // VMID of the template
	VMID     int    // of the new VM, 1000 or more
	Name     string // of the new VM, a DNS name
	Mark     Mark
	Pool     string // Proxmox pool; empty: none
	// Full copies the disks to Storage; otherwise they are linked to the
	// template's.
	Full    bool
	Storage string
}

// Clone starts a clone and returns its task, or no task when the VM is there
// already. It can be repeated after an unknown outcome: a clone in flight is
// found and its task returned. ErrAlreadyExists: another's VM has the VMID,
// take another. ErrLocked: an earlier clone died half-way.
func (c *Client) Clone(ctx context.Context, spec CloneSpec) (UPID, error) {
	op := fmt.Sprintf("clone template %d to VM %d on %s", spec.Template, spec.VMID, spec.Node)
	if err := writable(op, spec.VMID); err != nil {
		return "", err
	}
	if spec.Template >= LowestVMID || spec.Template <= 0 {
		return "", &Error{Op: op, Kind: ErrInvalid, Message: fmt.Sprintf("%d is no VMID of a template: those are below %d", spec.Template, LowestVMID)}
	}
	upid, done, err := c.earlierClone(ctx, op, spec)
	if err != nil || done || upid != "" {
		return upid, err
	}
	parameters := map[string]any{"newid": spec.VMID, "name": spec.Name, "description": spec.Mark.Description()}
	if spec.Full {
		parameters["full"] = 1
		parameters["storage"] = spec.Storage // not allowed for linked clones
	}
	if spec.Pool != "" {
		parameters["pool"] = spec.Pool
	}
	err = c.call(ctx, op, http.MethodPost, vmPath(spec.Node, spec.Template)+"/clone", parameters, &upid)
	return upid, err
}

// earlierClone looks for what an earlier attempt left: a finished VM, a clone
// in flight, or nothing.
func (c *Client) earlierClone(ctx context.Context, op string, spec CloneSpec) (upid UPID, done bool, err error) {
	seen, err := c.VM(ctx, spec.Node, spec.VMID)
	if errors.Is(err, ErrNotFound) {
		// The configuration file appears a moment after the task has begun.
		upid, err = c.CloneInFlight(ctx, spec.Node, spec.Template, spec.VMID)
		return upid, false, err
	}
	if err != nil {
		return "", false, err
	}
	if err := seen.Belongs(spec.Mark.Machine); errors.Is(err, ErrNotOurs) {
		return "", false, &Error{Op: op, Kind: ErrAlreadyExists, Message: err.Error(), cause: err}
	}
	if seen.Marked && seen.lock() == "" {
		return "", true, nil
	}
	if upid, err = c.CloneInFlight(ctx, spec.Node, spec.Template, spec.VMID); err != nil || upid != "" {
		return upid, false, err
	}
	// The task may have ended between the two looks.
	if seen, err = c.VM(ctx, spec.Node, spec.VMID); err != nil {
		return "", false, err
	}
	if seen.lock() == "" && seen.Belongs(spec.Mark.Machine) == nil {
		return "", true, nil
	}
	return "", false, &Error{Op: op, Kind: ErrLocked, Message: fmt.Sprintf(
		"VM %d is locked (%s) and no task works on it: its clone died. Use another VMID; to remove it: qm unlock %d && qm destroy %d on %s",
		spec.VMID, seen.lock(), spec.VMID, spec.VMID, spec.Node)}
}

// CloneInFlight finds the running task that clones the template to the VMID.
// A clone's task is about the template, so the target is read from its log.
func (c *Client) CloneInFlight(ctx context.Context, node string, template, vmid int) (UPID, error) {
	running, err := c.RunningTasks(ctx, node, "qmclone", template)
	if err != nil {
		return "", err
	}
	id := strconv.Itoa(vmid)
	target := regexp.MustCompile(`with ID ` + id + `\b|\bvm-` + id + `-|/images/` + id + `/`)
	for _, upid := range running {
		tail, err := c.TaskLogTail(ctx, upid, 1000)
		if errors.Is(err, ErrNoSuchTask) {
			continue
		}
		if err != nil {
			return "", err
		}
		if target.MatchString(strings.Join(tail, "\n")) {
			return upid, nil
		}
	}
	return "", nil
}
