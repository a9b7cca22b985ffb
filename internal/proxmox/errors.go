package proxmox

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The kinds of errors. Test for them with errors.Is.
var (
	// ErrNotFound: Proxmox says that the VM does not exist.
	ErrNotFound = errors.New("VM does not exist")
	// ErrNoSuchTask: the node no longer knows the task.
	ErrNoSuchTask = errors.New("task is not known")
	// ErrNoSuchVolume: a disk or image is not there (yet).
	ErrNoSuchVolume = errors.New("volume does not exist")
	// ErrNoSuchNode: the cluster has no node of that name.
	ErrNoSuchNode = errors.New("node does not exist")
	// ErrForbidden: the token lacks a privilege; see [Error.Privilege].
	ErrForbidden = errors.New("privilege is missing")
	// ErrUnauthorized: the token is wrong, disabled or expired.
	ErrUnauthorized = errors.New("token is not accepted")
	// ErrLockTimeout: another task held a lock too long. Repeat later.
	ErrLockTimeout = errors.New("lock was not free in time")
	// ErrLocked: the VM's configuration is locked by an operation.
	ErrLocked = errors.New("VM is locked")
	// ErrNoQuorum: the cluster takes no writes. Nothing to do but wait.
	ErrNoQuorum = errors.New("cluster has no quorum")
	// ErrUnreachable: no answer. A write may have happened; see
	// [OutcomeUnknown].
	ErrUnreachable = errors.New("not reachable")
	// ErrUntrusted: the server's certificate does not match. Final.
	ErrUntrusted = errors.New("certificate is not trusted")
	// ErrTaskFailed: a task ended badly; the error is a [*TaskError].
	ErrTaskFailed = errors.New("task failed")
	// ErrInterrupted: a task was killed before it ended.
	ErrInterrupted = errors.New("task was interrupted")
	// ErrAlreadyExists: the VMID or name is taken.
	ErrAlreadyExists = errors.New("already exists")
	// ErrVMRunning: the VM runs and must not for this.
	ErrVMRunning = errors.New("VM is running")
	// ErrInvalid: Proxmox refuses the parameters; see [Error.Fields]. Final.
	ErrInvalid = errors.New("parameters are refused")
	// ErrConflict: the configuration was changed by someone else meanwhile.
	ErrConflict = errors.New("configuration was changed meanwhile")
	// ErrStorageFull: no room on the storage.
	ErrStorageFull = errors.New("storage is full")
	// ErrNoMemory: the host could not give the memory to a VM.
	ErrNoMemory = errors.New("host has no memory left")
	// ErrHAManaged: the high availability manager holds the VM.
	ErrHAManaged = errors.New("VM is managed by high availability")
	// ErrNotHAManaged: the high availability manager does not know the VM.
	ErrNotHAManaged = errors.New("VM is not managed by high availability")
	// ErrProtected: the VM's protection flag is set.
	ErrProtected = errors.New("VM is protected")
	// ErrNotOurs: the VM does not carry the expected mark. Final.
	ErrNotOurs = errors.New("VM is not the expected one")
	// ErrPending: the VM has no mark yet, because it is being made. Look again.
	ErrPending = errors.New("VM is still being made")
	// ErrUnsupported: this Proxmox does not know the call.
	ErrUnsupported = errors.New("call is not supported")
	// ErrUnknown: an answer of no known kind.
	ErrUnknown = errors.New("unexpected answer")
)

// Error is an answer of Proxmox, or the lack of one.
type Error struct {
	Op      string // what was tried, as "clone template 901 on pv1-1"
	Kind    error  // one of the kinds above
	Status  int    // HTTP status; 0 when there was no answer
	Message string // what Proxmox said
	// Privilege and Path of ErrForbidden: what the token lacks where. Several
	// privileges of which one would do are joined with |.
	Privilege, Path string
	// Fields of ErrInvalid: what is wrong with which parameter.
	Fields map[string]string

	notSent bool
	cause   error
}

// Error tells what was tried, the kind, and what to do where it is known.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %v", e.Op, e.Kind)
	if e.Privilege != "" {
		fmt.Fprintf(&b, ": the token needs %s on %s", e.Privilege, e.Path)
	}
	for _, name := range slices.Sorted(maps.Keys(e.Fields)) {
		fmt.Fprintf(&b, "; %s: %s", name, strings.TrimSpace(e.Fields[name]))
	}
	if e.Message != "" && e.Privilege == "" {
		fmt.Fprintf(&b, ": %s", e.Message)
	}
	if e.Status != 0 {
		fmt.Fprintf(&b, " (HTTP %d)", e.Status)
	}
	if advice := advice(e.Kind); advice != "" {
		b.WriteString("; " + advice)
	}
	return b.String()
}

// Unwrap gives the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.cause != nil {
		return []error{e.Kind, e.cause}
	}
	return []error{e.Kind}
}

// advice says what a person can do about a kind of error.
func advice(kind error) string {
	switch kind { //nolint:errorlint // one of our own kinds, never wrapped
	case ErrUnauthorized:
		return "check the token's secret, that token and user are enabled, and the hosts' clocks"
	case ErrForbidden:
		return "grant it with pveum aclmod, to the user and, with privilege separation, to the token"
	case ErrUntrusted:
		return "state the cluster's CA (/etc/pve/pve-root-ca.pem) or each host's fingerprint, and short node names"
	case ErrNoQuorum:
		return "bring the missing hosts back; Aether goes on by itself"
	case ErrStorageFull:
		return "free space on the storage or use another"
	case ErrProtected:
		return "clear the protection flag of the VM if it shall go"
	default:
		return ""
	}
}

// OutcomeUnknown tells whether a write that returned err may have happened.
func OutcomeUnknown(err error) bool {
	var e *Error
	return errors.As(err, &e) && errors.Is(e.Kind, ErrUnreachable) && !e.notSent
}

// TaskError is a task that ended badly.
type TaskError struct {
	UPID       UPID
	ExitStatus string
	LogTail    []string // last lines of the task's log
	Kind       error    // what the exit status means, or ErrUnknown
}

// Error tells the task, its exit status and the last line that explains it.
func (e *TaskError) Error() string {
	text := fmt.Sprintf("task %s on %s failed: %s", e.UPID.Type(), e.UPID.Node(), e.ExitStatus)
	if why := e.explanation(); why != "" {
		text += " (log: " + why + ")"
	}
	return text + "; task " + string(e.UPID)
}

// explanation is the last log line that says more than the exit status.
func (e *TaskError) explanation() string {
	for _, line := range slices.Backward(e.LogTail) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "TASK ") && !strings.Contains(e.ExitStatus, line) {
			return line
		}
	}
	return ""
}

// Unwrap gives ErrTaskFailed and the kind.
func (e *TaskError) Unwrap() []error { return []error{ErrTaskFailed, e.Kind} }
