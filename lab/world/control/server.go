package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"aether.internal/aether/lab/faults"
)

// maxSocketPath is what the kernel allows for the path of a unix socket.
const maxSocketPath = 107

// maxBody bounds what a request may hold.
const maxBody = 1 << 20

// Socket is where the API of the lab with that state folder is.
func Socket(dir string) string { return filepath.Join(dir, "control.sock") }

func execSocket(dir string) string { return filepath.Join(dir, "exec.sock") }

// Server serves the control API of a World.
type Server struct {
	world World
	log   *slog.Logger
	http  *http.Server
	exec  *net.UnixListener
	api   net.Listener
}

// Listen opens the sockets in the lab's state folder.
func Listen(dir string, world World, log *slog.Logger) (*Server, error) {
	s := &Server{world: world, log: log}
	var err error
	if s.api, err = listen(Socket(dir)); err != nil {
		return nil, err
	}
	if s.exec, err = listen(execSocket(dir)); err != nil {
		return nil, errors.Join(err, s.api.Close())
	}
	s.http = &http.Server{Handler: s.routes(), ReadHeaderTimeout: 5 * time.Second}
	return s, nil
}

func listen(path string) (*net.UnixListener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("state folder: the path of %s has %d bytes; a socket's may have %d: choose a shorter --state", path, len(path), maxSocketPath)
	}
	// One that is there is left of a lab that was killed: the folder's lock
	// is ours.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("listen: %w", err), l.Close())
	}
	return l, nil
}

// Serve answers until the context ends.
func (s *Server) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		_ = s.http.Close() // ends Serve; nothing is lost with its connections
		_ = s.exec.Close()
	})
	defer stop()
	go s.serveExec(ctx)
	if err := s.http.Serve(s.api); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("control API: %w", err)
	}
	return nil
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { s.answer(w, s.world.Status(), nil) })
	mux.HandleFunc("GET /secrets", func(w http.ResponseWriter, r *http.Request) {
		secrets, err := s.world.Secrets(r.Context())
		s.answer(w, secrets, err)
	})
	mux.HandleFunc("GET /faults", func(w http.ResponseWriter, _ *http.Request) { s.answer(w, s.world.Faults().List(), nil) })
	mux.HandleFunc("POST /faults", s.inject)
	mux.HandleFunc("DELETE /faults", s.clear)
	mux.HandleFunc("DELETE /faults/{id}", s.clear)
	mux.HandleFunc("POST /components/{name}/kill", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, struct{}{}, s.world.Kill(r.PathValue("name")))
	})
	mux.HandleFunc("POST /components/{name}/restart", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, struct{}{}, s.world.Restart(r.Context(), r.PathValue("name")))
	})
	mux.HandleFunc("POST /hosts/{name}/off", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, struct{}{}, s.world.SetHost(r.PathValue("name"), false))
	})
	mux.HandleFunc("POST /hosts/{name}/on", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, struct{}{}, s.world.SetHost(r.PathValue("name"), true))
	})
	mux.HandleFunc("POST /floor", s.floor)
	mux.HandleFunc("POST /stop", func(w http.ResponseWriter, _ *http.Request) {
		s.answer(w, struct{}{}, nil)
		s.world.Shutdown()
	})
	return mux
}

func (s *Server) inject(w http.ResponseWriter, r *http.Request) {
	var fault faults.Fault
	if err := decode(w, r, &fault); err != nil {
		s.answer(w, nil, err)
		return
	}
	id, err := s.world.Faults().Inject(fault)
	s.answer(w, map[string]string{"id": id}, err)
}

func (s *Server) clear(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	n := s.world.Faults().Clear(id)
	if n == 0 && id != "" {
		s.answer(w, nil, fmt.Errorf("fault %q is not in force; `lab faults list` shows what is", id))
		return
	}
	s.answer(w, map[string]int{"cleared": n}, nil)
}

func (s *Server) floor(w http.ResponseWriter, r *http.Request) {
	var request FloorRequest
	if err := decode(w, r, &request); err != nil {
		s.answer(w, nil, err)
		return
	}
	floor, err := s.world.Floor(request)
	s.answer(w, floor, err)
}

func decode(w http.ResponseWriter, r *http.Request, into any) error {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	return nil
}

// problem is the body of a refusal.
type problem struct {
	Error string `json:"error"`
}

func (s *Server) answer(w http.ResponseWriter, body any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		body = problem{err.Error()}
	}
	if err := json.NewEncoder(w).Encode(body); err != nil {
		s.log.Warn("answer is lost", "error", err)
	}
	if f, ok := w.(http.Flusher); ok {
		f.Flush() // /stop ends the server right after
	}
}
