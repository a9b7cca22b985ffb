package proxyagent

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
)

// Agent is the program in the proxy's virtual machine.
type Agent struct {
	config Config
	log    *slog.Logger
	now    func() time.Time
}

// New returns an agent for a configuration from LoadConfig.
func New(config Config, log *slog.Logger, now func() time.Time) *Agent {
	return &Agent{config: config, log: log, now: now}
}

// Run works until the context ends. It returns an error only for what a
// restart might mend: a directory or a port that cannot be had.
func (a *Agent) Run(ctx context.Context) error {
	if err := os.MkdirAll(a.config.StateDir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	mac, err := net.ParseMAC(a.config.Device.MAC)
	if err != nil {
		return fmt.Errorf("device.mac: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(a.config.CA))
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", a.config.Health)
	if err != nil {
		return fmt.Errorf("health: %w", err)
	}
	health := &health{admin: a.config.Admin, now: a.now}
	credentials := &keeper{
		config: a.config, state: state{dir: a.config.StateDir}, roots: roots,
		authority: authority{address: a.config.Enrolment, roots: roots, now: a.now},
		health:    health, log: a.log, now: a.now,
	}
	link := &announcer{mac: mac, address: a.config.Device.Address, health: health, log: a.log, repeat: defaultRepeat()}

	a.log.Info("agent started", "proxy", a.config.ID().String(), "address", a.config.Device.Address.String())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return health.serve(ctx, listener, a.log) })
	group.Go(func() error { return credentials.run(ctx) })
	group.Go(func() error { return link.run(ctx) })
	return group.Wait()
}
