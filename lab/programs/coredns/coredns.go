package coredns

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Ports of CoreDNS.
const (
	dnsAddress    = ":53"
	healthAddress = ":8080"
	readyAddress  = ":8181"
)

// Run is the main of coredns.
func Run(ctx context.Context, args []string, log *slog.Logger) error {
	flags := flag.NewFlagSet("coredns", flag.ContinueOnError)
	corefile := flags.String("conf", "Corefile", "file that names the cluster's zone")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("coredns: %w", err)
	}
	zone, err := zoneOf(*corefile)
	if err != nil {
		return err
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("coredns: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("coredns: %w", err)
	}
	log.Info("starting", "zone", zone, "api_server", config.Host)
	server, synced := newServer(client, zone, nameserver("/etc/resolv.conf"), log)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serveOK(ctx, healthAddress, func() bool { return true }) })
	group.Go(func() error { return serveOK(ctx, readyAddress, synced.Load) })
	group.Go(func() error { return server.run(ctx, synced) })
	return group.Wait()
}

func newServer(client kubernetes.Interface, zone, upstream string, log *slog.Logger) (*server, *atomic.Bool) {
	factory := informers.NewSharedInformerFactory(client, 0)
	return &server{
		zone: zone, upstream: upstream, log: log, factory: factory,
		services: factory.Core().V1().Services().Lister(), slices: factory.Discovery().V1().EndpointSlices().Lister(),
	}, &atomic.Bool{}
}

// zoneOf finds the zone in a line such as "kubernetes cluster.local in-addr.arpa {".
func zoneOf(corefile string) (string, error) {
	file, err := os.Open(corefile)
	if err != nil {
		return "", fmt.Errorf("corefile: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) >= 2 && words[0] == "kubernetes" {
			return strings.Trim(words[1], ".") + ".", nil
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("corefile: %w", err)
	}
	return "", fmt.Errorf("corefile %s: no line \"kubernetes <zone>\" found", corefile)
}

// nameserver returns where to forward to, empty if nobody is known.
func nameserver(resolvConf string) string {
	data, err := os.ReadFile(resolvConf)
	if err != nil {
		return "" // a pod without a resolver answers for its own zone only
	}
	for line := range strings.Lines(string(data)) {
		if words := strings.Fields(line); len(words) == 2 && words[0] == "nameserver" {
			return net.JoinHostPort(words[1], "53")
		}
	}
	return ""
}

// serveOK answers 200 while ok says so, else 503.
func serveOK(ctx context.Context, address string, ok func() bool) error {
	server := &http.Server{
		Addr: address, ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if !ok() {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			_, _ = io.WriteString(w, "OK") // the prober may be gone
		}),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", address, err)
	}
	return nil
}
