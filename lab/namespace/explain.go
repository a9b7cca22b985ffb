package namespace

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// NotAllowedError says that this machine does not let the lab have namespaces
// of its own, and what to do.
type NotAllowedError struct {
	Step   string // what was tried
	Advice string
	Err    error
}

// Error tells the step, the kernel's answer and the advice.
func (e *NotAllowedError) Error() string {
	return fmt.Sprintf("the lab needs namespaces of its own; %s: %v. %s", e.Step, e.Err, e.Advice)
}

// Unwrap returns the kernel's answer.
func (e *NotAllowedError) Unwrap() error { return e.Err }

// setupError is a failure that init reported.
type setupError struct{ setupReport }

// Error is what init said.
func (e *setupError) Error() string { return e.Text }

// Unwrap returns the kernel's answer.
func (e *setupError) Unwrap() error { return e.Errno }

// machineFacts are the settings that decide about namespaces; empty where the
// kernel has no such setting.
type machineFacts struct {
	root        bool
	maxUser     string // user.max_user_namespaces
	maxNet      string // user.max_net_namespaces
	debianClone string // kernel.unprivileged_userns_clone
	appArmor    string // kernel.apparmor_restrict_unprivileged_userns
}

func readFacts() machineFacts {
	read := func(name string) string {
		data, err := os.ReadFile(name)
		if err != nil { // a kernel without the setting
			return ""
		}
		return strings.TrimSpace(string(data))
	}
	return machineFacts{
		root:        os.Geteuid() == 0,
		maxUser:     read("/proc/sys/user/max_user_namespaces"),
		maxNet:      read("/proc/sys/user/max_net_namespaces"),
		debianClone: read("/proc/sys/kernel/unprivileged_userns_clone"),
		appArmor:    read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
	}
}

// explain adds to a refusal what the person at the machine can do about it.
func explain(step string, err error) error {
	refused := false
	for _, errno := range []syscall.Errno{syscall.EPERM, syscall.EACCES, syscall.ENOSPC, syscall.EUSERS, syscall.EINVAL, syscall.ENOSYS} {
		refused = refused || errors.Is(err, errno)
	}
	if !refused {
		return fmt.Errorf("%s the lab's namespaces: %w", step, err)
	}
	return &NotAllowedError{Step: step, Advice: advise(readFacts()), Err: err}
}

func advise(f machineFacts) string {
	switch {
	case f.maxUser == "0":
		return "User namespaces are switched off: run `sudo sysctl user.max_user_namespaces=15000`"
	case f.maxNet == "0":
		return "Network namespaces are switched off: run `sudo sysctl user.max_net_namespaces=15000`"
	case !f.root && f.debianClone == "0":
		return "This kernel keeps user namespaces for root: run `sudo sysctl kernel.unprivileged_userns_clone=1`, or run the lab as root"
	case !f.root && f.appArmor == "1":
		return "AppArmor keeps user namespaces for root: run `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or run the lab as root"
	default:
		return "If this is a container, its runtime forbids it: start it with `--privileged`, " +
			"or with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined`; " +
			"otherwise the kernel needs CONFIG_USER_NS, CONFIG_NET_NS and CONFIG_PID_NS"
	}
}
