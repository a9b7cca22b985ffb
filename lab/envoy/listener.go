package envoy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"golang.org/x/sys/unix"
)

// listener is one configuration of an address with what passes through it.
type listener struct {
	config  *listenerv3.Listener
	address string
	filter  *passthrough
	socket  *socket
	stats   *stats
	prefix  string

	mu          sync.Mutex
	connections map[net.Conn]struct{}
	timer       *time.Timer
}

// newListener checks a configuration; it binds nothing.
func (p *proxy) newListener(config *listenerv3.Listener) (*listener, error) {
	if err := config.ValidateAll(); err != nil {
		return nil, fmt.Errorf("Proto constraint validation failed (%w)", err) //nolint:staticcheck // the real one's text
	}
	address, err := socketAddress(config.GetAddress())
	if err != nil {
		return nil, err
	}
	chains := config.GetFilterChains()
	switch {
	case len(chains) == 0:
		return nil, fmt.Errorf("error adding listener '%s': no filter chains specified", address)
	case len(chains) > 1 || chains[0].GetFilterChainMatch() != nil || chains[0].GetTransportSocket() != nil || len(config.GetListenerFilters()) > 0:
		return nil, errors.New("only one filter chain without match, transport socket and listener filters is supported by this stand-in")
	}
	filter, err := p.newPassthrough(chains[0].GetFilters())
	if err != nil {
		return nil, err
	}
	prefix := config.GetStatPrefix()
	if prefix == "" {
		prefix = address
	}
	return &listener{
		config: config, address: address, filter: filter, stats: p.stats,
		prefix: "listener." + prefix + ".", connections: map[net.Conn]struct{}{},
	}, nil
}

// start takes over what the socket accepts from now on.
func (l *listener) start() { l.socket.serve(l.handle) }

func (l *listener) handle(connection *net.TCPConn) {
	l.mu.Lock()
	l.connections[connection] = struct{}{}
	l.mu.Unlock()
	l.stats.add(l.prefix+"downstream_cx_total", 1)
	l.stats.add(l.prefix+"downstream_cx_active", 1)
	l.filter.pass(connection)
	l.stats.add(l.prefix+"downstream_cx_active", -1)
	l.mu.Lock()
	delete(l.connections, connection)
	l.mu.Unlock()
}

// retire gives the socket up. Connections may end by themselves within the
// drain time; what is left then is cut.
func (l *listener) retire(drain time.Duration) {
	l.socket.release()
	if drain == 0 {
		l.cut()
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(drain, l.cut)
}

func (l *listener) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for connection := range l.connections {
		_ = connection.Close()
	}
}

// socket is a bound address. It outlives the listener that made it, when the
// next one has the same address.
type socket struct {
	listener *net.TCPListener

	mu      sync.Mutex
	users   int
	handler func(*net.TCPConn)
}

// listen binds, with the socket options of the listener. Go's own keep-alive is
// off, so that those options are what accepted connections inherit.
func listen(address string, options []*core.SocketOption) (*socket, error) {
	config := net.ListenConfig{KeepAlive: -1, Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = setOptions(int(fd), options) })
		return errors.Join(err, failed)
	}}
	bound, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		reason := err
		var number syscall.Errno
		if errors.As(err, &number) {
			reason = number
		}
		return nil, fmt.Errorf("cannot bind '%s': %w", address, reason)
	}
	tcp, isTCP := bound.(*net.TCPListener)
	if !isTCP {
		return nil, errors.Join(fmt.Errorf("cannot bind '%s': not TCP", address), bound.Close())
	}
	return &socket{listener: tcp, users: 1}, nil
}

func setOptions(fd int, options []*core.SocketOption) error {
	for _, option := range options {
		value, isInt := option.GetValue().(*core.SocketOption_IntValue)
		if !isInt {
			return fmt.Errorf("socket option %s: only whole numbers are supported by this stand-in", option.GetDescription())
		}
		if err := unix.SetsockoptInt(fd, int(option.GetLevel()), int(option.GetName()), int(value.IntValue)); err != nil {
			return fmt.Errorf("setting socket option %s failed: %w", option.GetDescription(), err)
		}
	}
	return nil
}

// share counts one more user.
func (s *socket) share() *socket {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
	return s
}

// serve sets who handles new connections, and begins to accept them.
func (s *socket) serve(handler func(*net.TCPConn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	begin := s.handler == nil
	s.handler = handler
	if begin {
		go s.accept()
	}
}

func (s *socket) accept() {
	for {
		connection, err := s.listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as no file descriptors: wait for some
			time.Sleep(10 * time.Millisecond)
			continue
		}
		s.mu.Lock()
		handler := s.handler
		s.mu.Unlock()
		go handler(connection)
	}
}

// release closes the socket with its last user.
func (s *socket) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 {
		_ = s.listener.Close()
	}
}
