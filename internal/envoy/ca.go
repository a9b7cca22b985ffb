package envoy

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/internal/envoy/wire"
)

// CASecret is the Secret that holds the platform's proxy authority.
const CASecret = "aether-proxy-ca"

const (
	caLifetime = 10 * 365 * 24 * time.Hour
	// ProxyCertificateLifetime is how long a proxy's certificate is good for.
	// Agents renew before two thirds of it, so a server that is away for ten
	// days costs no proxy its identity.
	ProxyCertificateLifetime  = 30 * 24 * time.Hour
	serverCertificateLifetime = 7 * 24 * time.Hour
	// clockSkew is how far a proxy's clock may be behind ours.
	clockSkew = 5 * time.Minute
)

// ErrRequest marks a certificate request that is not acceptable.
var ErrRequest = errors.New("certificate request refused")

// CA signs the certificates of proxies and of the server that they talk to.
type CA struct {
	certificate *x509.Certificate
	key         crypto.Signer
	pem         []byte
	now         func() time.Time
}

// NewCA makes a new authority and returns it with its private key in PEM.
func NewCA(now func() time.Time) (*CA, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make proxy authority: %w", err)
	}
	template, err := newTemplate(now(), caLifetime)
	if err != nil {
		return nil, nil, err
	}
	template.Subject = pkix.Name{CommonName: "Aether proxies"}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.MaxPathLenZero = true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("make proxy authority: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("make proxy authority: %w", err)
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	ca, err := LoadCA(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM, now)
	return ca, keyPEM, err
}

// LoadCA reads an authority from PEM.
func LoadCA(certificatePEM, keyPEM []byte, now func() time.Time) (*CA, error) {
	pair, err := tls.X509KeyPair(certificatePEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("load proxy authority: %w", err)
	}
	signer, isSigner := pair.PrivateKey.(crypto.Signer)
	if !isSigner || !pair.Leaf.IsCA {
		return nil, errors.New("load proxy authority: the certificate is not an authority's; restore the Secret or delete it to start anew")
	}
	return &CA{certificate: pair.Leaf, key: signer, pem: certificatePEM, now: now}, nil
}

// EnsureCA loads the authority from its Secret and makes both when they do not
// exist. Of several replicas that start at once, one makes it.
func EnsureCA(ctx context.Context, c client.Client, namespace string, now func() time.Time) (*CA, error) {
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: namespace, Name: CASecret}
	err := c.Get(ctx, key, &secret)
	if apierrors.IsNotFound(err) {
		ca, keyPEM, makeErr := NewCA(now)
		if makeErr != nil {
			return nil, makeErr
		}
		secret = corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: CASecret},
			Type:       corev1.SecretTypeTLS,
			Data:       map[string][]byte{corev1.TLSCertKey: ca.pem, corev1.TLSPrivateKeyKey: keyPEM},
		}
		if err = c.Create(ctx, &secret); err == nil {
			return ca, nil
		}
		if apierrors.IsAlreadyExists(err) {
			err = c.Get(ctx, key, &secret)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("proxy authority: Secret %s: %w", key, err)
	}
	return LoadCA(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey], now)
}

// PEM is the authority's certificate, for those who must trust it.
func (c *CA) PEM() []byte { return c.pem }

// Pool holds just this authority.
func (c *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.certificate)
	return pool
}

// SignProxy answers a proxy's certificate request (PEM). Of the request only
// the key is used: the name comes from the caller, who knows whose it is.
func (c *CA) SignProxy(id ID, request *x509.CertificateRequest) ([]byte, error) {
	template, err := newTemplate(c.now(), ProxyCertificateLifetime)
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{CommonName: id.NodeID()}
	template.URIs = []*url.URL{id.URI()}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, c.certificate, request.PublicKey, c.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", id, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// ParseRequest reads a PEM certificate request and checks its own signature
// and kind of key.
func ParseRequest(requestPEM []byte) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode(requestPEM)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(rest) > 0 {
		return nil, fmt.Errorf("%w: csr: it must be one PEM block CERTIFICATE REQUEST", ErrRequest)
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: csr: %w", ErrRequest, err)
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("%w: csr: %w", ErrRequest, err)
	}
	switch key := request.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() {
			return nil, fmt.Errorf("%w: csr: curve %s; use P-256 or P-384", ErrRequest, key.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	default:
		return nil, fmt.Errorf("%w: csr: key type %T; use ECDSA P-256, P-384 or Ed25519", ErrRequest, key)
	}
	return request, nil
}

// ServerCertificate makes a certificate for the server itself, good for
// wire.ServerName and the extra names and addresses.
func (c *CA) ServerCertificate(extra ...string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make server certificate: %w", err)
	}
	template, err := newTemplate(c.now(), serverCertificateLifetime)
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{CommonName: wire.ServerName}
	template.DNSNames = []string{wire.ServerName}
	for _, name := range extra {
		if address := net.ParseIP(name); address != nil {
			template.IPAddresses = append(template.IPAddresses, address)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, c.certificate, key.Public(), c.key)
	if err != nil {
		return nil, fmt.Errorf("make server certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make server certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

func newTemplate(now time.Time, lifetime time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	return &x509.Certificate{SerialNumber: serial, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(lifetime)}, nil
}
