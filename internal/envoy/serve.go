package envoy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/internal/envoy/wire"
)

// Keep-alive of the proxies' streams: a dead one is noticed within half a
// minute, and Envoy's own pings are welcome.
const (
	streamPing     = 20 * time.Second
	streamPingWait = 10 * time.Second
	pingsAllowed   = 5 * time.Second
	stopGrace      = 5 * time.Second
)

// TenantSource tells which proxies there are.
type TenantSource interface {
	// Watch calls apply with the whole set, first as it is and then after each
	// change, until the context ends. It returns an error only when it cannot
	// go on.
	Watch(ctx context.Context, apply func([]Tenant)) error
}

// Config is what Serve needs.
type Config struct {
	// Client reads and writes Secrets and ConfigMaps in Namespace, uncached.
	Client    client.Client
	Namespace string
	Source    TenantSource
	// XDS and Enrolment are listening sockets; Serve closes them.
	XDS, Enrolment net.Listener
	// Names are extra names and addresses for the server's certificate.
	// Proxies need none: they expect wire.ServerName.
	Names []string
	Log   *slog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

func (c *Config) complete() error {
	if c.Client == nil || c.Source == nil || c.XDS == nil || c.Enrolment == nil || c.Log == nil || c.Namespace == "" {
		return errors.New("xds server: Client, Namespace, Source, XDS, Enrolment and Log must all be set")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return nil
}

// Serve runs discovery service and enrolment until the context ends.
func Serve(ctx context.Context, cfg Config) error {
	if err := cfg.complete(); err != nil {
		return err
	}
	ca, err := EnsureCA(ctx, cfg.Client, cfg.Namespace, cfg.Now)
	if err != nil {
		return err
	}
	store := NewStore(cfg.Client, cfg.Namespace, cfg.Now)
	server := NewServer(store, store, cfg.Log, cfg.Now)
	certificates := &serverCertificates{ca: ca, names: cfg.Names, now: cfg.Now}
	if _, err := certificates.get(nil); err != nil {
		return err
	}
	discovery := newGRPCServer(server, certificates, ca)
	enrolment := newHTTPServer(NewEnrolment(ca, store, server.Serves, cfg.Log).Handler(), certificates, ca, cfg.Log)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return cfg.Source.Watch(ctx, server.Apply) })
	group.Go(func() error { return server.Run(ctx) })
	group.Go(func() error { return discovery.Serve(cfg.XDS) })
	group.Go(func() error {
		if err := enrolment.ServeTLS(cfg.Enrolment, "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("enrolment: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		// Streams live for ever, so there is nothing to wait for: proxies keep
		// what they have and come back.
		discovery.Stop()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
		defer cancel()
		return enrolment.Shutdown(grace)
	})
	cfg.Log.Info("serving proxies", "xds", cfg.XDS.Addr().String(), "enrolment", cfg.Enrolment.Addr().String())
	return group.Wait()
}

func newGRPCServer(server *Server, certificates *serverCertificates, ca *CA) *grpc.Server {
	g := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{
			MinVersion:     tls.VersionTLS13,
			Time:           certificates.now,
			GetCertificate: certificates.get,
			ClientAuth:     tls.RequireAndVerifyClientCert,
			ClientCAs:      ca.Pool(),
		})),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: streamPing, Timeout: streamPingWait}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsAllowed, PermitWithoutStream: true}),
	)
	server.Register(g)
	return g
}

// serverCertificates makes the server's own certificate and, before two thirds
// of its life, the next one. It is never stored: the authority makes another.
type serverCertificates struct {
	ca    *CA
	names []string
	now   func() time.Time

	mu      sync.Mutex
	current *tls.Certificate
}

func (s *serverCertificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && s.now().Before(wire.RenewAt(s.current.Leaf.NotBefore, s.current.Leaf.NotAfter)) {
		return s.current, nil
	}
	certificate, err := s.ca.ServerCertificate(s.names...)
	if err != nil {
		return nil, err
	}
	s.current = certificate
	return certificate, nil
}
