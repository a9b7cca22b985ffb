package relay

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// The sides speak one line each before the bytes flow: the address that is
// wanted, and "ok" or why not.
const (
	answerOK = "ok"
	maxLine  = 1024
	// lineTime bounds how long a side may take for its line.
	lineTime = 15 * time.Second
)

// RefusedError is the inside's answer that an address cannot be reached.
type RefusedError struct {
	Target string
	Reason string
}

// Error names the address and the inside's reason.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("the lab cannot reach %s: %s", e.Target, e.Reason)
}

var errLineTooLong = errors.New("the line is too long")

// readLine reads a line and no byte more.
func readLine(r *bufio.Reader) (string, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return "", errLineTooLong
	}
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(string(line), "\n"), nil
}

// checkTarget wants a literal address with a port, for the inside has no
// resolver of its own.
func checkTarget(target string) error {
	if _, err := netip.ParseAddrPort(target); err != nil {
		return fmt.Errorf("target: %q is not an IP address with a port, as 192.168.0.2:6443", target)
	}
	return nil
}

// buffered is a connection of which some bytes were already read.
type buffered struct {
	net.Conn
	reader *bufio.Reader
}

// Read takes what was read ahead first.
func (b buffered) Read(p []byte) (int, error) { return b.reader.Read(p) }

// CloseWrite ends one direction, where the connection can.
func (b buffered) CloseWrite() error { return closeWrite(b.Conn) }

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// join passes bytes both ways until both directions have ended, and closes
// both connections.
func join(a, b net.Conn) {
	var both sync.WaitGroup
	pass := func(to, from net.Conn) {
		// Ends and failures look the same to the other side: the stream ends.
		if _, err := io.Copy(to, from); err != nil {
			_ = to.Close()
			_ = from.Close()
			return
		}
		_ = closeWrite(to)
	}
	both.Go(func() { pass(a, b) })
	both.Go(func() { pass(b, a) })
	both.Wait()
	_ = a.Close()
	_ = b.Close()
}

// live holds the open connections of a side, so that its end ends them.
type live struct {
	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
	work   sync.WaitGroup
}

// serve accepts until the listener is closed and handles each connection in a
// goroutine of its own.
func (l *live) serve(listener net.Listener, handle func(net.Conn)) error {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept on %s: %w", listener.Addr(), err)
		}
		if !l.add(conn) {
			_ = conn.Close()
			continue
		}
		l.work.Go(func() {
			defer l.remove(conn)
			handle(conn)
		})
	}
}

func (l *live) add(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if l.conns == nil {
		l.conns = map[net.Conn]struct{}{}
	}
	l.conns[c] = struct{}{}
	return true
}

func (l *live) remove(c net.Conn) {
	_ = c.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// end closes all connections and waits for their goroutines.
func (l *live) end() {
	l.mu.Lock()
	l.closed = true
	for c := range l.conns {
		_ = c.Close()
	}
	l.mu.Unlock()
	l.work.Wait()
}
