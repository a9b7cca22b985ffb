package kamaji

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// tenant is a connection to a tenant with one set of credentials.
type tenant struct {
	api       kubernetes.Interface
	transport *http.Transport
}

func (t *tenant) close() {
	if t != nil {
		t.transport.CloseIdleConnections()
	}
}

func (i *inspection) close() {
	i.super.close()
	i.admin.close()
}

// openTenant makes the clients for both administrators, at the load balancer.
// Which of them can be made is part of the findings, not an error.
func (i *inspection) openTenant(ctx context.Context) error {
	if i.address == "" || len(i.ca) == 0 {
		return nil
	}
	for key, into := range map[string]**tenant{keySuperAdmin: &i.super, keyAdmin: &i.admin} {
		found, err := i.kubeconfig(ctx, i.ref, key)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		redirected, err := i.redirect(ctx, i.ref, found, i.address)
		if err != nil {
			return fmt.Errorf("secret %s%s key %s: %w", i.ref, suffixAdmin, key, err)
		}
		if *into, err = i.connect(redirected); err != nil {
			return fmt.Errorf("secret %s%s key %s: %w", i.ref, suffixAdmin, key, err)
		}
	}
	return nil
}

// connect uses a transport of its own, which client-go would keep for ever.
func (c *Client) connect(kubeconfig Kubeconfig) (*tenant, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, errUnreadable
	}
	secure, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, errUnreadable
	}
	transport := &http.Transport{TLSClientConfig: secure, DialContext: c.dial, ForceAttemptHTTP2: true, TLSHandshakeTimeout: callTimeout}
	plain := &rest.Config{Host: config.Host, QPS: -1, Timeout: callTimeout}
	api, err := kubernetes.NewForConfigAndClient(plain, &http.Client{Transport: transport, Timeout: callTimeout})
	if err != nil {
		return nil, fmt.Errorf("tenant client: %w", err)
	}
	return &tenant{api: api, transport: transport}, nil
}

// handshake checks that what is served at an address and port is good for a
// name, under the tenant's authority.
func (c *Client) handshake(ctx context.Context, address string, port int, name string, ca []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return errors.New("the authority in the Secret is not a certificate")
	}
	conn, err := c.dial(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	secured := tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12})
	err = secured.HandshakeContext(ctx)
	return errors.Join(err, ignoreClosed(conn.Close()))
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
