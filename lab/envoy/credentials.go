package envoy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// credentialFile is a certificate that comes from a file in the form of a
// discovery response. The file is read again when another one was moved into
// its place; a file that is written in place goes unnoticed, as it does there.
type credentialFile struct {
	path   string
	secret string

	mu   sync.Mutex
	seen os.FileInfo
	pair *tls.Certificate
}

// certificate implements tls.Config.GetClientCertificate. A file that cannot
// be used leaves the last good one in force.
func (f *credentialFile) certificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	_ = f.load()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pair == nil {
		return nil, errors.New("no client certificate")
	}
	return f.pair, nil
}

func (f *credentialFile) load() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	if f.seen != nil && os.SameFile(f.seen, info) {
		return nil
	}
	var response discovery.DiscoveryResponse
	if err := readProto(f.path, &response); err != nil {
		return fmt.Errorf("credentials: %w", err)
	}
	for _, resource := range response.GetResources() {
		var secret tlsv3.Secret
		if err := resource.UnmarshalTo(&secret); err != nil {
			return fmt.Errorf("credentials: %w", err)
		}
		if secret.GetName() != f.secret {
			continue
		}
		certificate := secret.GetTlsCertificate()
		pair, err := tls.X509KeyPair([]byte(certificate.GetCertificateChain().GetInlineString()), []byte(certificate.GetPrivateKey().GetInlineString()))
		if err != nil {
			return fmt.Errorf("credentials: secret %s: %w", f.secret, err)
		}
		f.pair, f.seen = &pair, info
		return nil
	}
	return fmt.Errorf("credentials: %s has no secret %s", f.path, f.secret)
}
