package door

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
)

func signer(t *testing.T) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type flushes struct {
	mu   sync.Mutex
	seen []string
}

func (f *flushes) flush(device string, ip netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, ip.String()+"%"+device)
	if device == "missing" {
		return errors.New(`Cannot find device "missing"`)
	}
	return nil
}

func open(t *testing.T, key ssh.Signer, f *flushes) (*Door, string) {
	t.Helper()
	d, err := New([]ssh.PublicKey{key.PublicKey()}, f.flush, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = d.Serve(t.Context(), l) }()
	t.Cleanup(d.Close)
	return d, l.Addr().String()
}

func dial(address, user string, d *Door, key ssh.Signer) (*ssh.Client, error) {
	return ssh.Dial("tcp", address, &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.FixedHostKey(d.HostKey()),
	})
}

func TestCommands(t *testing.T) {
	key, f := signer(t), &flushes{}
	d, address := open(t, key, f)
	client, err := dial(address, "root", d, key)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	for command, want := range map[string]struct {
		flushed string
		status  int
	}{
		"ip neigh flush 10.1.1.10":                     {"10.1.1.10%", 0},
		"ip neigh flush to 10.1.1.10":                  {"10.1.1.10%", 0},
		"ip neigh flush 10.1.1.10 dev vmbr1":           {"10.1.1.10%vmbr1", 0},
		"ip neigh flush to 10.1.1.10 dev vmbr1":        {"10.1.1.10%vmbr1", 0},
		"ip  neigh flush dev vmbr1 to fd00::1":         {"fd00::1%vmbr1", 0},
		"ip neigh flush 10.1.1.10 dev missing":         {"10.1.1.10%missing", 1},
		"ip neigh flush all":                           {"", statusRefused},
		"ip neigh flush dev vmbr1":                     {"", statusRefused},
		"ip neigh flush 10.1.1.10; reboot":             {"", statusRefused},
		"ip neigh flush 10.1.1.10 dev vmbr1;reboot":    {"", statusRefused},
		"ip neigh flush 10.1.1.10 dev $(reboot)":       {"", statusRefused},
		"ip neigh flush 10.1.1.10 10.1.1.11":           {"", statusRefused},
		"ip neigh del 10.1.1.10 dev vmbr1":             {"", statusRefused},
		"qm list":                                      {"", statusRefused},
		"sh -c 'ip neigh flush 10.1.1.10'":             {"", statusRefused},
		"ip neigh flush 10.1.1.10 dev averyveryverylo": {"10.1.1.10%averyveryverylo", 0},
		"": {"", statusRefused},
	} {
		t.Run(command, func(t *testing.T) {
			f.seen = nil
			session, err := client.NewSession()
			if err != nil {
				t.Fatal(err)
			}
			var stderr bytes.Buffer
			session.Stderr = &stderr
			err = session.Run(command)
			var exit *ssh.ExitError
			status := 0
			if errors.As(err, &exit) {
				status = exit.ExitStatus()
			} else if err != nil {
				t.Fatal(err)
			}
			if status != want.status || strings.Join(f.seen, " ") != want.flushed {
				t.Errorf("status %d flushed %q, want %+v", status, f.seen, want)
			}
			if want.status != 0 && stderr.Len() == 0 {
				t.Error("nothing says why")
			}
		})
	}
}

func TestNothingElse(t *testing.T) {
	key := signer(t)
	d, address := open(t, key, &flushes{})
	if _, err := dial(address, "root", d, signer(t)); err == nil {
		t.Error("a stranger's key came in")
	}
	if _, err := dial(address, "admin", d, key); err == nil {
		t.Error("another user came in")
	}
	client, err := dial(address, "root", d, key)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if _, err := client.Dial("tcp", "127.0.0.1:1"); err == nil {
		t.Error("forwarding is open")
	}
	for name, try := range map[string]func(*ssh.Session) error{
		"shell":     func(s *ssh.Session) error { return s.Shell() },
		"terminal":  func(s *ssh.Session) error { return s.RequestPty("xterm", 24, 80, nil) },
		"subsystem": func(s *ssh.Session) error { return s.RequestSubsystem("sftp") },
		"setenv":    func(s *ssh.Session) error { return s.Setenv("LD_PRELOAD", "x") },
	} {
		session, err := client.NewSession()
		if err != nil {
			t.Fatal(err)
		}
		if err := try(session); err == nil {
			t.Errorf("%s was allowed", name)
		}
		_ = session.Close()
	}
}
