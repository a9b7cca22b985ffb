package proxmox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestAnswersAreSorted(t *testing.T) {
	tests := []struct {
		answer answer
		kind   error
		text   string
	}{
		{answer{status: 500, reason: "Configuration file 'nodes/pv1-1/qemu-server/1000.conf' does not exist"}, ErrNotFound, ""},
		{answer{status: 500, reason: "unable to find configuration file for VM 1000 on node 'pv1-1'"}, ErrNotFound, ""},
		{answer{status: 500, reason: "storage 'tank' does not exist"}, ErrInvalid, "tank"},
		{answer{status: 500, reason: "hostname lookup 'pve9' failed - failed to get address info for: pve9: Name or service not known"}, ErrNoSuchNode, ""},
		{answer{status: 403, reason: "Permission check failed (/vms/901, VM.Clone)"}, ErrForbidden, "needs VM.Clone on /vms/901"},
		{answer{status: 403, reason: "Permission check failed"}, ErrForbidden, "pveum aclmod"},
		{answer{status: 401, reason: "No ticket"}, ErrUnauthorized, "clocks"},
		{answer{status: 500, reason: "cluster not ready - no quorum?"}, ErrNoQuorum, "by itself"},
		{answer{status: 500, reason: "can't lock file '/var/lock/qemu-server/lock-1000.conf' - got timeout"}, ErrLockTimeout, ""},
		{answer{status: 500, reason: "cfs-lock 'storage-ceph' error: got lock request timeout"}, ErrLockTimeout, ""},
		{answer{status: 500, reason: "VM is locked (clone)"}, ErrLocked, ""},
		{answer{status: 500, reason: "unable to create VM 1000: config file already exists"}, ErrAlreadyExists, ""},
		{answer{status: 400, reason: "Parameter verification failed.", errors: map[string]string{"vmid": "VM 1000 already exists"}}, ErrAlreadyExists, ""},
		{answer{status: 400, reason: "Parameter verification failed.", errors: map[string]string{"upid": "no such task"}}, ErrNoSuchTask, ""},
		{answer{status: 400, reason: "Parameter verification failed.", errors: map[string]string{"memory": "type check ('integer') failed - got 'x'"}}, ErrInvalid, "memory: type check"},
		{answer{status: 500, reason: "VM 1000 is running - destroy failed"}, ErrVMRunning, ""},
		{answer{status: 500, reason: "can't remove VM 1000 - protection mode enabled"}, ErrProtected, "protection flag"},
		{answer{status: 500, reason: "unable to remove VM 1000 - used in HA resources and purge parameter not set."}, ErrHAManaged, ""},
		{answer{status: 500, reason: "no such resource 'vm:1000'"}, ErrNotHAManaged, ""},
		{answer{status: 500, reason: "checksum mismatch (file change by other user?)"}, ErrConflict, ""},
		{answer{status: 595, reason: "No route to host"}, ErrUnreachable, ""},
		{answer{status: 596, reason: "Connection timed out"}, ErrUnreachable, ""},
		{answer{status: 596, reason: "ssl3_get_server_certificate: certificate verify failed"}, ErrUntrusted, "short node names"},
		{answer{status: 501, reason: "Method 'GET /x' not implemented"}, ErrUnsupported, ""},
		{answer{status: 500, reason: "can't clone VM to node 'pv1-2' (VM uses local storage)"}, ErrInvalid, ""},
		{answer{status: 500, reason: "something new"}, ErrUnknown, "something new"},
		{answer{hangUp: true}, ErrUnreachable, ""},
	}
	for _, test := range tests {
		t.Run(test.answer.reason, func(t *testing.T) {
			s := newServer(t)
			s.on("GET", "/version", test.answer)
			_, err := s.client(t).Version(context.Background())
			if !errors.Is(err, test.kind) {
				t.Fatalf("got %v, want %v", err, test.kind)
			}
			if !strings.Contains(err.Error(), test.text) {
				t.Errorf("got %q, want %q in it", err, test.text)
			}
		})
	}
}

func TestExitStatusesAreSorted(t *testing.T) {
	tests := map[string]error{
		"clone failed: can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout": ErrLockTimeout,
		"unable to create VM 1000: config file already exists":                                      ErrAlreadyExists,
		"VM 1000 already running":                            ErrVMRunning,
		"unexpected status":                                  ErrInterrupted,
		"received interrupt":                                 ErrInterrupted,
		"disk 'scsi3' does not exist":                        ErrInvalid,
		"shrinking disks is not supported":                   ErrInvalid,
		"volume 'local-lvm:vm-1-disk-0' does not exist":      ErrNoSuchVolume,
		"lvcreate: not enough free space on volume group":    ErrStorageFull,
		"start failed: Cannot allocate memory":               ErrNoMemory,
		"unable to create image: got lock timeout - aborted": ErrLockTimeout,
	}
	for status, kind := range tests {
		if got := kindOfMessage(status); got != kind {
			t.Errorf("%q: got %v, want %v", status, got, kind)
		}
	}
}

func TestOutcomeUnknownOnlyWhenSent(t *testing.T) {
	s := newServer(t)
	s.on("GET", "/version", answer{hangUp: true})
	_, err := s.client(t).Version(context.Background())
	if !OutcomeUnknown(err) {
		t.Errorf("an answer that was lost: got %v, want an unknown outcome", err)
	}
	gone := newServer(t)
	client := gone.client(t)
	gone.Close()
	_, err = client.Version(context.Background())
	if !errors.Is(err, ErrUnreachable) || OutcomeUnknown(err) {
		t.Errorf("a connection that never was: got %v, want unreachable with a known outcome", err)
	}
}

func TestTokenStaysHidden(t *testing.T) {
	secret := strings.Split(string(testToken), "=")[1]
	for _, verb := range []string{"%s", "%v", "%+v", "%#v", "%q"} {
		if text := fmt.Sprintf(verb, testToken); strings.Contains(text, secret) {
			t.Errorf("%s shows the secret: %s", verb, text)
		}
		if text := fmt.Sprintf(verb, Config{Token: testToken}); strings.Contains(text, secret) {
			t.Errorf("%s of a Config shows the secret: %s", verb, text)
		}
	}
	if _, err := New(Config{Endpoints: []string{"https://h:1"}, Token: Token(secret)}); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("a malformed token: got %v", err)
	}
}

func TestTrustIsPinned(t *testing.T) {
	s, other := newServer(t), newServer(t)
	s.on("GET", "/version", answer{data: map[string]string{"version": "9.2.11"}})
	sum := fingerprint(s)
	tests := []struct {
		name   string
		config Config
		want   error
	}{
		{"CA", Config{CA: s.ca()}, nil},
		{"fingerprint", Config{Fingerprints: []string{strings.Repeat("00:", 31) + "00", sum}}, nil},
		{"other fingerprint", Config{Fingerprints: []string{strings.Repeat("00:", 31) + "00"}}, ErrUntrusted},
		{"CA beside another host's fingerprint", Config{CA: s.ca(), Fingerprints: []string{strings.Repeat("00:", 31) + "00"}}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.config.Endpoints, test.config.Token = []string{s.URL}, testToken
			client, err := New(test.config)
			if err != nil {
				t.Fatal(err)
			}
			version, err := client.Version(context.Background())
			if !errors.Is(err, test.want) || test.want == nil && version != "9.2.11" {
				t.Errorf("got %q and %v, want %v", version, err, test.want)
			}
		})
	}
	if _, err := New(Config{Endpoints: []string{other.URL}, Token: testToken}); err == nil {
		t.Error("a client without any trust was made")
	}
}

func TestFailsOverToTheOtherEndpoint(t *testing.T) {
	dead, s := newServer(t), newServer(t)
	dead.Close()
	s.on("GET", "/version", answer{data: map[string]string{"version": "9.2.11"}})
	s.on("POST", "/nodes/pv1-1/qemu/901/clone", answer{data: upid("qmclone", "901")})
	s.noVM(1000)
	s.on("GET", "/nodes/pv1-1/tasks", answer{data: []any{}})
	client := s.client(t, dead.URL)
	if _, err := client.Version(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Clone(context.Background(), CloneSpec{Node: "pv1-1", Template: 901, VMID: 1000, Mark: Mark{Machine: testMachine}}); err != nil {
		t.Fatalf("a write must fail over when it could not be sent: %v", err)
	}
}

func TestWritesThatWereSentAreNotRepeated(t *testing.T) {
	s, second := newServer(t), newServer(t)
	s.vm(1000, false, ours())
	s.on("POST", "/nodes/pv1-1/qemu/1000/status/start", answer{hangUp: true})
	client, err := New(Config{Endpoints: []string{s.URL, second.URL}, Token: testToken, CA: append(s.ca(), second.ca()...)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Start(context.Background(), ref(), nil); !OutcomeUnknown(err) {
		t.Errorf("got %v, want an unknown outcome", err)
	}
	if n := len(s.seen("POST")) + len(second.seen("POST")); n != 1 {
		t.Errorf("the write went out %d times, want once", n)
	}
}
