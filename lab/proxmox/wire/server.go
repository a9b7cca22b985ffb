package wire

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Handler answers one request. The context ends with the server, not with the
// connection: PVE finishes what it began when a client goes away.
type Handler func(ctx context.Context, r *Request) Response

// Server serves one listener.
type Server struct {
	tls     *tls.Config
	handler Handler
	log     *slog.Logger

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	closed   bool
	wg       sync.WaitGroup
}

// NewServer returns a server with that certificate.
func NewServer(cert tls.Certificate, handler Handler, log *slog.Logger) *Server {
	return &Server{
		tls:     &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		handler: handler, log: log, conns: map[net.Conn]bool{},
	}
}

// Serve accepts connections until Close and returns nil then.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return l.Close()
	}
	s.listener = l
	s.mu.Unlock()
	for {
		conn, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		if !s.track(conn) {
			continue
		}
		go func() {
			defer s.wg.Done()
			defer s.untrack(conn)
			s.serveConn(ctx, conn)
		}()
	}
}

func (s *Server) track(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = conn.Close()
		return false
	}
	s.conns[conn] = true
	s.wg.Add(1)
	return true
}

func (s *Server) untrack(conn net.Conn) {
	_ = conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
}

// Close cuts all connections, at once and without an answer, as a host does
// that loses power.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	if s.listener != nil {
		_ = s.listener.Close()
	}
	for conn := range s.conns {
		_ = conn.Close()
	}
	s.mu.Unlock()
}

// Wait returns when all handlers have returned; call it after Close.
func (s *Server) Wait() { s.wg.Wait() }

// peeked is a connection whose first bytes were looked at.
type peeked struct {
	net.Conn
	r *bufio.Reader
}

// Read implements io.Reader.
func (p peeked) Read(b []byte) (int, error) { return p.r.Read(b) }

const tlsHandshakeRecord = 0x16

func (s *Server) serveConn(ctx context.Context, conn net.Conn) {
	raw := bufio.NewReader(conn)
	first, err := raw.Peek(1)
	if err != nil {
		return
	}
	if first[0] != tlsHandshakeRecord {
		redirect(conn, raw)
		return
	}
	secure := tls.Server(peeked{conn, raw}, s.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		return
	}
	reader, writer := bufio.NewReader(secure), bufio.NewWriter(secure)
	for s.serveOne(ctx, conn, reader, writer) {
	}
	_ = secure.CloseWrite()
}

// redirect answers plain HTTP with the way to TLS.
func redirect(conn net.Conn, reader *bufio.Reader) {
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	req, err := http.ReadRequest(reader)
	if err != nil {
		return
	}
	status := http.StatusPermanentRedirect
	if req.Method == http.MethodGet || req.Method == http.MethodHead {
		status = http.StatusMovedPermanently
	}
	m := message{status: status, reason: http.StatusText(status), header: http.Header{
		"Location": {"https://" + req.Host + req.URL.RequestURI()},
	}}
	_, _ = m.write(bufio.NewWriter(conn), false, false)
}

// serveOne answers one request and tells whether another may follow.
func (s *Server) serveOne(ctx context.Context, conn net.Conn, reader *bufio.Reader, writer *bufio.Writer) bool {
	req, err := http.ReadRequest(reader)
	if err != nil {
		return false
	}
	defer func() { _ = req.Body.Close() }()
	if strings.EqualFold(req.Header.Get("Expect"), "100-continue") {
		if _, err := writer.WriteString("HTTP/1.1 100 Continue\r\n\r\n"); err != nil || writer.Flush() != nil {
			return false
		}
	}
	format, response := s.dispatch(ctx, conn, req)
	if response.Break {
		return false
	}
	gzipOK := strings.Contains(req.Header.Get("Accept-Encoding"), "gzip")
	again, err := encode(format, response).write(writer, !req.Close, gzipOK)
	if err != nil || !again {
		// Take what the client is still sending, or it sees a reset
		// instead of the answer.
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = io.Copy(io.Discard, io.LimitReader(req.Body, maxPost))
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

func (s *Server) dispatch(ctx context.Context, conn net.Conn, req *http.Request) (string, Response) {
	if len(req.TransferEncoding) > 0 {
		return "json", Response{Err: notImplemented("chunked transfer encoding not supported")}
	}
	path := req.URL.EscapedPath()
	rest, ok := strings.CutPrefix(path, "/api2/")
	format, rest, _ := strings.Cut(rest, "/")
	if !ok || (format != "json" && format != "extjs") {
		return "json", Response{Err: &Error{Status: http.StatusNotImplemented, Message: "no such file '" + path + "'", Text: true}}
	}
	return format, s.handler(ctx, &Request{
		Verb: req.Method, Path: "/" + rest, Format: format, Header: req.Header,
		Remote: conn.RemoteAddr().String(), http: req,
	})
}
