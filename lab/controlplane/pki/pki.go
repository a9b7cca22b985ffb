// Package pki makes the certificates that the lab's control planes and
// servers need: small authorities with ECDSA keys, alive as long as a lab.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"time"
)

const (
	authorityLifetime   = 10 * 365 * 24 * time.Hour
	certificateLifetime = 365 * 24 * time.Hour
	// backdated lets clocks differ a little.
	backdated = 5 * time.Minute
)

// Pair is a certificate with its key, in PEM.
type Pair struct{ Certificate, Key []byte }

// TLS makes the pair usable by crypto/tls.
func (p Pair) TLS() (tls.Certificate, error) {
	c, err := tls.X509KeyPair(p.Certificate, p.Key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("pair certificate and key: %w", err)
	}
	return c, nil
}

// Authority signs certificates.
type Authority struct {
	Pair
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority makes a self-signed authority.
func NewAuthority(commonName string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("key of authority %s: %w", commonName, err)
	}
	template, err := newTemplate(pkix.Name{CommonName: commonName}, authorityLifetime)
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("certificate of authority %s: %w", commonName, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate of authority %s: %w", commonName, err)
	}
	pair, err := encode(der, key)
	if err != nil {
		return nil, err
	}
	return &Authority{Pair: pair, certificate: certificate, key: key}, nil
}

// Pool trusts this authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// Request says what a certificate shall state. It can be used by servers and
// clients alike.
type Request struct {
	CommonName    string
	Organizations []string
	Names         []string
	Addresses     []netip.Addr
}

// Issue makes a key and signs a certificate for it.
func (a *Authority) Issue(r Request) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("key of %s: %w", r.CommonName, err)
	}
	template, err := newTemplate(pkix.Name{CommonName: r.CommonName, Organization: r.Organizations}, certificateLifetime)
	if err != nil {
		return Pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.DNSNames = r.Names
	for _, ip := range r.Addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.Unmap().AsSlice()))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("certificate of %s: %w", r.CommonName, err)
	}
	return encode(der, key)
}

func newTemplate(subject pkix.Name, lifetime time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, fmt.Errorf("serial number of %s: %w", subject.CommonName, err)
	}
	now := time.Now()
	return &x509.Certificate{SerialNumber: serial, Subject: subject, NotBefore: now.Add(-backdated), NotAfter: now.Add(lifetime)}, nil
}

func encode(der []byte, key *ecdsa.PrivateKey) (Pair, error) {
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: keyPEM}, nil
}

// SigningKey makes a key pair without a certificate, for service account
// tokens: the private and the public half in PEM.
func SigningKey() (private, public []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("signing key: %w", err)
	}
	if private, err = encodeKey(key); err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, nil, fmt.Errorf("signing key: %w", err)
	}
	return private, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

// encodeKey writes a key the way each of the upstream programs reads it.
func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
