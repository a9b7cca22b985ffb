package chaos

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"aether.internal/aether/lab/faults"
)

// The heads of the places of calls.
const (
	placeManagement = "kube/management"
	placeTenant     = "kube/tenant"
	placeTemporal   = "temporal"
)

// target is an API server whose calls the relay looks into.
type target struct {
	place       string
	certificate tls.Certificate // that clients of the server trust
	config      *rest.Config    // how to reach it as its administrator
}

// relay is the way of the worker to the API servers: a CONNECT proxy. What it
// does not know it passes on as it is.
type relay struct {
	faults *faults.Set
	seen   func(call)
	// find returns the API server at an address, or nil.
	find func(ctx context.Context, address string) (*target, error)
	log  *slog.Logger

	listener net.Listener
	server   *http.Server
	mu       sync.Mutex
	insides  map[[sha256.Size]byte]*inside
}

// inside serves the opened connections to one API server.
type inside struct {
	listener *handedOver
	server   *http.Server
}

func (r *relay) start(ctx context.Context) (string, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("start the relay: %w", err)
	}
	r.listener, r.insides = listener, map[[sha256.Size]byte]*inside{}
	r.server = &http.Server{Handler: http.HandlerFunc(r.connect), ReadHeaderTimeout: time.Minute}
	go r.server.Serve(listener) //nolint:errcheck // ends with close
	return "http://" + listener.Addr().String(), nil
}

func (r *relay) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := []error{r.server.Close()}
	for _, i := range r.insides {
		errs = append(errs, i.server.Close())
	}
	return errors.Join(errs...)
}

// connect takes a connection over, and opens it when it leads to an API server.
func (r *relay) connect(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodConnect {
		http.Error(w, "only CONNECT", http.StatusMethodNotAllowed)
		return
	}
	found, err := r.find(req.Context(), req.Host)
	if err != nil {
		r.log.Warn("find the API server", "address", req.Host, "error", err)
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	var onward net.Conn
	if found == nil {
		var dialer net.Dialer
		if onward, err = dialer.DialContext(req.Context(), "tcp", req.Host); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		r.log.Warn("take a connection over", "error", err)
		return
	}
	if _, err := io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		_ = conn.Close()
		return
	}
	if found == nil {
		go splice(conn, onward)
		return
	}
	if err := r.open(conn, found); err != nil {
		r.log.Warn("open a connection", "address", req.Host, "error", err)
		_ = conn.Close()
	}
}

func splice(a, b net.Conn) {
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() { _, _ = io.Copy(way[0], way[1]); done <- struct{}{} }()
	}
	<-done
	_, _ = a.Close(), b.Close()
}

// open hands the connection to the server that stands for the API server.
func (r *relay) open(conn net.Conn, t *target) error {
	key := sha256.Sum256(append([]byte(t.config.Host), t.config.CertData...))
	r.mu.Lock()
	defer r.mu.Unlock()
	in := r.insides[key]
	if in == nil {
		handler, err := r.handler(t)
		if err != nil {
			return err
		}
		in = &inside{listener: newHandedOver(r.listener.Addr()), server: &http.Server{
			Handler: handler, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(r.log.Handler(), slog.LevelDebug),
			TLSConfig: &tls.Config{Certificates: []tls.Certificate{t.certificate}, MinVersion: tls.VersionTLS12},
		}}
		r.insides[key] = in
		go in.server.ServeTLS(in.listener, "", "") //nolint:errcheck // ends with close
	}
	return in.listener.hand(conn)
}

// handler passes requests on as the administrator.
func (r *relay) handler(t *target) (http.Handler, error) {
	config := rest.CopyConfig(t.config)
	config.NextProtos = []string{"http/1.1"}                                 // upgrades, of exec, need it
	config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil } //nolint:nilnil // is none
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", t.config.Host, err)
	}
	server, err := url.Parse(t.config.Host)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", t.config.Host, err)
	}
	return &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, ErrorLog: slog.NewLogLogger(r.log.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(server)
			p.Out.Header.Del("Authorization") // the administrator has a certificate
		},
		ModifyResponse: func(answer *http.Response) error { return r.applied(t.place, answer) },
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {
			panic(http.ErrAbortHandler) //nolint:forbidigo // net/http's way to break a connection as a server that is away does
		},
	}, nil
}

// applied looks at an answer: one that changed something is a point, and may be
// held.
func (r *relay) applied(head string, answer *http.Response) error {
	req := answer.Request
	if !changes(req) || answer.StatusCode >= http.StatusBadRequest {
		return nil
	}
	place := head + "/" + req.Method + "/" + kindOf(req.URL.Path)
	r.seen(call{place: place})
	return hold(req.Context(), r.faults, place)
}

// hold keeps a call until its fault is cleared.
func hold(ctx context.Context, set *faults.Set, place string) error {
	f := set.Take(place, faults.Hold)
	if f == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("held call: %w", ctx.Err())
	case <-f.Released():
		return nil
	}
}

// changes tells whether a request writes something that stays.
func changes(req *http.Request) bool {
	switch req.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return false
	}
	path := req.URL.Path
	if req.URL.Query().Get("dryRun") != "" || strings.HasSuffix(path, "/exec") || strings.HasSuffix(path, "/events") {
		return false
	}
	return !strings.Contains(path, "/authorization.k8s.io/") && !strings.Contains(path, "/authentication.k8s.io/")
}

// kindOf reduces a path of the Kubernetes API to group, resource and
// subresource.
func kindOf(path string) string {
	segments := strings.Split(strings.Trim(path, "/"), "/")
	group, rest := "core", segments[min(2, len(segments)):]
	if segments[0] == "apis" && len(segments) > 2 {
		group, rest = segments[1], segments[3:]
	}
	if len(rest) > 2 && rest[0] == "namespaces" {
		rest = rest[2:]
	}
	kind := append([]string{group}, rest[:min(1, len(rest))]...)
	if len(rest) > 2 {
		kind = append(kind, rest[2:]...)
	}
	return strings.Join(kind, "/")
}

// handedOver is a listener of connections that were accepted elsewhere.
type handedOver struct {
	address net.Addr
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func newHandedOver(address net.Addr) *handedOver {
	return &handedOver{address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (h *handedOver) hand(conn net.Conn) error {
	select {
	case h.conns <- conn:
		return nil
	case <-h.closed:
		return net.ErrClosed
	}
}

// Accept implements net.Listener.
func (h *handedOver) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handedOver) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr implements net.Listener.
func (h *handedOver) Addr() net.Addr { return h.address }
