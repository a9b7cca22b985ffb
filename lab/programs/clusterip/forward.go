package clusterip

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"aether.internal/aether/lab/network"
)

const (
	dialTimeout = 5 * time.Second
	udpIdle     = 30 * time.Second
	udpPacket   = 64 << 10
)

var errNoBackend = errors.New("service has no ready endpoint")

// forwarder serves one port.
type forwarder struct {
	net    *network.Namespace
	front  frontend
	log    *slog.Logger
	ctx    context.Context //nolint:containedctx // the life of the listener, ended by close
	cancel context.CancelFunc
	closer io.Closer

	mu       sync.Mutex
	backends []string
}

func newForwarder(space *network.Namespace, front frontend, log *slog.Logger) (*forwarder, error) {
	ctx, cancel := context.WithCancel(context.Background())
	f := &forwarder{net: space, front: front, log: log, ctx: ctx, cancel: cancel}
	if front.protocol == corev1.ProtocolUDP {
		conn, err := space.ListenPacket("udp4", front.address.String())
		if err != nil {
			cancel()
			return nil, err
		}
		f.closer = conn
		go f.serveUDP(conn)
		return f, nil
	}
	listener, err := space.Listen("tcp4", front.address.String())
	if err != nil {
		cancel()
		return nil, err
	}
	f.closer = listener
	go f.serveTCP(listener)
	return f, nil
}

func (f *forwarder) setBackends(backends []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.backends = backends
}

// close ends the listener and its connections.
func (f *forwarder) close() {
	f.cancel()
	if err := f.closer.Close(); err != nil {
		f.log.Debug("cannot close service port", "service", f.front, "error", err)
	}
}

// dial connects to a backend; those that refuse are passed over.
func (f *forwarder) dial(protocol string) (net.Conn, error) {
	f.mu.Lock()
	backends := f.backends
	f.mu.Unlock()
	err := errNoBackend
	for _, i := range rand.Perm(len(backends)) { //nolint:gosec // spreading load needs no secret
		ctx, cancel := context.WithTimeout(f.ctx, dialTimeout)
		var conn net.Conn
		conn, err = f.net.DialContext(ctx, protocol, backends[i])
		cancel()
		if err == nil {
			return conn, nil
		}
	}
	return nil, err
}

func (f *forwarder) serveTCP(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // closed
		}
		go f.join(client)
	}
}

// join copies both ways until both ends are done.
func (f *forwarder) join(client net.Conn) {
	defer client.Close() //nolint:errcheck // nothing is buffered
	backend, err := f.dial("tcp4")
	if err != nil {
		f.log.Debug("cannot connect to a backend", "service", f.front, "error", err)
		return
	}
	defer backend.Close() //nolint:errcheck // nothing is buffered
	stop := context.AfterFunc(f.ctx, func() {
		_ = client.Close() // ends the copies below
		_ = backend.Close()
	})
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pipe(backend, client)
	}()
	pipe(client, backend)
	<-done
}

// pipe copies one way and hands the end of the stream on.
func pipe(to, from net.Conn) {
	_, err := io.Copy(to, from)
	half, ok := to.(*net.TCPConn)
	if !ok || err != nil {
		_ = to.Close() // a broken direction breaks the connection
		return
	}
	_ = half.CloseWrite() // the other end has closed before
}

// serveUDP keeps one socket per client, as a connection table does.
func (f *forwarder) serveUDP(conn net.PacketConn) {
	var mu sync.Mutex
	flows := map[string]net.Conn{}
	buffer := make([]byte, udpPacket)
	for {
		n, client, err := conn.ReadFrom(buffer)
		if err != nil {
			return // closed
		}
		mu.Lock()
		flow, ok := flows[client.String()]
		mu.Unlock()
		if !ok {
			if flow, err = f.dial("udp4"); err != nil {
				f.log.Debug("cannot connect to a backend", "service", f.front, "error", err)
				continue
			}
			mu.Lock()
			flows[client.String()] = flow
			mu.Unlock()
			go func() {
				f.answer(conn, client, flow)
				mu.Lock()
				defer mu.Unlock()
				delete(flows, client.String())
			}()
		}
		if _, err := flow.Write(buffer[:n]); err != nil {
			f.log.Debug("cannot send to a backend", "service", f.front, "error", err)
		}
	}
}

// answer brings a backend's packets back until the flow is idle.
func (f *forwarder) answer(conn net.PacketConn, client net.Addr, flow net.Conn) {
	defer flow.Close() //nolint:errcheck // a datagram socket
	stop := context.AfterFunc(f.ctx, func() { _ = flow.Close() })
	defer stop()
	buffer := make([]byte, udpPacket)
	for {
		if err := flow.SetReadDeadline(time.Now().Add(udpIdle)); err != nil {
			return
		}
		n, err := flow.Read(buffer)
		if err != nil {
			return // idle, closed or refused
		}
		if _, err := conn.WriteTo(buffer[:n], client); err != nil {
			return
		}
	}
}
