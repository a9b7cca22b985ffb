// Package telemetry serves a program's health and metrics: /healthz while it
// lives, /readyz while it can work, /metrics for Prometheus.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
)

// Options say where to serve. An address of 0 serves nowhere.
type Options struct {
	HealthAddress  string
	MetricsAddress string
}

// Bind adds the flags.
func (o *Options) Bind(flags *pflag.FlagSet) {
	flags.StringVar(&o.HealthAddress, "health-address", "0", "where to serve /healthz and /readyz, as 127.0.0.1:8081; 0 for nowhere")
	flags.StringVar(&o.MetricsAddress, "metrics-address", "0", "where to serve /metrics, as 127.0.0.1:8080; 0 for nowhere")
}

const nowhere = "0"

// readTimeout bounds a request's head.
const readTimeout = 10 * time.Second

// Serve serves until the context ends. ready returns nil while the program can
// work, and otherwise says why not.
func Serve(ctx context.Context, o Options, ready func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	if o.HealthAddress != nowhere && o.HealthAddress != "" {
		mux := http.NewServeMux()
		mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
		mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { answer(w, ready(r.Context())) })
		group.Go(func() error { return HTTP(ctx, "--health-address", o.HealthAddress, mux) })
	}
	if o.MetricsAddress != nowhere && o.MetricsAddress != "" {
		registry := prometheus.NewRegistry()
		registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
		group.Go(func() error { return HTTP(ctx, "--metrics-address", o.MetricsAddress, mux) })
	}
	return group.Wait()
}

func answer(w http.ResponseWriter, problem error) {
	text := "ok"
	if problem != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		text = problem.Error()
	}
	// A client that left does not want the answer.
	_, _ = fmt.Fprintln(w, text) //nolint:errcheck // see above
}

// HTTP serves a handler until the context ends. flag names the setting that
// gave the address, for errors.
func HTTP(ctx context.Context, flag, address string, handler http.Handler) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: readTimeout}
	stop := context.AfterFunc(ctx, func() {
		// Its error is Serve's.
		_ = server.Close() //nolint:errcheck // see above
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return nil
}
