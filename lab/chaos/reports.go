package chaos

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"aether.internal/aether/lab/faults"
)

// reports is the worker's way to Temporal. It holds reports of results before
// they arrive.
type reports struct {
	faults *faults.Set
	seen   func(call)
	log    *slog.Logger
	server *http.Server
}

// completed is the method by which a worker reports an activity's result.
const completed = "RespondActivityTaskCompleted"

// errLost ends a report whose worker was killed.
var errLost = errors.New("the worker is gone")

// start passes gRPC on to Temporal's address and returns its own.
func (r *reports) start(ctx context.Context, temporal string) (string, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("start the relay to Temporal: %w", err)
	}
	var http2 http.Protocols
	http2.SetUnencryptedHTTP2(true)
	target := &url.URL{Scheme: "http", Host: temporal}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { p.SetURL(target) },
		Transport:     &reporting{reports: r, next: &http.Transport{Protocols: &http2}},
		FlushInterval: -1, ErrorLog: slog.NewLogLogger(r.log.Handler(), slog.LevelDebug),
	}
	r.server = &http.Server{Handler: proxy, Protocols: &http2, ReadHeaderTimeout: time.Minute, ErrorLog: proxy.ErrorLog}
	go r.server.Serve(listener) //nolint:errcheck // ends with close
	return listener.Addr().String(), nil
}

// reporting holds reports on their way.
type reporting struct {
	*reports
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (r *reporting) RoundTrip(req *http.Request) (*http.Response, error) {
	if method := req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]; method == completed {
		place := placeTemporal + "/" + method
		r.seen(call{place: place})
		if err := hold(req.Context(), r.faults, place); err != nil {
			return nil, errors.Join(errLost, err)
		}
	}
	return r.next.RoundTrip(req)
}
