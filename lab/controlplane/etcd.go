package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"aether.internal/aether/lab/controlplane/pki"
	"aether.internal/aether/lab/upstream/process"
)

// EtcdConfig describes a single etcd.
type EtcdConfig struct {
	// Name is the member's.
	Name string
	// Dir keeps its data, certificates and log; it must not hold one yet.
	Dir string
	// Net is the namespace it runs in; nil is the caller's.
	Net process.Network
	// Address is what it listens on and is known by, beside loopback.
	Address netip.Addr
	// Names are also in its certificate.
	Names []string
	// Port and PeerPort are 2379 and 2380 when 0.
	Port, PeerPort int
	// Kubernetes is the multi-call program of lab/upstream, or a folder.
	Kubernetes string
	// Log tells what is started and how long that took.
	Log *slog.Logger
}

// Etcd is a running etcd that asks its clients for a certificate.
type Etcd struct {
	cfg       EtcdConfig
	authority *pki.Authority
	root      pki.Pair
	client    *http.Client

	mu       sync.Mutex
	process  *process.Process
	password string
}

// StartEtcd starts etcd and waits until it answers.
func StartEtcd(ctx context.Context, cfg EtcdConfig) (*Etcd, error) {
	if cfg.Name == "" || !cfg.Address.IsValid() || cfg.Kubernetes == "" || cfg.Log == nil {
		return nil, errors.New("etcd: Name, Address, Kubernetes and Log must be set")
	}
	if err := freshDir(cfg.Name, cfg.Dir); err != nil {
		return nil, err
	}
	if cfg.Port == 0 {
		cfg.Port = 2379
	}
	if cfg.PeerPort == 0 {
		cfg.PeerPort = 2380
	}
	e := &Etcd{cfg: cfg}
	if err := e.makeCertificates(); err != nil {
		return nil, err
	}
	if err := e.start(ctx); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *Etcd) makeCertificates() error {
	authority, err := pki.NewAuthority(e.cfg.Name + "-etcd-ca")
	if err != nil {
		return err
	}
	server, err := authority.Issue(pki.Request{
		CommonName: e.cfg.Name,
		Names:      append([]string{"localhost"}, e.cfg.Names...),
		Addresses:  e.addresses(),
	})
	if err != nil {
		return err
	}
	// etcd takes the common name for the user; root may do everything.
	if e.root, err = authority.Issue(pki.Request{CommonName: "root"}); err != nil {
		return err
	}
	e.authority = authority
	root, err := e.root.TLS()
	if err != nil {
		return err
	}
	e.client = process.HTTPClient(e.cfg.Net, &tls.Config{RootCAs: authority.Pool(), Certificates: []tls.Certificate{root}, MinVersion: tls.VersionTLS12})
	return writeFiles(filepath.Join(e.cfg.Dir, "pki"), map[string][]byte{
		"ca.crt":     authority.Certificate,
		"server.crt": server.Certificate,
		"server.key": server.Key,
	})
}

// addresses are loopback and the one it is known by.
func (e *Etcd) addresses() []netip.Addr {
	all := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), e.cfg.Address}
	return slices.Compact(all)
}

func (e *Etcd) urls(port int) string {
	var urls []string
	for _, a := range e.addresses() {
		urls = append(urls, "https://"+netip.AddrPortFrom(a, uint16(port)).String())
	}
	return strings.Join(urls, ",")
}

func (e *Etcd) arguments() []string {
	file := func(name string) string { return filepath.Join(e.cfg.Dir, "pki", name) }
	peer := "https://" + netip.AddrPortFrom(e.addresses()[0], uint16(e.cfg.PeerPort)).String()
	return []string{
		"--name=" + e.cfg.Name,
		"--data-dir=" + filepath.Join(e.cfg.Dir, "data"),
		"--listen-client-urls=" + e.urls(e.cfg.Port),
		"--advertise-client-urls=" + e.Endpoint(),
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=" + e.cfg.Name + "=" + peer,
		"--cert-file=" + file("server.crt"), "--key-file=" + file("server.key"),
		"--client-cert-auth", "--trusted-ca-file=" + file("ca.crt"),
		"--peer-cert-file=" + file("server.crt"), "--peer-key-file=" + file("server.key"),
		"--peer-client-cert-auth", "--peer-trusted-ca-file=" + file("ca.crt"),
		// A killed etcd loses nothing by this, only a machine that loses its
		// power does; and ten tenants do not wait for one disk.
		"--unsafe-no-fsync",
		// Few objects, many changes: keep the log, and so the memory, short.
		"--snapshot-count=5000",
		"--log-level=warn", "--log-outputs=stderr",
	}
}

// start starts the process; the caller holds no lock.
func (e *Etcd) start(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.process != nil && e.process.Running() {
		return nil
	}
	began := time.Now()
	program, argv0, err := commandOf(e.cfg.Kubernetes, EtcdComponent)
	if err != nil {
		return err
	}
	p, err := process.Start(process.Spec{
		Name: e.cfg.Name + " etcd", Program: program, Argv0: argv0, Args: e.arguments(),
		LogFile: e.LogFile(), Net: e.cfg.Net,
	})
	if err != nil {
		return err
	}
	if err := p.WaitReady(ctx, process.HTTPProbe(e.client, e.Endpoint()+"/health")); err != nil {
		_ = p.Kill() // the error of the start says more
		return err
	}
	e.process = p
	e.cfg.Log.Info("etcd is ready", "cluster", e.cfg.Name, "endpoint", e.Endpoint(), "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// Endpoint is the URL it is known by.
func (e *Etcd) Endpoint() string {
	return "https://" + netip.AddrPortFrom(e.cfg.Address, uint16(e.cfg.Port)).String()
}

// LogFile is where it writes to.
func (e *Etcd) LogFile() string { return filepath.Join(e.cfg.Dir, "logs", "etcd.log") }

// CA is the authority of its own and its clients' certificates, with the key:
// a DataStore of Kamaji needs it to issue a certificate per tenant.
func (e *Etcd) CA() pki.Pair { return e.authority.Pair }

// Root is the certificate of etcd's user root.
func (e *Etcd) Root() pki.Pair { return e.root }

// IssueClient makes the certificate of a user; the empty name is nobody's.
func (e *Etcd) IssueClient(user string) (pki.Pair, error) {
	return e.authority.Issue(pki.Request{CommonName: user})
}

// Process is the process, for its memory and its ID; after Kill one that has
// ended.
func (e *Etcd) Process() *process.Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.process
}

// Kill ends it as a crash would.
func (e *Etcd) Kill() error { return e.Process().Kill() }

// Stop ends it in order.
func (e *Etcd) Stop() error { return e.Process().Stop(stopGrace) }

// Restart starts it again on its data, stopping it first when it runs.
func (e *Etcd) Restart(ctx context.Context) error {
	if err := e.Stop(); err != nil {
		return err
	}
	return e.start(ctx)
}
