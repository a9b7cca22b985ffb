package proxyagent

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"aether.internal/aether/internal/envoy/wire"
)

// Names in the state directory.
const (
	pendingKeyFile = "pending-key.pem" // made before enrolment, so that a repeated call brings the same key
	identityFile   = "identity.pem"    // certificate and key in one file, so that they are replaced together
	usedTokenFile  = "used-token"      // digest of the token that was used
)

// identity is a key pair with its certificate.
type identity struct {
	certificatePEM []byte
	keyPEM         []byte
	pair           tls.Certificate
}

func (i *identity) notAfter() time.Time { return i.pair.Leaf.NotAfter }

func (i *identity) renewAt() time.Time {
	return wire.RenewAt(i.pair.Leaf.NotBefore, i.pair.Leaf.NotAfter)
}

// newIdentity pairs a certificate with its key and checks that it is the one
// that was wanted.
func newIdentity(id wire.ID, certificatePEM, keyPEM []byte, roots *x509.CertPool, now time.Time) (*identity, error) {
	pair, err := tls.X509KeyPair(certificatePEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	usage := x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := pair.Leaf.Verify(usage); err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	if len(pair.Leaf.URIs) != 1 || pair.Leaf.URIs[0].String() != id.URI().String() {
		return nil, fmt.Errorf("certificate: it names %v, not %s", pair.Leaf.URIs, id.URI())
	}
	return &identity{certificatePEM: certificatePEM, keyPEM: keyPEM, pair: pair}, nil
}

// state is the agent's directory.
type state struct{ dir string }

func (s state) path(name string) string { return filepath.Join(s.dir, name) }

// loadIdentity returns nil when there is none.
func (s state) loadIdentity(id wire.ID, roots *x509.CertPool, now time.Time) (*identity, error) {
	data, err := os.ReadFile(s.path(identityFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // nil is the documented answer for "none yet"
	}
	if err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	certificate, key := splitPEM(data)
	return newIdentity(id, certificate, key, roots, now)
}

func (s state) saveIdentity(i *identity) error {
	_, err := replaceFile(s.path(identityFile), append(bytes.Clone(i.certificatePEM), i.keyPEM...), 0o600)
	return err
}

func splitPEM(data []byte) (certificates, keys []byte) {
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			return certificates, keys
		}
		if block.Type == "CERTIFICATE" {
			certificates = append(certificates, pem.EncodeToMemory(block)...)
		} else {
			keys = append(keys, pem.EncodeToMemory(block)...)
		}
		data = rest
	}
}

// pendingKey returns the key to enrol with, and makes it the first time. It is
// kept over restarts: the server lets the same key repeat a call whose answer
// was lost, and no other.
func (s state) pendingKey() ([]byte, error) {
	key, err := os.ReadFile(s.path(pendingKeyFile))
	if err == nil {
		return key, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("pending key: %w", err)
	}
	if key, err = newKey(); err != nil {
		return nil, err
	}
	_, err = replaceFile(s.path(pendingKeyFile), key, 0o600)
	return key, err
}

// wasUsed tells whether this token enrolled this machine before.
func (s state) wasUsed(token string) (bool, error) {
	digest, err := os.ReadFile(s.path(usedTokenFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("used token: %w", err)
	}
	return string(digest) == tokenDigest(token), nil
}

func (s state) markUsed(token string) error {
	_, err := replaceFile(s.path(usedTokenFile), []byte(tokenDigest(token)), 0o600)
	return err
}

func tokenDigest(token string) string {
	digest := sha256.Sum256([]byte(token))
	return hex.EncodeToString(digest[:])
}

func newKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// newRequest signs a certificate request with the key.
func newRequest(id wire.ID, keyPEM []byte) ([]byte, error) {
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return nil, errors.New("certificate request: the key file has no PEM in it; delete it and enrol with a new token")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: id.NodeID()}}, key)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}
