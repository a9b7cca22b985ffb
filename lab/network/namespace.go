package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Namespace is one network namespace. Its methods may be called from any
// goroutine.
type Namespace struct {
	name   string
	handle netns.NsHandle
	nl     *netlink.Handle

	closeOnce sync.Once
}

// NewNamespace makes a network namespace with its loopback up. The name is for
// people; nothing in the file system carries it.
func NewNamespace(name string) (*Namespace, error) {
	handle, err := createNamespace()
	if err != nil {
		return nil, fmt.Errorf("make network namespace %s: %w", name, err)
	}
	n, err := wrap(name, handle)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(n.setDefaults(), n.setUp("lo")); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Here returns the namespace that the process itself runs in: in the lab, the
// platform's.
func Here() (*Namespace, error) {
	handle, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("open own network namespace: %w", err)
	}
	n, err := wrap("platform", handle)
	if err != nil {
		return nil, err
	}
	if err := n.setUp("lo"); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func createNamespace() (netns.NsHandle, error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return netns.None(), err
	}
	defer closeHandle(home)
	handle, err := netns.New()
	if err != nil {
		runtime.UnlockOSThread()
		return netns.None(), err
	}
	if err := netns.Set(home); err != nil {
		// The thread stays locked, so that it ends with this goroutine
		// instead of running others in the wrong namespace.
		return netns.None(), errors.Join(err, handle.Close())
	}
	runtime.UnlockOSThread()
	return handle, nil
}

func wrap(name string, handle netns.NsHandle) (*Namespace, error) {
	nl, err := netlink.NewHandleAt(handle)
	if err != nil {
		closeHandle(handle)
		return nil, fmt.Errorf("open netlink in namespace %s: %w", name, err)
	}
	return &Namespace{name: name, handle: handle, nl: nl}, nil
}

// closeHandle closes a descriptor whose loss cannot be acted upon.
func closeHandle(handle netns.NsHandle) { _ = handle.Close() }

// Name returns the name that the namespace was made with.
func (n *Namespace) Name() string { return n.name }

// Do calls f on a thread that is inside the namespace. Sockets that f makes
// and processes that it starts belong to the namespace for good; goroutines
// that it starts do not run in it.
func (n *Namespace) Do(f func() error) (err error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer closeHandle(home)
	if err := netns.Set(n.handle); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace %s: %w", n.name, err)
	}
	defer func() {
		if back := netns.Set(home); back != nil {
			// Locked on purpose: see createNamespace.
			err = errors.Join(err, fmt.Errorf("leave network namespace %s: %w", n.name, back))
			return
		}
		runtime.UnlockOSThread()
	}()
	return f()
}

// Listen opens a stream listener inside the namespace.
func (n *Namespace) Listen(network, address string) (net.Listener, error) {
	var listener net.Listener
	err := n.Do(func() error {
		var err error
		listener, err = (&net.ListenConfig{}).Listen(context.Background(), network, address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", n.name, err)
	}
	return listener, nil
}

// ListenPacket opens a packet socket inside the namespace.
func (n *Namespace) ListenPacket(network, address string) (net.PacketConn, error) {
	var conn net.PacketConn
	err := n.Do(func() error {
		var err error
		conn, err = (&net.ListenConfig{}).ListenPacket(context.Background(), network, address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", n.name, err)
	}
	return conn, nil
}

// DialContext connects from inside the namespace. The address must be literal,
// as 192.168.0.5:443: a resolver would run outside of the namespace.
func (n *Namespace) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("address: %q is not an IP address with a port; resolve names before dialling from %s: %w", address, n.name, err)
	}
	var conn net.Conn
	err := n.Do(func() error {
		var err error
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("dial from %s: %w", n.name, err)
	}
	return conn, nil
}

// Start starts the command inside the namespace.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	return n.Do(cmd.Start)
}

// Close lets go of the namespace. The kernel frees it, with all links in it,
// when the last process and socket in it has ended.
func (n *Namespace) Close() error {
	var err error
	n.closeOnce.Do(func() {
		n.nl.Close()
		err = n.handle.Close()
	})
	if err != nil {
		return fmt.Errorf("close network namespace %s: %w", n.name, err)
	}
	return nil
}
