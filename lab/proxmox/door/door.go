package door

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
)

// Flush removes neighbour entries of an address from one device, or from all
// when device is empty.
type Flush func(device string, ip netip.Addr) error

// Door is the SSH server of one host.
type Door struct {
	config *ssh.ServerConfig
	host   ssh.PublicKey
	flush  Flush
	log    *slog.Logger

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	closed   bool
}

const statusRefused = 126

// New returns a door with a host key of its own, open to those keys as root.
func New(keys []ssh.PublicKey, flush Flush, log *slog.Logger) (*Door, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make host key: %w", err)
	}
	signer, err := ssh.NewSignerFromSigner(private)
	if err != nil {
		return nil, fmt.Errorf("use host key: %w", err)
	}
	d := &Door{host: signer.PublicKey(), flush: flush, log: log, conns: map[net.Conn]bool{}}
	d.config = &ssh.ServerConfig{
		PublicKeyCallback: func(meta ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			known := slices.ContainsFunc(keys, func(k ssh.PublicKey) bool { return bytes.Equal(k.Marshal(), key.Marshal()) })
			if meta.User() != "root" || !known {
				return nil, errors.New("permission denied")
			}
			return &ssh.Permissions{}, nil
		},
	}
	d.config.AddHostKey(signer)
	return d, nil
}

// HostKey returns the key that the host shows, for a client's known_hosts.
func (d *Door) HostKey() ssh.PublicKey { return d.host }

// Serve accepts connections until Close and returns nil then.
func (d *Door) Serve(_ context.Context, l net.Listener) error {
	d.mu.Lock()
	d.listener, d.closed = l, false
	d.mu.Unlock()
	for {
		conn, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		go d.serveConn(conn)
	}
}

// Close cuts all connections. The door can be served again.
func (d *Door) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.listener != nil {
		_ = d.listener.Close()
	}
	for conn := range d.conns {
		_ = conn.Close()
	}
}

func (d *Door) track(conn net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns[conn] = true
	return !d.closed
}

func (d *Door) serveConn(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		d.mu.Lock()
		delete(d.conns, conn)
		d.mu.Unlock()
	}()
	if !d.track(conn) {
		return
	}
	_, channels, requests, err := ssh.NewServerConn(conn, d.config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for incoming := range channels {
		if incoming.ChannelType() != "session" {
			_ = incoming.Reject(ssh.Prohibited, "only sessions are allowed here")
			continue
		}
		channel, requests, err := incoming.Accept()
		if err != nil {
			return
		}
		go d.session(channel, requests)
	}
}

func (d *Door) session(channel ssh.Channel, requests <-chan *ssh.Request) {
	defer func() { _ = channel.Close() }()
	for request := range requests {
		if request.Type != "exec" {
			_ = request.Reply(false, nil)
			continue
		}
		var payload struct{ Command string }
		if ssh.Unmarshal(request.Payload, &payload) != nil {
			_ = request.Reply(false, nil)
			continue
		}
		_ = request.Reply(true, nil)
		status := d.run(channel, payload.Command)
		_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{status}))
		return
	}
}

func (d *Door) run(channel ssh.Channel, command string) uint32 {
	device, ip, err := parse(command)
	if err != nil {
		_, _ = fmt.Fprintln(channel.Stderr(), err)
		return statusRefused
	}
	d.log.Debug("flush neighbour", "device", device, "ip", ip.String())
	if err := d.flush(device, ip); err != nil {
		_, _ = fmt.Fprintln(channel.Stderr(), err)
		return 1
	}
	return 0
}

func parse(command string) (device string, ip netip.Addr, err error) {
	refused := errors.New("command: not allowed; this key may only run 'ip neigh flush [to] <ip> [dev <device>]'")
	words := strings.Fields(command)
	if len(words) < 4 || !slices.Equal(words[:3], []string{"ip", "neigh", "flush"}) {
		return "", netip.Addr{}, refused
	}
	var address string
	for rest := words[3:]; len(rest) > 0; {
		switch {
		case rest[0] == "dev" && len(rest) > 1 && device == "":
			device, rest = rest[1], rest[2:]
		case rest[0] == "to" && len(rest) > 1 && address == "":
			address, rest = rest[1], rest[2:]
		case address == "":
			address, rest = rest[0], rest[1:]
		default:
			return "", netip.Addr{}, refused
		}
	}
	ip, err = netip.ParseAddr(address)
	if err != nil || !validDevice(device) {
		return "", netip.Addr{}, refused
	}
	return device, ip, nil
}

// validDevice takes names that the kernel takes, and none.
func validDevice(name string) bool {
	const maxName = 15
	return len(name) <= maxName && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	})
}
