package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"aether.internal/aether/lab/controlplane/pki"
	"aether.internal/aether/lab/upstream/process"
)

// stopGrace is how long a component may take to end before it is killed. The
// API server waits for open watches; nothing is lost by cutting them.
const stopGrace = 3 * time.Second

// ControlPlane is a running control plane.
type ControlPlane struct {
	cfg        Config
	etcd       *Etcd
	authority  *pki.Authority
	kubeconfig []byte
	rest       *rest.Config
	client     *http.Client

	mu        sync.Mutex
	processes map[Component]*process.Process
}

// Start starts a control plane and waits until every component is ready. What
// it started is ended when that fails.
func Start(ctx context.Context, cfg Config) (*ControlPlane, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Ports = cfg.Ports.withDefaults()
	began := time.Now()
	etcd, err := StartEtcd(ctx, EtcdConfig{
		Name: cfg.Name, Dir: filepath.Join(cfg.Dir, "etcd"), Net: cfg.Net, Address: cfg.Address,
		Port: cfg.Ports.Etcd, PeerPort: cfg.Ports.EtcdPeer, Kubernetes: cfg.Kubernetes, Log: cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	c := &ControlPlane{cfg: cfg, etcd: etcd, processes: map[Component]*process.Process{}}
	if err := c.startComponents(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	cfg.Log.Info("control plane is ready", "cluster", cfg.Name, "endpoint", c.Endpoint(), "took", time.Since(began).Round(time.Millisecond))
	return c, nil
}

func (c *ControlPlane) startComponents(ctx context.Context) error {
	if err := c.makeCertificates(); err != nil {
		return err
	}
	if err := c.makeClients(); err != nil {
		return err
	}
	if err := c.start(ctx, APIServer); err != nil {
		return err
	}
	// The two are slow to start and independent of each other.
	results := make(chan error, 2)
	for _, component := range []Component{ControllerManager, Scheduler} {
		go func() { results <- c.start(ctx, component) }()
	}
	return errors.Join(<-results, <-results)
}

func (c *ControlPlane) makeClients() error {
	config, err := clientcmd.RESTConfigFromKubeConfig(c.kubeconfig)
	if err != nil {
		return fmt.Errorf("read own kubeconfig: %w", err)
	}
	if c.cfg.Net != nil {
		config.Dial = c.cfg.Net.DialContext
	}
	c.rest = config
	admin, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil {
		return fmt.Errorf("read own client certificate: %w", err)
	}
	c.client = process.HTTPClient(c.cfg.Net, &tls.Config{RootCAs: c.authority.Pool(), Certificates: []tls.Certificate{admin}, MinVersion: tls.VersionTLS12})
	return nil
}

// start starts a component that does not run and waits until it is ready.
func (c *ControlPlane) start(ctx context.Context, component Component) error {
	if p := c.Process(component); p != nil && p.Running() {
		return nil
	}
	began := time.Now()
	program, argv0, err := commandOf(c.cfg.Kubernetes, component)
	if err != nil {
		return err
	}
	p, err := process.Start(process.Spec{
		Name: c.cfg.Name + " " + string(component), Program: program, Argv0: argv0,
		Args: c.arguments(component), Env: []string{garbagePercent}, LogFile: c.LogFile(component), Net: c.cfg.Net,
	})
	if err != nil {
		return err
	}
	// Known before it is ready, so that Stop finds it.
	c.mu.Lock()
	c.processes[component] = p
	c.mu.Unlock()
	if err := p.WaitReady(ctx, process.HTTPProbe(c.client, c.healthURL(component))); err != nil {
		return err
	}
	c.cfg.Log.Info("component is ready", "cluster", c.cfg.Name, "component", string(component), "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// Endpoint is the URL of the API server.
func (c *ControlPlane) Endpoint() string {
	return "https://" + netip.AddrPortFrom(c.cfg.Address, uint16(c.cfg.Ports.APIServer)).String()
}

// Kubeconfig is the administrator's.
func (c *ControlPlane) Kubeconfig() []byte { return slices.Clone(c.kubeconfig) }

// RestConfig is the administrator's; it dials from the control plane's own
// namespace, so that it works everywhere in this process.
func (c *ControlPlane) RestConfig() *rest.Config { return rest.CopyConfig(c.rest) }

// CA is the certificate of the cluster's authority: of its API server, its
// clients and its kubelets.
func (c *ControlPlane) CA() []byte { return slices.Clone(c.authority.Certificate) }

// Etcd is its etcd.
func (c *ControlPlane) Etcd() *Etcd { return c.etcd }

// AuditLog is the file in which the API server notes who asked for what, one
// JSON object per line.
func (c *ControlPlane) AuditLog() string { return filepath.Join(c.cfg.Dir, "logs", "audit.log") }

// LogFile is where a component writes to.
func (c *ControlPlane) LogFile(component Component) string {
	if component == EtcdComponent {
		return c.etcd.LogFile()
	}
	return filepath.Join(c.cfg.Dir, "logs", string(component)+".log")
}

// Process is a component's process, for its memory and its ID; nil when it
// was never started.
func (c *ControlPlane) Process(component Component) *process.Process {
	if component == EtcdComponent {
		return c.etcd.Process()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.processes[component]
}

// Kill ends a component as a crash would; Restart starts it again.
func (c *ControlPlane) Kill(component Component) error {
	p := c.Process(component)
	if p == nil {
		return fmt.Errorf("kill %s of %s: it was never started; components: %v", component, c.cfg.Name, Components())
	}
	return p.Kill()
}

// Restart starts a component again, stopping it first when it runs, and waits
// until it is ready.
func (c *ControlPlane) Restart(ctx context.Context, component Component) error {
	if component == EtcdComponent {
		return c.etcd.Restart(ctx)
	}
	p := c.Process(component)
	if p == nil {
		return fmt.Errorf("restart %s of %s: it was never started; components: %v", component, c.cfg.Name, Components())
	}
	if err := p.Stop(stopGrace); err != nil {
		return err
	}
	return c.start(ctx, component)
}

// Stop ends all components, the store last. It may be called again.
func (c *ControlPlane) Stop() error {
	var errs []error
	for _, component := range slices.Backward(Components()) {
		if p := c.Process(component); p != nil {
			errs = append(errs, p.Stop(stopGrace))
		}
	}
	return errors.Join(errs...)
}
