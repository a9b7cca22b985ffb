package services

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"
)

const dialTimeout = 3 * time.Second

// target is where a port leads to.
type target struct {
	namespace, service, port string
	ranges                   string // allowed clients, joined; empty allows all
}

// front is an open port.
type front struct {
	to       target
	listener net.Listener
	cancel   context.CancelFunc
	done     sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func (f *front) serves(to target) bool { return f.to == to }

// open listens on a port and relays from it.
func (b *Balancer) open(ctx context.Context, key frontKey, to target) error {
	if b.fronts[key] != nil {
		return nil
	}
	listener, err := b.cfg.Net.Listen("tcp", net.JoinHostPort(key.address.String(), strconv.Itoa(int(key.port))))
	if err != nil {
		return fmt.Errorf("service %s/%s: %w", to.namespace, to.service, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	f := &front{to: to, listener: listener, cancel: cancel, conns: map[net.Conn]struct{}{}}
	b.fronts[key] = f
	f.done.Go(func() { b.accept(ctx, f) })
	return nil
}

func (b *Balancer) accept(ctx context.Context, f *front) {
	for {
		conn, err := f.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			b.cfg.Log.Warn("accept", "service", f.to.service, "error", err)
			continue
		}
		f.done.Go(func() { b.relay(ctx, f, conn) })
	}
}

// relay carries one connection. Without a ready pod it is reset, as a service
// proxy rejects it.
func (b *Balancer) relay(ctx context.Context, f *front, client net.Conn) {
	if !f.keep(client) {
		reset(client)
		return
	}
	defer f.drop(client)
	if !allowed(client.RemoteAddr(), f.to.ranges) {
		reset(client)
		return
	}
	backend, err := b.dial(ctx, f.to)
	if err != nil {
		b.cfg.Log.Debug("no backend", "service", f.to.namespace+"/"+f.to.service, "error", err)
		reset(client)
		return
	}
	if !f.keep(backend) {
		reset(client)
		reset(backend)
		return
	}
	defer f.drop(backend)
	pipe(client, backend)
}

var errNoBackend = errors.New("no ready endpoint")

// dial tries the ready pods in random order.
func (b *Balancer) dial(ctx context.Context, to target) (net.Conn, error) {
	backends := b.backends(to.namespace, to.service, to.port)
	rand.Shuffle(len(backends), func(i, j int) { backends[i], backends[j] = backends[j], backends[i] })
	last := errNoBackend
	for _, address := range backends {
		attempt, cancel := context.WithTimeout(ctx, dialTimeout)
		conn, err := b.cfg.Net.DialContext(attempt, "tcp", address)
		cancel()
		if err == nil {
			return conn, nil
		}
		last = err
	}
	return nil, last
}

// pipe copies both ways. The end of one direction is passed on as such, so
// that a half-closed connection still carries the other; an error ends both.
func pipe(a, b net.Conn) {
	var both sync.WaitGroup
	both.Go(func() { oneWay(a, b) })
	both.Go(func() { oneWay(b, a) })
	both.Wait()
	_ = a.Close() // both directions have ended: there is nothing left to lose
	_ = b.Close()
}

func oneWay(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		reset(to)
		reset(from)
		return
	}
	half, ok := to.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		_ = to.Close() // it cannot be half closed, or is closed already
	}
}

// reset closes so that the other side sees an error, not an end.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // only fails on a closed connection
	}
	_ = conn.Close()
}

func allowed(from net.Addr, ranges string) bool {
	if ranges == "" {
		return true
	}
	client, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return false
	}
	for _, text := range strings.Split(ranges, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err == nil && prefix.Contains(client.Addr().Unmap()) {
			return true
		}
	}
	return false
}

// keep remembers a connection so that close ends it; false after close.
func (f *front) keep(conn net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conns == nil {
		return false
	}
	f.conns[conn] = struct{}{}
	return true
}

func (f *front) drop(conn net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, conn)
}

// close ends the port and its connections, and waits for them.
func (f *front) close() {
	f.cancel()
	_ = f.listener.Close() // ends accept
	f.mu.Lock()
	conns := f.conns
	f.conns = nil
	f.mu.Unlock()
	for conn := range conns {
		reset(conn)
	}
	f.done.Wait()
}
