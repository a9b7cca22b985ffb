package talos

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config/config"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/connrotation"
)

// trust is the API server's address with the authorities that the kubelet
// accepts for it: cluster.ca and cluster.acceptedCAs, nothing else.
type trust struct {
	server string
	caPEM  []byte
	roots  *x509.CertPool
}

func (n *node) newTrust() (trust, error) {
	t := trust{server: n.apiServer(), caPEM: clusterCAs(n.provider.Cluster())}
	roots, err := pool(t.caPEM)
	if err != nil {
		return trust{}, err
	}
	t.roots = roots
	return t, nil
}

func clusterCAs(cluster config.ClusterConfig) []byte {
	var all []byte
	if ca := cluster.IssuingCA(); ca != nil {
		all = append(all, ca.Crt...)
	}
	for _, ca := range cluster.AcceptedCAs() {
		all = append(append(all, '\n'), ca.Crt...)
	}
	return all
}

// apiClient is a connection to the API server with one credential.
type apiClient struct {
	kubernetes.Interface

	rest   *rest.Config
	dialer *connrotation.Dialer
}

// newClient connects with what authenticate adds to each request and with the
// certificate, both optional.
func (n *node) newClient(t trust, authenticate func(http.RoundTripper) http.RoundTripper, certificate func() *tls.Certificate) (*apiClient, error) {
	dialer := connrotation.NewDialer(n.names.dialContext)
	tlsConfig := &tls.Config{RootCAs: t.roots, MinVersion: tls.VersionTLS12}
	if certificate != nil {
		tlsConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if current := certificate(); current != nil {
				return current, nil
			}
			return &tls.Certificate{}, nil
		}
	}
	var rt http.RoundTripper = &http.Transport{
		DialContext: dialer.DialContext, TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: 10 * time.Second, IdleConnTimeout: 90 * time.Second,
	}
	if authenticate != nil {
		rt = authenticate(rt)
	}
	cfg := &rest.Config{Host: t.server, Transport: rt, QPS: 50, Burst: 100, UserAgent: "kubelet/" + n.disk.content.Image.Version + " (linux/amd64) aether-lab"}
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make client of %s: %w", t.server, err)
	}
	return &apiClient{Interface: clients, rest: cfg, dialer: dialer}, nil
}

// bootstrapClient has the configuration's token and nothing else.
func (n *node) bootstrapClient(t trust) (*apiClient, error) {
	var authenticate func(http.RoundTripper) http.RoundTripper
	if token := n.bootstrapToken(); token != "" {
		authenticate = func(rt http.RoundTripper) http.RoundTripper { return transport.NewBearerAuthRoundTripper(token, rt) }
	}
	return n.newClient(t, authenticate, nil)
}

func (n *node) bootstrapToken() string {
	token := n.provider.Cluster().Token()
	if token == nil || token.ID() == "" && token.Secret() == "" {
		return ""
	}
	return token.ID() + "." + token.Secret()
}

// current is the certificate in use; it may be replaced while connections are
// open.
type current struct {
	value atomic.Pointer[tls.Certificate]
}

func (c *current) get() *tls.Certificate { return c.value.Load() }

// follow takes over each renewed certificate and closes the connections that
// were opened with the old one, as a kubelet does.
func (c *current) follow(ctx context.Context, newest func() *tls.Certificate, client *apiClient) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		if cert := newest(); cert != nil && cert != c.value.Load() {
			if c.value.Swap(cert) != nil {
				client.dialer.CloseAll()
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
