package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// DefaultHarborHost is the name of the lab's Harbor.
const DefaultHarborHost = "harbor.lab"

// Config says what a Registry serves.
type Config struct {
	// HarborHost is the name in Harbor's certificate; DefaultHarborHost if empty.
	HarborHost string
	// Images are what the upstreams hold; Catalogue() if nil.
	Images []Definition
	Log    *slog.Logger
}

// Registry is Harbor and the upstream registries. One TLS listener can serve
// them all: the name the client asks for says which one answers.
type Registry struct {
	harborHost string
	log        *slog.Logger
	upstreams  map[string]*upstream
	harbor     *harbor

	harborCA *authority // a site's private CA: nodes must be told to trust it
	publicCA *authority // stands for the CAs that every node trusts
}

// New builds the registries and fills the upstreams.
func New(cfg Config) (*Registry, error) {
	if cfg.HarborHost == "" {
		cfg.HarborHost = DefaultHarborHost
	}
	if cfg.Images == nil {
		cfg.Images = Catalogue()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	upstreams, err := newUpstreams(context.Background(), cfg.Images)
	if err != nil {
		return nil, err
	}
	harborCA, err := newAuthority("Aether lab Harbor CA")
	if err != nil {
		return nil, err
	}
	publicCA, err := newAuthority("Aether lab public CA")
	if err != nil {
		return nil, err
	}
	return &Registry{
		harborHost: cfg.HarborHost, log: cfg.Log, upstreams: upstreams, harbor: newHarbor(upstreams),
		harborCA: harborCA, publicCA: publicCA,
	}, nil
}

// CAPEM returns the CA of Harbor's certificate.
func (r *Registry) CAPEM() []byte { return r.harborCA.pem() }

// PublicCAPEM returns the CA of the upstreams' certificates: what a node's
// operating system trusts without being told.
func (r *Registry) PublicCAPEM() []byte { return r.publicCA.pem() }

// HarborHost returns the name in Harbor's certificate.
func (r *Registry) HarborHost() string { return r.harborHost }

// Upstreams lists the registries of the lab's Internet.
func (r *Registry) Upstreams() []string {
	hosts := make([]string, 0, len(r.upstreams))
	for host := range r.upstreams {
		hosts = append(hosts, host)
	}
	slices.Sort(hosts)
	return hosts
}

// Names maps every host the registry answers for to its address, for the
// /etc/hosts of the lab.
func (r *Registry) Names(address string) map[string]string {
	names := map[string]string{r.harborHost: address}
	for host := range r.upstreams {
		names[endpointHost(host)] = address
	}
	return names
}

// SetUpstream switches an upstream registry to a state.
func (r *Registry) SetUpstream(host string, state State) error {
	up, ok := r.upstreams[host]
	if !ok {
		return fmt.Errorf("upstream: %q is not a registry of the lab; give one of %v", host, r.Upstreams())
	}
	return up.set(state)
}

// UpstreamRequests returns how many requests the registry of that host got,
// from nodes and from Harbor together.
func (r *Registry) UpstreamRequests(host string) int {
	if up, ok := r.upstreams[host]; ok {
		return up.count()
	}
	return 0
}

// Push adds an image to its upstream registry.
func (r *Registry) Push(ctx context.Context, definition Definition) error {
	ref, err := Reference(definition.Ref)
	if err != nil {
		return err
	}
	if _, ok := r.upstreams[host(ref)]; !ok {
		return fmt.Errorf("upstream: %q is not a registry of the lab; give one of %v", host(ref), r.Upstreams())
	}
	return push(ctx, r.upstreams, definition)
}

// ServeHTTP answers for the host that the request names.
func (r *Registry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	name := upstreamHost(hostname(request.Host))
	r.log.Debug("registry request", "host", name, "method", request.Method, "uri", request.URL.RequestURI())
	if up, ok := r.upstreams[name]; ok {
		up.ServeHTTP(w, request)
		return
	}
	r.harbor.ServeHTTP(w, request)
}

// Serve answers TLS connections on the listener until the context ends.
func (r *Registry) Serve(ctx context.Context, listener net.Listener) error {
	return r.serve(ctx, tls.NewListener(listener, &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: r.certificate,
	}))
}

// ServePlain answers plain HTTP, for mirrors whose URL says http.
func (r *Registry) ServePlain(ctx context.Context, listener net.Listener) error {
	return r.serve(ctx, listener)
}

func (r *Registry) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: r, ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: slog.NewLogLogger(r.log.Handler(), slog.LevelDebug),
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve registry on %s: %w", listener.Addr(), err)
		}
		return nil
	})
	return group.Wait()
}

// certificate picks the certificate by the name the client asked for. A client
// that names nobody used an address, and addresses are Harbor's.
func (r *Registry) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if _, ok := r.upstreams[upstreamHost(hello.ServerName)]; ok {
		return r.publicCA.leaf(hello.ServerName)
	}
	if hello.ServerName != "" {
		return r.harborCA.leaf(r.harborHost)
	}
	address, _, err := net.SplitHostPort(hello.Conn.LocalAddr().String())
	if err != nil {
		return r.harborCA.leaf(r.harborHost)
	}
	return r.harborCA.leaf(address)
}

// dockerHubHost is where docker.io's images are really served.
const dockerHubHost = "registry-1.docker.io"

// endpointHost returns where a registry's images are served.
func endpointHost(registry string) string {
	if registry == "docker.io" {
		return dockerHubHost
	}
	return registry
}

// upstreamHost is the inverse of endpointHost.
func upstreamHost(endpoint string) string {
	if endpoint == dockerHubHost {
		return "docker.io"
	}
	return endpoint
}

func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(host)
}
