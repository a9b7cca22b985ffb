package activities

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/temporal"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"aether.internal/aether/internal/cilium"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/envoy"
	"aether.internal/aether/internal/kamaji"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/internal/proxmox"
	"aether.internal/aether/internal/talos"
)

func applicationError(err error) (*temporal.ApplicationError, bool) {
	var application *temporal.ApplicationError
	ok := errors.As(err, &application)
	return application, ok
}

// TestClassify has every kind of error that the clients know: final, or
// repeated and after what pause at least.
func TestClassify(t *testing.T) {
	const final, repeated = true, false
	resource := schema.GroupResource{Group: "infrastructure.cluster.x-k8s.io", Resource: "aethervms"}
	task := func(kind error) error {
		return &proxmox.TaskError{UPID: "UPID:x", ExitStatus: "it went wrong", Kind: kind}
	}
	for _, test := range []struct {
		err   error
		kind  string
		final bool
		delay time.Duration
	}{
		{proxmox.ErrUnauthorized, ForbiddenType, final, 0},
		{proxmox.ErrForbidden, ForbiddenType, final, 0},
		{proxmox.ErrUntrusted, InvalidType, final, 0},
		{proxmox.ErrNotOurs, NotOursType, final, 0},
		{proxmox.ErrInvalid, InvalidType, final, 0},
		{proxmox.ErrNoSuchNode, InvalidType, final, 0},
		{proxmox.ErrUnsupported, InvalidType, final, 0},
		{proxmox.ErrProtected, InvalidType, final, 0},
		{proxmox.ErrNotFound, GoneType, final, 0},
		{proxmox.ErrNoQuorum, UnavailableType, repeated, 15 * time.Second},
		{proxmox.ErrUnreachable, UnavailableType, repeated, 0},
		{proxmox.ErrStorageFull, ExhaustedType, repeated, 15 * time.Second},
		{proxmox.ErrNoMemory, ExhaustedType, repeated, 15 * time.Second},
		{proxmox.ErrLockTimeout, UnavailableType, repeated, 0},
		{proxmox.ErrTaskFailed, FailedTaskType, repeated, 0},
		{proxmox.ErrInterrupted, FailedTaskType, repeated, 0},
		{proxmox.ErrNoSuchTask, FailedTaskType, repeated, 0},
		{proxmox.ErrPending, WaitingType, repeated, 0},
		{proxmox.ErrLocked, WaitingType, repeated, 0},
		{proxmox.ErrVMRunning, WaitingType, repeated, 0},
		{proxmox.ErrConflict, WaitingType, repeated, 0},
		{proxmox.ErrAlreadyExists, WaitingType, repeated, 0},
		{proxmox.ErrNoSuchVolume, WaitingType, repeated, 0},
		{proxmox.ErrHAManaged, WaitingType, repeated, 0},
		{proxmox.ErrNotHAManaged, WaitingType, repeated, 0},
		{proxmox.ErrUnknown, UnavailableType, repeated, 0},
		{task(proxmox.ErrUnknown), FailedTaskType, repeated, 0},
		{task(proxmox.ErrLockTimeout), UnavailableType, repeated, 0},
		{task(proxmox.ErrStorageFull), ExhaustedType, repeated, 15 * time.Second},
		{task(proxmox.ErrInvalid), InvalidType, final, 0},
		{task(proxmox.ErrVMRunning), FailedTaskType, repeated, 0},
		{talos.ErrWrongMachine, NotOursType, final, 0},
		{talos.ErrInvalidConfig, InvalidType, final, 0},
		{talos.ErrUnreachable, UnavailableType, repeated, 0},
		{talos.ErrNotMaintenance, WaitingType, repeated, 0},
		{lease.ErrExhausted, ExhaustedType, repeated, 10 * time.Second},
		{lease.ErrNoRoom, ExhaustedType, repeated, 10 * time.Second},
		{kamaji.ErrInvalid, InvalidType, final, 0},
		{kamaji.ErrStale, WaitingType, repeated, 0},
		{kamaji.ErrNotFound, WaitingType, repeated, 0},
		{kamaji.ErrConflict, WaitingType, repeated, 0},
		{kamaji.ErrForbidden, ForbiddenType, repeated, 0},
		{kamaji.ErrUnavailable, UnavailableType, repeated, 0},
		{cilium.ErrChart, InvalidType, final, 0},
		{envoy.ErrInvalid, InvalidType, final, 0},
		{errNoAccess, WaitingType, repeated, 0},
		{errWaiting, WaitingType, repeated, 0},
		{errRefused, RefusedType, final, 0},
		{errGone, GoneType, final, 0},
		{domain.Problems{{Field: "spec.version", Found: "nothing", Allowed: "a version"}}, RefusedType, final, 0},
		{apierrors.NewBadRequest("no"), InvalidType, final, 0},
		{apierrors.NewInvalid(schema.GroupKind{Kind: "AetherVM"}, "x", nil), InvalidType, final, 0},
		{apierrors.NewForbidden(resource, "x", errors.New("no role")), ForbiddenType, repeated, 0},
		{apierrors.NewConflict(resource, "x", errors.New("changed")), WaitingType, repeated, 0},
		{apierrors.NewAlreadyExists(resource, "x"), WaitingType, repeated, 0},
		{apierrors.NewServiceUnavailable("away"), UnavailableType, repeated, 0},
		{apierrors.NewUnauthorized("who?"), UnavailableType, repeated, 0},
		{errors.New("something nobody thought of"), UnavailableType, repeated, 0},
	} {
		t.Run(fmt.Sprint(test.err), func(t *testing.T) {
			got, ok := applicationError(classify(fmt.Errorf("clone template 901: %w", test.err)))
			if !ok {
				t.Fatal("not an application error")
			}
			if got.Type() != test.kind || got.NonRetryable() != test.final || got.NextRetryDelay() != test.delay {
				t.Errorf("got %s, final %t, after %s", got.Type(), got.NonRetryable(), got.NextRetryDelay())
			}
			if !strings.Contains(got.Message(), test.err.Error()) {
				t.Errorf("the message %q lost the cause", got.Message())
			}
		})
	}
}

func TestClassifyLeavesAlone(t *testing.T) {
	already := temporal.NewNonRetryableApplicationError("said", NotOursType, nil)
	for _, err := range []error{nil, context.Canceled, fmt.Errorf("wait: %w", context.Canceled), fmt.Errorf("wait: %w", context.DeadlineExceeded), already} {
		if got := classify(err); !errors.Is(got, err) {
			t.Errorf("%v became %v", err, got)
		}
	}
}

// TestInsist: what is final elsewhere is repeated slowly in removal, and keeps
// its type for people; the rest is as it was.
func TestInsist(t *testing.T) {
	for _, test := range []struct {
		err   error
		kind  string
		delay time.Duration
	}{
		{proxmox.ErrProtected, InvalidType, insistEvery},
		{proxmox.ErrForbidden, ForbiddenType, insistEvery},
		{refused("host pv9 is not in the site"), RefusedType, insistEvery},
		{proxmox.ErrUnreachable, UnavailableType, 0},
		{proxmox.ErrNoQuorum, UnavailableType, 15 * time.Second},
	} {
		got, ok := applicationError(insist(test.err))
		if !ok || got.Type() != test.kind || got.NonRetryable() || got.NextRetryDelay() != test.delay || !strings.Contains(got.Message(), test.err.Error()) {
			t.Errorf("%v: got %+v", test.err, got)
		}
	}
	for _, err := range []error{nil, context.Canceled} {
		if got := insist(err); !errors.Is(got, err) {
			t.Errorf("%v became %v", err, got)
		}
	}
}

func TestIsRefused(t *testing.T) {
	for _, test := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("x"), false},
		{classify(refused("spec.version: found %q", "v1")), true},
		{fmt.Errorf("activity: %w", classify(refused("x"))), true},
		{classify(proxmox.ErrForbidden), false},
	} {
		if got := IsRefused(test.err); got != test.want {
			t.Errorf("%v: %t", test.err, got)
		}
	}
}
