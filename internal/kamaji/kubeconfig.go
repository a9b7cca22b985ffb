package kamaji

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"aether.internal/aether/internal/domain"
)

const (
	suffixCA          = "-ca"
	suffixAdmin       = "-admin-kubeconfig"
	suffixCertificate = "-api-server-certificate"

	keyCA         = "ca.crt"
	keyAdmin      = "admin.conf"
	keySuperAdmin = "super-admin.conf"
	keyServing    = "apiserver.crt"
)

// ErrStale means that Kamaji's kubeconfig still names another server than the
// proxy: the advertised address was changed after its birth.
var ErrStale = errors.New("names an old server")

// Kubeconfig is a kubeconfig with credentials. It is not shown when printed or
// logged.
type Kubeconfig []byte

// String hides the content.
func (Kubeconfig) String() string { return "[kubeconfig]" }

// GoString hides the content.
func (Kubeconfig) GoString() string { return "[kubeconfig]" }

// LogValue hides the content.
func (Kubeconfig) LogValue() slog.Value { return slog.StringValue("[kubeconfig]") }

// MarshalJSON refuses: a kubeconfig belongs into a Secret, never into a
// workflow's history.
func (Kubeconfig) MarshalJSON() ([]byte, error) {
	return nil, errors.New("a kubeconfig is not to be encoded; pass the Secret's name")
}

// Kubeconfigs are the two ways to a tenant, with the same credentials.
type Kubeconfigs struct {
	// Published goes to the tenant: its server is the proxy.
	Published Kubeconfig
	// Management is for the platform: its server is the load balancer, so that
	// a proxy's rotation blinds nobody.
	Management Kubeconfig
	// CA is the cluster's authority, PEM; it is public.
	CA []byte
}

// Kubeconfigs reads the tenant's administrator kubeconfig and turns it into
// both. ErrNotFound means that Kamaji has not made it yet, ErrStale that its
// server is not the proxy.
func (c *Client) Kubeconfigs(ctx context.Context, ref Ref, want Want) (Kubeconfigs, error) {
	service, err := c.service(ctx, ref)
	if err != nil {
		return Kubeconfigs{}, err
	}
	address := loadBalancer(service)
	if address == "" {
		return Kubeconfigs{}, fmt.Errorf("kubeconfigs of %s: load balancer address of service %s: %w", ref, ref.Name, ErrNotFound)
	}
	published, err := c.kubeconfig(ctx, ref, keyAdmin)
	if err != nil {
		return Kubeconfigs{}, err
	}
	cluster, err := clusterOf(published)
	if err != nil {
		return Kubeconfigs{}, fmt.Errorf("kubeconfigs of %s: %w", ref, err)
	}
	if wanted := want.server(); cluster.Server != wanted {
		return Kubeconfigs{}, fmt.Errorf("kubeconfigs of %s: %s %w: %s, not %s; delete Secret %s%s, which Kamaji makes anew, and ConfigMap kube-public/cluster-info in the tenant",
			ref, keyAdmin, ErrStale, cluster.Server, wanted, ref.Name, suffixAdmin)
	}
	management, err := c.redirect(ctx, ref, published, address)
	if err != nil {
		return Kubeconfigs{}, err
	}
	return Kubeconfigs{Published: published, Management: management, CA: cluster.CertificateAuthorityData}, nil
}

// CA returns the authority of the cluster, PEM.
func (c *Client) CA(ctx context.Context, ref Ref) ([]byte, error) {
	secret, err := c.secret(ctx, ref, suffixCA)
	if err != nil {
		return nil, err
	}
	if secret == nil || len(secret.Data[keyCA]) == 0 {
		return nil, fmt.Errorf("read key %s of secret %s%s: %w", keyCA, ref, suffixCA, ErrNotFound)
	}
	return secret.Data[keyCA], nil
}

func (c *Client) kubeconfig(ctx context.Context, ref Ref, key string) (Kubeconfig, error) {
	secret, err := c.secret(ctx, ref, suffixAdmin)
	if err != nil {
		return nil, err
	}
	if secret == nil || len(secret.Data[key]) == 0 {
		return nil, fmt.Errorf("read key %s of secret %s%s: %w", key, ref, suffixAdmin, ErrNotFound)
	}
	return secret.Data[key], nil
}

// redirect points a kubeconfig to the load balancer. If the certificate does
// not cover that address, the Service's name, which it always has, is expected.
func (c *Client) redirect(ctx context.Context, ref Ref, from Kubeconfig, address string) (Kubeconfig, error) {
	secret, err := c.secret(ctx, ref, suffixCertificate)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.Load(from)
	if err != nil {
		return nil, errUnreadable
	}
	for _, cluster := range config.Clusters {
		cluster.Server = serverURL(address)
		cluster.TLSServerName = ""
		if !covers(secret, address) {
			cluster.TLSServerName = fmt.Sprintf("%s.%s.svc", ref.Name, ref.Namespace)
		}
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		return nil, errUnreadable
	}
	return data, nil
}

// errUnreadable says nothing of the content, which holds a key.
var errUnreadable = errors.New("kubeconfig is not readable")

func clusterOf(kubeconfig Kubeconfig) (*clientcmdapi.Cluster, error) {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, errUnreadable
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil || config.Clusters[current.Cluster] == nil {
		return nil, errUnreadable
	}
	return config.Clusters[current.Cluster], nil
}

// covers tells whether the API server's certificate is good for an address.
func covers(secret *corev1.Secret, address string) bool {
	if secret == nil {
		return false
	}
	block, _ := pem.Decode(secret.Data[keyServing])
	if block == nil {
		return false
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	return err == nil && certificate.VerifyHostname(address) == nil
}

func serverURL(address string) string {
	return (&url.URL{Scheme: "https", Host: net.JoinHostPort(address, strconv.Itoa(domain.APIServerPort))}).String()
}

func samePEM(a, b []byte) bool { return bytes.Equal(bytes.TrimSpace(a), bytes.TrimSpace(b)) }
