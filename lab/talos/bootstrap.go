package talos

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"
)

// clientCertificate returns the kubelet's certificate: the one on the disk if
// it still holds, else a new one for the bootstrap token.
func (k *kubeletService) clientCertificate(ctx context.Context) (*tls.Certificate, error) {
	store := pemStore{disk: k.node.disk, file: clientFile}
	if cert, err := store.Current(); err == nil {
		problem := k.unusable(cert)
		if problem == nil {
			return cert, nil
		}
		k.node.console.talos("kubelet client certificate is removed: %v", problem)
		store.remove()
	}
	return k.bootstrap(ctx, store)
}

func (k *kubeletService) unusable(cert *tls.Certificate) error {
	if want := "system:node:" + k.node.name; cert.Leaf.Subject.CommonName != want {
		return fmt.Errorf("it is of %q, expected is %q", cert.Leaf.Subject.CommonName, want)
	}
	_, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: k.trust.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return fmt.Errorf("it does not match any accepted CAs: %w", err)
	}
	return nil
}

// bootstrap asks for a certificate with the token of the configuration.
func (k *kubeletService) bootstrap(ctx context.Context, store pemStore) (*tls.Certificate, error) {
	client, err := k.node.bootstrapClient(k.trust)
	if err != nil {
		return nil, err
	}
	defer client.dialer.CloseAll()
	k.waitForServer(ctx, client)
	if k.key == nil {
		// The same key at every attempt, so that a request which was made
		// before is found again.
		if k.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return nil, fmt.Errorf("make key: %w", err)
		}
	}
	subject := pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + k.node.name}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, k.key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	name, err := digestedName(k.key, subject, usages)
	if err != nil {
		return nil, err
	}
	asked := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, asked, name, certificatesv1.KubeAPIServerClientKubeletSignerName, nil, usages, k.key)
	if err != nil {
		return nil, fmt.Errorf("unable to bootstrap: %w", err)
	}
	k.node.console.kubelet("waiting for certificate of request %s", name)
	waitCtx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	issued, err := csr.WaitForCertificate(waitCtx, client, name, uid)
	if err != nil {
		return nil, fmt.Errorf("wait for certificate of request %s: %w", name, err)
	}
	key, err := keyutil.MarshalPrivateKeyToPEM(k.key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	k.node.console.kubelet("certificate was issued")
	return store.Update(issued, key)
}

// waitForServer waits up to a minute for any answer; what is wrong with it the
// request after it will tell.
func (k *kubeletService) waitForServer(ctx context.Context, client *apiClient) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		attempt, stop := context.WithTimeout(ctx, 5*time.Second)
		var code int
		err := client.CoreV1().RESTClient().Get().AbsPath("/healthz").Do(attempt).StatusCode(&code).Error()
		stop()
		if code != 0 || ctx.Err() != nil {
			return
		}
		k.node.console.kubelet("Failed to connect to apiserver: %v", err)
		if isTrustProblem(err) {
			return
		}
		if pause(ctx, 500*time.Millisecond) != nil {
			return
		}
	}
}

// digestedName is a name that the same key and subject always give.
func digestedName(key *ecdsa.PrivateKey, subject pkix.Name, usages []certificatesv1.KeyUsage) (string, error) {
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return "", fmt.Errorf("encode public key: %w", err)
	}
	hash := sha256.New()
	for _, part := range []string{string(public), subject.String(), fmt.Sprint(usages)} {
		hash.Write([]byte(part + "|"))
	}
	return "node-csr-" + base64.RawURLEncoding.EncodeToString(hash.Sum(nil)), nil
}
