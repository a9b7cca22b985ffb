package programs

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"
)

// serveHTTP serves until the context ends.
func serveHTTP(ctx context.Context, address string, handler http.Handler) error {
	server := &http.Server{Addr: address, Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", address, err)
	}
	return nil
}

// agnhost is the test server of Kubernetes' own tests: netexec,
// serve-hostname and pause.
func agnhost(ctx context.Context, args []string, log *slog.Logger) error {
	if len(args) == 0 {
		args = []string{"pause"}
	}
	switch args[0] {
	case "pause":
		return pause(ctx, nil, log)
	case "netexec":
		flags := flag.NewFlagSet("netexec", flag.ContinueOnError)
		port := flags.String("http-port", "8080", "port to serve HTTP on")
		if err := flags.Parse(args[1:]); err != nil {
			return fmt.Errorf("netexec: %w", err)
		}
		log.Info("started HTTP server", "port", *port)
		return serveHTTP(ctx, ":"+*port, logged(netexec(), log))
	case "serve-hostname":
		flags := flag.NewFlagSet("serve-hostname", flag.ContinueOnError)
		port := flags.String("port", "9376", "port to serve HTTP on")
		if err := flags.Parse(args[1:]); err != nil {
			return fmt.Errorf("serve-hostname: %w", err)
		}
		return serveHTTP(ctx, ":"+*port, logged(http.HandlerFunc(tellHostname), log))
	default:
		return fmt.Errorf("agnhost: %q is not here; there are netexec, serve-hostname, pause", args[0])
	}
}

func netexec() http.Handler {
	mux := http.NewServeMux()
	write := func(w http.ResponseWriter, text string) { _, _ = io.WriteString(w, text) } // the client may be gone
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { write(w, "NOW: "+time.Now().String()) })
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) { write(w, r.FormValue("msg")) })
	mux.HandleFunc("/clientip", func(w http.ResponseWriter, r *http.Request) { write(w, r.RemoteAddr) })
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { write(w, "") })
	mux.HandleFunc("/hostname", tellHostname)
	return mux
}

func tellHostname(w http.ResponseWriter, _ *http.Request) {
	name, err := os.Hostname()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, name) // the client may be gone
}

func logged(next http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		log.Info("request", "method", r.Method, "path", r.URL.Path, "from", r.RemoteAddr)
		next.ServeHTTP(w, r)
	})
}

const welcome = `<!DOCTYPE html>
<html><head><title>Welcome to nginx!</title></head>
<body><h1>Welcome to nginx!</h1></body></html>
`

// nginx serves its welcome page on port 80 and logs requests in the combined
// format.
func nginx(ctx context.Context, _ []string, _ *slog.Logger) error {
	return serveHTTP(ctx, ":80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK
		body := welcome
		if r.URL.Path != "/" && r.URL.Path != "/index.html" {
			status, body = http.StatusNotFound, "404 Not Found\n"
		}
		w.Header().Set("Server", "nginx/1.27")
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(status)
		n, err := io.WriteString(w, body)
		if err != nil {
			n = 0
		}
		from, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			from = r.RemoteAddr
		}
		fmt.Fprintf(os.Stdout, "%s - - [%s] \"%s %s %s\" %d %d \"-\" %q\n", from,
			time.Now().Format("02/Jan/2006:15:04:05 -0700"), r.Method, r.URL.RequestURI(), r.Proto, status, n, r.UserAgent())
	}))
}
