package talos

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"
)

const clientSigner = certificatesv1.KubeAPIServerClientKubeletSignerName

func nodeSubject(name string) pkix.Name {
	return pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + name}
}

func clientUsages(any) []certificatesv1.KeyUsage {
	return []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
}

func servingUsages(any) []certificatesv1.KeyUsage {
	return []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
}

// errNoServingCertificate is what a handshake ends with while the request has
// not been approved.
var errNoServingCertificate = errors.New("no serving certificate available for the kubelet")

// servingCertificates returns where port 10250 takes its certificate from, and
// what starts and then stops its renewal. Without
// rotate-server-certificates the kubelet signs one itself.
func (k *kubeletService) servingCertificates(ctx context.Context, client kubernetes.Interface) (get func() (*tls.Certificate, error), start func() (stop func()), err error) {
	if !k.node.rotatesServingCertificates() {
		own, err := selfSignedServing(k.node.name, k.node.ip.AsSlice())
		if err != nil {
			return nil, nil, err
		}
		return func() (*tls.Certificate, error) { return own, nil }, func() func() { return func() {} }, nil
	}
	manager, err := certificate.NewManager(&certificate.Config{
		Ctx: &ctx, Name: "kubelet-serving",
		ClientsetFn: func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil },
		Template: &x509.CertificateRequest{
			Subject: nodeSubject(k.node.name), DNSNames: []string{k.node.name}, IPAddresses: []net.IP{k.node.ip.AsSlice()},
		},
		SignerName:       certificatesv1.KubeletServingSignerName,
		GetUsages:        servingUsages,
		CertificateStore: pemStore{disk: k.node.disk, file: servingFile},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("keep serving certificate: %w", err)
	}
	get = func() (*tls.Certificate, error) {
		if cert := manager.Current(); cert != nil {
			return cert, nil
		}
		return nil, errNoServingCertificate
	}
	start = func() func() {
		manager.Start()
		return manager.Stop
	}
	return get, start, nil
}

func (n *node) rotatesServingCertificates() bool {
	kubelet := n.provider.Machine().Kubelet()
	if kubelet.ExtraArgs()["rotate-server-certificates"] == "true" {
		return true
	}
	set, _ := kubelet.ExtraConfig()["serverTLSBootstrap"].(bool)
	return set
}

func selfSignedServing(name string, ip net.IP) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make serving key: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name + "@" + fmt.Sprint(now.Unix())},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0), DNSNames: []string{name}, IPAddresses: []net.IP{ip},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make serving certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, nil
}

// isTrustProblem tells an error of certificates from one of the network.
func isTrustProblem(err error) bool {
	var verification *tls.CertificateVerificationError
	return errors.As(err, &verification)
}
