package proxmox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

const doorTimeout = 10 * time.Second

// DoorConfig says how to log in to the hosts of a cluster.
type DoorConfig struct {
	User       string
	Port       int // 0: 22
	Key        []byte
	KnownHosts []string // lines of known_hosts
	// Dial replaces the dialer. Nil: the usual one.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Door is the SSH door to the hosts of a cluster. It flushes neighbour caches
// and nothing else, since Proxmox's API cannot.
type Door struct {
	client ssh.ClientConfig
	signer ssh.Signer
	port   int
	dial   dialFunc
}

// NewDoor returns the door. It does not connect.
func NewDoor(config DoorConfig) (*Door, error) {
	signer, err := ssh.ParsePrivateKey(config.Key)
	if err != nil {
		return nil, errors.New("the SSH key of the door is no private key without a passphrase")
	}
	check, err := hostKeys(config.KnownHosts)
	if err != nil {
		return nil, err
	}
	door := &Door{
		client: ssh.ClientConfig{User: config.User, HostKeyCallback: check, Timeout: doorTimeout},
		signer: signer, port: config.Port, dial: config.Dial,
	}
	if door.port == 0 {
		door.port = 22
	}
	if door.dial == nil {
		door.dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	return door, nil
}

// hostKeys makes a check out of known_hosts lines. The package that reads them
// wants a file, and has read it when it returns.
func hostKeys(lines []string) (ssh.HostKeyCallback, error) {
	file, err := os.CreateTemp("", "aether-known-hosts-*")
	if err != nil {
		return nil, fmt.Errorf("check host keys: %w", err)
	}
	defer func() { _ = os.Remove(file.Name()) }()
	_, err = file.WriteString(strings.Join(lines, "\n") + "\n")
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("check host keys: %w", err)
	}
	check, err := knownhosts.New(file.Name())
	if err != nil {
		return nil, errors.New("the known hosts of the SSH door do not parse; give lines as ssh-keyscan prints them")
	}
	return check, nil
}

// FlushNeighbour makes a host forget the hardware address of ip on a bridge.
// It can be repeated.
func (d *Door) FlushNeighbour(ctx context.Context, host netip.Addr, device string, ip netip.Addr) error {
	op := fmt.Sprintf("flush neighbour %s on %s of host %s", ip, device, host)
	// Both end up in a shell on the host.
	if !regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_.]{0,14}$`).MatchString(device) || !ip.IsValid() || ip.Zone() != "" {
		return &Error{Op: op, Kind: ErrInvalid, Message: "give the name of a bridge and an address"}
	}
	ctx, cancel := context.WithTimeout(ctx, doorTimeout)
	defer cancel()
	client, err := d.connect(ctx, net.JoinHostPort(host.String(), strconv.Itoa(d.port)))
	if err != nil {
		return doorError(op, err)
	}
	defer func() { _ = client.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = client.Close() })
	defer stop()
	session, err := client.NewSession()
	if err != nil {
		return doorError(op, err)
	}
	var output bytes.Buffer
	session.Stderr = &output
	if err := session.Run(fmt.Sprintf("ip neigh flush to %s dev %s", ip, device)); err != nil {
		var exit *ssh.ExitError
		if errors.As(err, &exit) {
			return &Error{Op: op, Kind: ErrInvalid, Message: fmt.Sprintf("ip neigh ended with status %d: %s", exit.ExitStatus(), strings.TrimSpace(output.String()))}
		}
		return doorError(op, err)
	}
	return nil
}

func (d *Door) connect(ctx context.Context, address string) (*ssh.Client, error) {
	connection, err := d.dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	// The handshake knows no context: end it by closing the connection.
	stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
	defer stop()
	client, offered := d.client, false
	client.Auth = []ssh.AuthMethod{ssh.PublicKeysCallback(func() ([]ssh.Signer, error) {
		offered = true
		return []ssh.Signer{d.signer}, nil
	})}
	secure, channels, requests, err := ssh.NewClientConn(connection, address, &client)
	if err != nil {
		_ = connection.Close()
		var broken net.Error
		if offered && ctx.Err() == nil && !errors.As(err, &broken) && !errors.Is(err, io.EOF) {
			return nil, errKeyRefused
		}
		return nil, err
	}
	return ssh.NewClient(secure, channels, requests), nil
}

// errKeyRefused: the handshake ended after the key was offered. The SSH package
// has no type for it.
var errKeyRefused = errors.New("the key is refused")

func doorError(op string, err error) error {
	e := &Error{Op: op, Kind: ErrUnreachable, Message: err.Error(), cause: cancellation(err)}
	var key *knownhosts.KeyError
	switch {
	case errors.As(err, &key):
		e.Kind = ErrUntrusted
		e.Message = "the host's SSH key is not among the known hosts; compare it and add what ssh-keyscan prints"
	case errors.Is(err, errKeyRefused):
		e.Kind = ErrUnauthorized
		e.Message = "the host does not accept the SSH key; add its public part to the user's authorized_keys"
	}
	return e
}
