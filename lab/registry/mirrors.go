package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"aether.internal/aether/lab/latency"
)

// Mirror is one RegistryMirrorConfig document of Talos.
type Mirror struct {
	// Host is the registry of the references it is for, or "*" for all that
	// have no mirror of their own.
	Host string
	// Endpoints are URLs, tried in order.
	Endpoints []string
	// OverridePath tells for each endpoint that its path is complete. Without
	// it /v2 is appended unless the path ends with it. Missing entries are false.
	OverridePath []bool
	// SkipFallback keeps the upstream registry from being asked at the end.
	SkipFallback bool
}

// Credentials are one RegistryAuthConfig document.
type Credentials struct{ Username, Password string }

// Trust is one RegistryTLSConfig document.
type Trust struct {
	CA                 []byte // PEM, in addition to the trusted roots
	InsecureSkipVerify bool
}

// Consumer says who pulls: the two read the same documents differently.
type Consumer string

// The two consumers of mirror documents on a Talos node.
const (
	// CRI is containerd for pods. Mirror with skipFallback and without any
	// endpoint: the empty hosts file makes it use the upstream.
	CRI Consumer = ""
	// Machined pulls the kubelet and the installer. The same mirror leaves it
	// without any host.
	Machined Consumer = "machined"
)

// ErrNoHosts is in the error of a pull that has nobody to ask.
var ErrNoHosts = errors.New("no registry hosts to pull from")

// Puller pulls images the way a Talos node does.
type Puller struct {
	// Dial opens connections from the node's network; addresses are literal.
	Dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	Mirrors []Mirror
	// RootCAs is PEM of everything the node trusts: the public CAs and what
	// TrustedRootsConfig adds.
	RootCAs []byte
	// Hosts resolves names, as /etc/hosts does. Names that are not in it fail
	// unless Resolve knows them.
	Hosts map[string]string
	// Resolve is asked for names that Hosts does not have; may be nil.
	Resolve func(ctx context.Context, host string) (string, error)
	// Auth and TLS are keyed by the endpoint's host, port included.
	Auth map[string]Credentials
	TLS  map[string]Trust
	// Consumer says whose rules apply.
	Consumer Consumer
	// Clock makes a pull take its time; nil takes none.
	Clock *latency.Clock
}

// endpoint is one place to ask.
type endpoint struct {
	base      string // URL up to the repository
	namespace string // of the ns parameter; empty for the upstream itself
}

// hosts lists where images of a registry are asked for, in order.
func (p *Puller) hosts(registry string) ([]endpoint, error) {
	mirror, found := p.mirror(registry)
	var hosts []endpoint
	for i, raw := range mirror.Endpoints {
		base, err := p.base(raw, i < len(mirror.OverridePath) && mirror.OverridePath[i])
		if err != nil {
			return nil, fmt.Errorf("mirror %q: %w", mirror.Host, err)
		}
		hosts = append(hosts, endpoint{base: base, namespace: registry})
	}
	emptyFile := len(mirror.Endpoints) == 0 && p.Consumer == CRI
	if !found || !mirror.SkipFallback || emptyFile {
		hosts = append(hosts, endpoint{base: "https://" + endpointHost(registry) + "/v2"})
	}
	if len(hosts) == 0 {
		return nil, fmt.Errorf("mirror %q: skipFallback is set and endpoints is empty: %w", mirror.Host, ErrNoHosts)
	}
	return hosts, nil
}

// mirror finds the exact match, then the one for all.
func (p *Puller) mirror(registry string) (Mirror, bool) {
	for _, wanted := range []string{registry, "*"} {
		for _, mirror := range p.Mirrors {
			if mirror.Host == wanted {
				return mirror, true
			}
		}
	}
	return Mirror{}, false
}

func (p *Puller) base(raw string, overridePath bool) (string, error) {
	parsed, err := url.Parse(raw)
	if err != nil {
		return "", fmt.Errorf("endpoint: %w", err)
	}
	if parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" {
		return "", fmt.Errorf("endpoint %q: give a URL that begins with https:// or http:// and has a host", raw)
	}
	if _, hasTLS := p.TLS[parsed.Host]; hasTLS && parsed.Scheme == "http" && p.Consumer == Machined {
		return "", fmt.Errorf("endpoint %q: TLS config specified for non-HTTPS registry", raw)
	}
	path := strings.TrimSuffix(parsed.Path, "/")
	if !overridePath && !strings.HasSuffix(path, "/v2") {
		path += "/v2"
	}
	return parsed.Scheme + "://" + parsed.Host + path, nil
}

// client makes the HTTP client of one pull.
func (p *Puller) client() (*http.Client, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.RootCAs) // nothing trusted is a state that the handshake reports
	if _, all := p.TLS["*"]; all {
		return nil, errors.New(`registry TLS config: "*" is not allowed; name the endpoint's host`)
	}
	transport := &http.Transport{
		DialContext: p.dial, TLSHandshakeTimeout: 10 * time.Second,
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return p.dialTLS(ctx, network, addr, roots)
		},
	}
	return &http.Client{Transport: transport}, nil
}

func (p *Puller) dialTLS(ctx context.Context, network, addr string, roots *x509.CertPool) (net.Conn, error) {
	name, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	config := &tls.Config{ServerName: name, RootCAs: roots, MinVersion: tls.VersionTLS12}
	trust, ok := p.TLS[addr]
	if !ok && port == "443" {
		trust = p.TLS[name]
	}
	config.InsecureSkipVerify = trust.InsecureSkipVerify
	if len(trust.CA) > 0 {
		config.RootCAs = roots.Clone()
		config.RootCAs.AppendCertsFromPEM(trust.CA)
	}
	conn, err := p.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return secure, nil
}

// dial resolves the name and opens the connection in the node's network.
func (p *Puller) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	name, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	address, err := p.resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	dial := p.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	conn, err := dial(ctx, network, net.JoinHostPort(address, port))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, err)
	}
	return conn, nil
}

func (p *Puller) resolve(ctx context.Context, name string) (string, error) {
	if net.ParseIP(name) != nil {
		return name, nil
	}
	if address, ok := p.Hosts[name]; ok {
		return address, nil
	}
	if p.Resolve != nil {
		return p.Resolve(ctx, name)
	}
	return "", &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}
