package namespace

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

func TestAdvice(t *testing.T) {
	for _, test := range []struct {
		name  string
		facts machineFacts
		want  string
	}{
		{"user namespaces off", machineFacts{maxUser: "0"}, "sysctl user.max_user_namespaces="},
		{"network namespaces off", machineFacts{maxNet: "0"}, "sysctl user.max_net_namespaces="},
		{"old Debian", machineFacts{maxUser: "1000", debianClone: "0"}, "sysctl kernel.unprivileged_userns_clone=1"},
		{"Ubuntu", machineFacts{maxUser: "1000", appArmor: "1"}, "sysctl kernel.apparmor_restrict_unprivileged_userns=0"},
		{"Ubuntu's setting does not bind root", machineFacts{root: true, maxUser: "1000", appArmor: "1"}, "--privileged"},
		{"a container", machineFacts{maxUser: "1000"}, "--privileged"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := advise(test.facts); !strings.Contains(got, test.want) {
				t.Errorf("got %q, want it to contain %q", got, test.want)
			}
		})
	}
}

func TestExplain(t *testing.T) {
	var refused *NotAllowedError
	if err := explain("start", syscall.EPERM); !errors.As(err, &refused) || !errors.Is(err, syscall.EPERM) {
		t.Errorf("EPERM: got %v, want a NotAllowedError that wraps it", err)
	}
	if err := explain("start", syscall.ENOENT); errors.As(err, &refused) || !errors.Is(err, syscall.ENOENT) {
		t.Errorf("ENOENT: got %v, want it wrapped and no advice about namespaces", err)
	}
}
