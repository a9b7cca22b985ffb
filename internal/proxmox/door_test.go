package proxmox

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// sshServer accepts one key and records the commands it is asked to run.
type sshServer struct {
	address  string
	host     ssh.Signer
	exit     byte
	mu       sync.Mutex
	commands []string
}

func key(t *testing.T) (ssh.Signer, []byte) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	return signer, pem.EncodeToMemory(block)
}

func newSSHServer(t *testing.T, accepted ssh.PublicKey) *sshServer {
	t.Helper()
	host, _ := key(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	s := &sshServer{address: listener.Addr().String(), host: host}
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, offered ssh.PublicKey) (*ssh.Permissions, error) {
		if string(offered.Marshal()) != string(accepted.Marshal()) {
			return nil, errors.New("unknown key")
		}
		return nil, nil
	}}
	config.AddHostKey(host)
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go s.serve(connection, config)
		}
	}()
	return s
}

func (s *sshServer) serve(connection net.Conn, config *ssh.ServerConfig) {
	_, channels, requests, err := ssh.NewServerConn(connection, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for offer := range channels {
		channel, requests, err := offer.Accept()
		if err != nil {
			return
		}
		for request := range requests {
			var command struct{ Text string }
			_ = ssh.Unmarshal(request.Payload, &command)
			s.mu.Lock()
			s.commands = append(s.commands, command.Text)
			s.mu.Unlock()
			_ = request.Reply(true, nil)
			_, _ = channel.Stderr().Write([]byte("Cannot find device\n"))
			_, _ = channel.SendRequest("exit-status", false, []byte{0, 0, 0, s.exit})
			_ = channel.Close()
		}
	}
}

func TestFlushNeighbour(t *testing.T) {
	signer, private := key(t)
	other, otherPrivate := key(t)
	s := newSSHServer(t, signer.PublicKey())
	_, port, err := net.SplitHostPort(s.address)
	if err != nil {
		t.Fatal(err)
	}
	known := knownhosts.Line([]string{s.address}, s.host.PublicKey())
	wrong := knownhosts.Line([]string{s.address}, other.PublicKey())
	ip := netip.MustParseAddr("10.1.1.10")
	flush := func(config DoorConfig, device string) error {
		config.User = "aether"
		config.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, s.address)
		}
		door, err := NewDoor(config)
		if err != nil {
			return err
		}
		door.port = number(port)
		return door.FlushNeighbour(context.Background(), netip.MustParseAddr("127.0.0.1"), device, ip)
	}
	if err := flush(DoorConfig{Key: private, KnownHosts: []string{known}}, "vmbr1"); err != nil {
		t.Fatal(err)
	}
	if len(s.commands) != 1 || s.commands[0] != "ip neigh flush to 10.1.1.10 dev vmbr1" {
		t.Errorf("commands: %v", s.commands)
	}
	for name, test := range map[string]struct {
		config DoorConfig
		device string
		kind   error
	}{
		"wrong host key":  {DoorConfig{Key: private, KnownHosts: []string{wrong}}, "vmbr1", ErrUntrusted},
		"unknown host":    {DoorConfig{Key: private}, "vmbr1", ErrUntrusted},
		"wrong key":       {DoorConfig{Key: otherPrivate, KnownHosts: []string{known}}, "vmbr1", ErrUnauthorized},
		"shell injection": {DoorConfig{Key: private, KnownHosts: []string{known}}, "vmbr1; reboot", ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			if err := flush(test.config, test.device); !errors.Is(err, test.kind) {
				t.Errorf("got %v, want %v", err, test.kind)
			}
		})
	}
	s.exit = 1
	if err := flush(DoorConfig{Key: private, KnownHosts: []string{known}}, "vmbr9"); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "Cannot find device") {
		t.Errorf("a failing command: got %v", err)
	}
	if _, err := NewDoor(DoorConfig{Key: []byte("no key")}); err == nil || strings.Contains(err.Error(), "no key\"") {
		t.Errorf("a broken key: got %v", err)
	}
}
