package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"aether.internal/aether/internal/cilium"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/envoy"
	"aether.internal/aether/internal/kamaji"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/internal/proxmox"
	"aether.internal/aether/internal/talos"
)

// Types of application errors. A workflow and a person tell errors apart by
// them.
const (
	// RefusedType: a check failed; nothing was made. Final.
	RefusedType = "Refused"
	// InvalidType: an outside system will never accept this. Final.
	InvalidType = "Invalid"
	// ForbiddenType: a privilege or credential is missing. Final.
	ForbiddenType = "Forbidden"
	// NotOursType: what stands there is another's. Final.
	NotOursType = "NotOurs"
	// GoneType: the object that the activity is about was deleted. Final.
	GoneType = "Gone"
	// ExhaustedType: a range or host has no room. Repeated: room comes back.
	ExhaustedType = "Exhausted"
	// UnavailableType: an outside system cannot be asked. Repeated.
	UnavailableType = "Unavailable"
	// FailedTaskType: a task of an outside system ended badly. Repeated.
	FailedTaskType = "FailedTask"
	// WaitingType: something is not there yet. Repeated.
	WaitingType = "Waiting"
)

// class is how errors of one kind are treated.
type class struct {
	kind  error
	name  string
	final bool
	// delay before the next attempt; 0 leaves it to the retry policy.
	delay time.Duration
}

// classes maps the kinds of the clients' errors. The first match counts.
func classes() []class {
	return []class{
		{kind: proxmox.ErrUnauthorized, name: ForbiddenType, final: true},
		{kind: proxmox.ErrForbidden, name: ForbiddenType, final: true},
		{kind: proxmox.ErrUntrusted, name: InvalidType, final: true},
		{kind: proxmox.ErrNotOurs, name: NotOursType, final: true},
		{kind: proxmox.ErrInvalid, name: InvalidType, final: true},
		{kind: proxmox.ErrNoSuchNode, name: InvalidType, final: true},
		{kind: proxmox.ErrUnsupported, name: InvalidType, final: true},
		{kind: proxmox.ErrProtected, name: InvalidType, final: true},
		{kind: proxmox.ErrNoQuorum, name: UnavailableType, delay: 15 * time.Second},
		{kind: proxmox.ErrUnreachable, name: UnavailableType},
		{kind: proxmox.ErrStorageFull, name: ExhaustedType, delay: 15 * time.Second},
		{kind: proxmox.ErrNoMemory, name: ExhaustedType, delay: 15 * time.Second},
		{kind: proxmox.ErrLockTimeout, name: UnavailableType},
		{kind: proxmox.ErrTaskFailed, name: FailedTaskType},
		{kind: proxmox.ErrInterrupted, name: FailedTaskType},
		{kind: proxmox.ErrNoSuchTask, name: FailedTaskType},
		// Proxmox says itself that the VM is not there: someone removed it, and
		// repeating what was to be done with it would never help.
		{kind: proxmox.ErrNotFound, name: GoneType, final: true},
		{kind: proxmox.ErrPending, name: WaitingType},
		{kind: proxmox.ErrLocked, name: WaitingType},
		{kind: proxmox.ErrVMRunning, name: WaitingType},
		{kind: proxmox.ErrConflict, name: WaitingType},
		{kind: proxmox.ErrAlreadyExists, name: WaitingType},
		{kind: proxmox.ErrNoSuchVolume, name: WaitingType},
		{kind: proxmox.ErrHAManaged, name: WaitingType},
		{kind: proxmox.ErrNotHAManaged, name: WaitingType},
		{kind: talos.ErrWrongMachine, name: NotOursType, final: true},
		{kind: talos.ErrInvalidConfig, name: InvalidType, final: true},
		{kind: talos.ErrUnreachable, name: UnavailableType},
		{kind: talos.ErrNotMaintenance, name: WaitingType},
		{kind: lease.ErrExhausted, name: ExhaustedType, delay: 10 * time.Second},
		{kind: lease.ErrNoRoom, name: ExhaustedType, delay: 10 * time.Second},
		{kind: kamaji.ErrInvalid, name: InvalidType, final: true},
		{kind: kamaji.ErrStale, name: WaitingType},
		{kind: kamaji.ErrNotFound, name: WaitingType},
		{kind: kamaji.ErrConflict, name: WaitingType},
		// A role that is being granted.
		{kind: kamaji.ErrForbidden, name: ForbiddenType},
		{kind: kamaji.ErrUnavailable, name: UnavailableType},
		{kind: cilium.ErrChart, name: InvalidType, final: true},
		{kind: envoy.ErrInvalid, name: InvalidType, final: true},
		{kind: errNoAccess, name: WaitingType},
		{kind: errWaiting, name: WaitingType},
		{kind: errRefused, name: RefusedType, final: true},
		{kind: errGone, name: GoneType, final: true},
	}
}

var (
	errWaiting = errors.New("not yet")
	errRefused = errors.New("refused")
	errGone    = errors.New("gone")
)

// classify turns an error into what Temporal acts on. It is the one place
// where that is decided. Context errors pass as they are.
func classify(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var application *temporal.ApplicationError
	if errors.As(err, &application) {
		return err
	}
	for _, c := range classes() {
		if errors.Is(err, c.kind) {
			return temporal.NewApplicationErrorWithOptions(err.Error(), c.name, temporal.ApplicationErrorOptions{NonRetryable: c.final, NextRetryDelay: c.delay})
		}
	}
	var problems domain.Problems
	switch {
	case errors.As(err, &problems):
		return temporal.NewNonRetryableApplicationError(problems.Error(), RefusedType, nil)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return temporal.NewNonRetryableApplicationError(err.Error(), InvalidType, nil)
	case apierrors.IsForbidden(err):
		// A role that is being granted, or a control plane that is not set up
		// yet: repeated until the activity's own limit.
		return temporal.NewApplicationError(err.Error(), ForbiddenType)
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return temporal.NewApplicationError(err.Error(), WaitingType)
	default:
		return temporal.NewApplicationError(err.Error(), UnavailableType)
	}
}

// insist is classify for undo and removal, which never give up: what would be
// final is repeated, slowly, until a person has mended it. Giving up would
// leave something behind that nobody looks for.
func insist(err error) error {
	err = classify(err)
	var application *temporal.ApplicationError
	if !errors.As(err, &application) || !application.NonRetryable() {
		return err
	}
	return temporal.NewApplicationErrorWithOptions(application.Message(), application.Type(), temporal.ApplicationErrorOptions{NextRetryDelay: insistEvery})
}

// insistEvery is the pause of what waits for a person.
const insistEvery = 15 * time.Second

// refused makes a final error that says why something is not done.
func refused(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errRefused}, args...)...)
}

// waiting makes an error that ends one attempt; the next one looks again.
func waiting(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errWaiting}, args...)...)
}

// IsRefused tells whether a workflow ended because a check failed.
func IsRefused(err error) bool {
	var application *temporal.ApplicationError
	return errors.As(err, &application) && application.Type() == RefusedType
}
