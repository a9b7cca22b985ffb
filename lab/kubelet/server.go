package kubelet

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// server is port 10250.
type server struct {
	k    *Kubelet
	auth *authenticator
	mux  *http.ServeMux
}

func (k *Kubelet) newServer() (*server, error) {
	auth, err := newAuthenticator(k.cfg.Client, k.cfg.NodeName, k.cfg.ClientCA)
	if err != nil {
		return nil, err
	}
	s := &server{k: k, auth: auth, mux: http.NewServeMux()}
	s.mux.HandleFunc("GET /healthz", s.health)
	s.mux.HandleFunc("GET /pods", s.pods)
	s.mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.logs)
	for _, path := range []string{"/exec/{namespace}/{pod}/{container}", "/exec/{namespace}/{pod}/{uid}/{container}"} {
		s.mux.HandleFunc("GET "+path, s.exec)
		s.mux.HandleFunc("POST "+path, s.exec)
	}
	for _, path := range []string{"/portForward/{namespace}/{pod}", "/portForward/{namespace}/{pod}/{uid}"} {
		s.mux.HandleFunc("GET "+path, s.portForward)
		s.mux.HandleFunc("POST "+path, s.portForward)
	}
	return s, nil
}

// serve answers until the context ends.
func (s *server) serve(ctx context.Context) error {
	listener, err := s.k.cfg.Net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(s.k.cfg.Port)))
	if err != nil {
		return fmt.Errorf("kubelet of %s: %w", s.k.cfg.NodeName, err)
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert,
		// Streams are upgraded from HTTP/1.1.
		NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			certificate, err := s.k.cfg.ServingCert()
			if err == nil && certificate == nil {
				err = errors.New("no serving certificate available for the kubelet")
			}
			return certificate, err
		},
	}
	web := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:    slog.NewLogLogger(s.k.log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = web.Close() }) // ends streams, too
	defer stop()
	if err := web.Serve(tls.NewListener(listener, config)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve kubelet of %s: %w", s.k.cfg.NodeName, err)
	}
	return ctx.Err()
}

// ServeHTTP lets nobody through whom the API server does not know and allow.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, err := s.auth.authenticate(r)
	if err != nil {
		s.k.log.Debug("request not authenticated", "path", r.URL.Path, "error", err)
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return
	}
	verb, subresources := attributesOf(r)
	allowed, err := s.auth.authorize(r.Context(), user, verb, subresources)
	if err != nil {
		s.k.log.Warn("cannot authorize request", "path", r.URL.Path, "error", err)
		http.Error(w, "Authorization error: "+err.Error(), http.StatusInternalServerError)
		return
	}
	if !allowed {
		http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", user.name, verb, subresources), http.StatusForbidden)
		return
	}
	s.mux.ServeHTTP(w, r)
}

func (s *server) health(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte("ok")) // a client that went away is its own affair
}

// pods lists what runs here.
func (s *server) pods(w http.ResponseWriter, _ *http.Request) {
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	s.k.mu.Lock()
	for _, worker := range s.k.workers {
		worker.mu.Lock()
		list.Items = append(list.Items, *worker.base.DeepCopy())
		worker.mu.Unlock()
	}
	s.k.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(list); err != nil {
		s.k.log.Debug("cannot answer /pods", "error", err)
	}
}

// unitFor finds the container a request is about, or answers 404.
func (s *server) unitFor(w http.ResponseWriter, r *http.Request) (*worker, *unit, bool) {
	namespace, pod := r.PathValue("namespace"), r.PathValue("pod")
	found, ok := s.k.find(namespace, pod, types.UID(r.PathValue("uid")))
	if !ok {
		http.Error(w, fmt.Sprintf("pod %q does not exist in namespace %q on this node", pod, namespace), http.StatusNotFound)
		return nil, nil, false
	}
	for _, u := range found.units {
		if u.spec.Name == r.PathValue("container") {
			return found, u, true
		}
	}
	http.Error(w, fmt.Sprintf("container %q not found in pod %q", r.PathValue("container"), pod), http.StatusNotFound)
	return nil, nil, false
}

// logs serves a container's log.
func (s *server) logs(w http.ResponseWriter, r *http.Request) {
	found, u, ok := s.unitFor(w, r)
	if !ok {
		return
	}
	options, err := parseLogOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	attempt, ended := u.logAttempt(r.FormValue("previous") == "true")
	if attempt < 0 {
		http.Error(w, fmt.Sprintf("container %q in pod %q is waiting to start or has no such earlier run", u.spec.Name, r.PathValue("pod")), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	out := flushing{w, http.NewResponseController(w)}
	if err := readLog(r.Context(), u.logPath(found.current(), attempt), options, ended, out); err != nil {
		s.k.log.Debug("log stream ended", "error", err)
	}
}

// flushing sends every line at once: a follower waits for it.
type flushing struct {
	http.ResponseWriter
	control *http.ResponseController
}

// Write implements io.Writer.
func (f flushing) Write(data []byte) (int, error) {
	n, err := f.ResponseWriter.Write(data)
	if err != nil {
		return n, err
	}
	return n, f.control.Flush()
}

func parseLogOptions(r *http.Request) (logOptions, error) {
	options := logOptions{follow: r.FormValue("follow") == "true", timestamps: r.FormValue("timestamps") == "true", tail: -1}
	number := func(name string, into func(int64)) error {
		text := r.FormValue(name)
		if text == "" {
			return nil
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return fmt.Errorf("%s: %q is not a number from 0 up", name, text)
		}
		into(n)
		return nil
	}
	err := errors.Join(
		number("tailLines", func(n int64) { options.tail = int(n) }),
		number("limitBytes", func(n int64) { options.limit = n }),
		number("sinceSeconds", func(n int64) { options.since = time.Now().Add(-time.Duration(n) * time.Second) }),
	)
	if text := r.FormValue("sinceTime"); text != "" {
		at, parseErr := time.Parse(time.RFC3339, text)
		options.since = at
		err = errors.Join(err, parseErr)
	}
	return options, err
}

// logAttempt returns which attempt's log to read, below 0 if there is none, and
// a channel that is closed once that log is complete.
func (u *unit) logAttempt(previous bool) (int, <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	closed := make(chan struct{})
	close(closed)
	switch {
	case previous && u.running != nil:
		return u.attempt - 2, closed
	case u.running != nil:
		return u.attempt - 1, u.ended
	default:
		return u.attempt - 1, closed
	}
}
