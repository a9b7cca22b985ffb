package capicore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/rest"

	"aether.internal/aether/lab/controlplane/pki"
	"aether.internal/aether/lab/upstream"
	"aether.internal/aether/lab/upstream/process"
)

// stopGrace is how long the manager may take to end before it is killed.
const stopGrace = 3 * time.Second

// Config describes the installation.
type Config struct {
	// Program is the one lab/upstream names CAPI; Manifests are of its version.
	Program   string
	Manifests upstream.CAPIManifests
	// Dir keeps the manager's kubeconfig, certificate and log.
	Dir string
	// Net is the namespace it runs in; nil is the caller's. The API server
	// must reach Address from its own.
	Net process.Network
	// Rest is an administrator's, for the installation.
	Rest *rest.Config
	// Kubeconfig is the manager's own; it must be that of the user User.
	Kubeconfig []byte
	// Address is where its webhooks and its health are served; loopback when
	// not set.
	Address netip.Addr
	// WebhookPort and HealthPort are 9443 and 9440 when 0.
	WebhookPort, HealthPort int
	// Arguments are added to the manager's.
	Arguments []string
	// Log tells what is started and how long that took.
	Log *slog.Logger
}

func (c *Config) validate() error {
	switch {
	case c.Program == "":
		return errors.New("cluster api: Program names no program")
	case !filepath.IsAbs(c.Dir):
		return fmt.Errorf("cluster api: Dir %q is not an absolute path", c.Dir)
	case c.Rest == nil:
		return errors.New("cluster api: Rest is nil")
	case len(c.Kubeconfig) == 0:
		return errors.New("cluster api: Kubeconfig is empty")
	case c.Log == nil:
		return errors.New("cluster api: Log is nil")
	}
	if !c.Address.IsValid() {
		c.Address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	c.WebhookPort = cmp.Or(c.WebhookPort, 9443)
	c.HealthPort = cmp.Or(c.HealthPort, 9440)
	return nil
}

// Manager is the running manager of Cluster API core.
type Manager struct {
	cfg       Config
	process   *process.Process
	authority *pki.Authority
}

// Start installs Cluster API core, starts its manager, waits until it is
// ready, and registers its webhooks.
func Start(ctx context.Context, cfg Config) (*Manager, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m := &Manager{cfg: cfg}
	if err := m.writeFiles(); err != nil {
		return nil, err
	}
	install, err := newInstaller(cfg.Rest)
	if err != nil {
		return nil, err
	}
	if err := m.installTypes(ctx, install); err != nil {
		return nil, err
	}
	if err := m.start(ctx); err != nil {
		return nil, err
	}
	// Registered earlier, every write of a Cluster would fail until it is up.
	hooks, err := webhooks(cfg.Manifests, m.webhookAddress(), m.authority.Certificate)
	if err == nil {
		err = install.apply(ctx, hooks)
	}
	if err != nil {
		return nil, errors.Join(err, m.Kill())
	}
	return m, nil
}

// installTypes writes the CRDs and the manager's rights.
func (m *Manager) installTypes(ctx context.Context, install *installer) error {
	began := time.Now()
	definitions, err := crds(m.cfg.Manifests)
	if err != nil {
		return err
	}
	rights, err := roles(m.cfg.Manifests)
	if err != nil {
		return err
	}
	if err := install.apply(ctx, append(definitions, rights...)); err != nil {
		return err
	}
	if err := install.waitEstablished(ctx, definitions); err != nil {
		return err
	}
	m.cfg.Log.Info("cluster api is installed", "crds", len(definitions), "took", time.Since(began).Round(time.Millisecond))
	return nil
}

func (m *Manager) file(name string) string { return filepath.Join(m.cfg.Dir, name) }

// writeFiles writes what the manager reads.
func (m *Manager) writeFiles() error {
	var err error
	if m.authority, err = pki.NewAuthority("capi-webhook-ca"); err != nil {
		return err
	}
	serving, err := m.authority.Issue(pki.Request{
		CommonName: "capi-webhook-service",
		Names:      []string{"localhost", "capi-webhook-service.capi-system.svc"},
		Addresses:  []netip.Addr{m.cfg.Address},
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(m.file("webhook"), 0o700); err != nil {
		return fmt.Errorf("cluster api: %w", err)
	}
	for name, data := range map[string][]byte{
		"kubeconfig": m.cfg.Kubeconfig, "webhook/tls.crt": serving.Certificate, "webhook/tls.key": serving.Key,
	} {
		if err := os.WriteFile(m.file(name), data, 0o600); err != nil {
			return fmt.Errorf("cluster api: %w", err)
		}
	}
	return nil
}

func (m *Manager) webhookAddress() netip.AddrPort {
	return netip.AddrPortFrom(m.cfg.Address, uint16(m.cfg.WebhookPort))
}

func (m *Manager) healthAddress() netip.AddrPort {
	return netip.AddrPortFrom(m.cfg.Address, uint16(m.cfg.HealthPort))
}

func (m *Manager) arguments() []string {
	return append([]string{
		"--kubeconfig=" + m.file("kubeconfig"),
		"--webhook-port=" + strconv.Itoa(m.cfg.WebhookPort),
		"--webhook-cert-dir=" + m.file("webhook"),
		"--health-addr=" + m.healthAddress().String(),
		// Nobody reads its metrics in the lab.
		"--diagnostics-address=0",
	}, m.cfg.Arguments...)
}

func (m *Manager) start(ctx context.Context) error {
	began := time.Now()
	p, err := process.Start(process.Spec{
		Name: "cluster api core", Program: m.cfg.Program, Args: m.arguments(), LogFile: m.LogFile(), Net: m.cfg.Net,
	})
	if err != nil {
		return err
	}
	ready := process.HTTPProbe(process.HTTPClient(m.cfg.Net, nil), "http://"+m.healthAddress().String()+"/readyz")
	if err := p.WaitReady(ctx, ready); err != nil {
		return errors.Join(err, p.Kill())
	}
	m.process = p
	m.cfg.Log.Info("cluster api core is ready", "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// LogFile is where the manager writes to.
func (m *Manager) LogFile() string { return m.file("capi.log") }

// Process is its process, for its memory and its ID.
func (m *Manager) Process() *process.Process { return m.process }

// Kill ends the manager as a crash would. Its webhooks stay registered, so
// that until Restart the API server refuses what they would have judged.
func (m *Manager) Kill() error { return m.process.Kill() }

// Stop ends the manager in order.
func (m *Manager) Stop() error { return m.process.Stop(stopGrace) }

// Restart starts the manager again, stopping it first when it runs.
func (m *Manager) Restart(ctx context.Context) error {
	if err := m.Stop(); err != nil {
		return err
	}
	return m.start(ctx)
}
