package kamaji_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t: t, cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) issue(commonName string, addresses ...string) (certPEM, keyPEM []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: commonName}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, address := range addresses {
		if ip := net.ParseIP(address); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, address)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

func (a *authority) kubeconfig(server, user string) []byte {
	a.t.Helper()
	cert, key := a.issue(user)
	data, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"t1": {Server: server, CertificateAuthorityData: a.pem}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {ClientCertificateData: cert, ClientKeyData: key}},
		Contexts:       map[string]*clientcmdapi.Context{"c": {Cluster: "t1", AuthInfo: user}},
		CurrentContext: "c",
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return data
}

// fakeTenant answers like a tenant's API server, from a map of paths.
type fakeTenant struct {
	objects map[string]any
	// forbidden keeps the published administrator from everything.
	forbidden bool
	tunnel    bool
	api       *httptest.Server
	agent     *httptest.Server
}

const (
	leases   = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/"
	bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/"
	infoPath = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
)

func newFakeTenant(t *testing.T, ca *authority, names ...string) *fakeTenant {
	t.Helper()
	f := &fakeTenant{tunnel: true, objects: map[string]any{
		leases + "kube-controller-manager":                 lease(time.Second),
		leases + "kube-scheduler":                          lease(time.Second),
		infoPath:                                           clusterInfo(t, "https://10.1.1.10:6443", ca.pem),
		"/api/v1/namespaces/kube-system":                   map[string]any{},
		"/api/v1/namespaces/kube-system/services/kube-dns": map[string]any{},
		"/apis/apps/v1/namespaces/kube-system/daemonsets/konnectivity-agent": map[string]any{},
		bindings + "kubeadm:kubelet-bootstrap":                               map[string]any{},
		bindings + "kubeadm:node-autoapprove-bootstrap":                      map[string]any{},
		bindings + "kubeadm:node-autoapprove-certificate-rotation":           map[string]any{},
		bindings + "kubeadm:apiserver-kubelet-client":                        map[string]any{},
	}}
	f.api = serve(t, ca, http.HandlerFunc(f.answer), names...)
	f.agent = serve(t, ca, http.NotFoundHandler(), names...)
	return f
}

func serve(t *testing.T, ca *authority, handler http.Handler, names ...string) *httptest.Server {
	t.Helper()
	cert, key := ca.issue("kube-apiserver", names...)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(ca.cert)
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes without a request are meant
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func (f *fakeTenant) answer(w http.ResponseWriter, r *http.Request) {
	user := ""
	if len(r.TLS.PeerCertificates) > 0 {
		user = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	if r.URL.Path == "/readyz" {
		_, _ = w.Write([]byte("ok"))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	object, ok := f.objects[r.URL.Path]
	code, reason := http.StatusOK, metav1.StatusReason("")
	switch {
	case user == "" || (f.forbidden && user == "kubernetes-admin"):
		code, reason = http.StatusForbidden, metav1.StatusReasonForbidden
	case !ok:
		code, reason = http.StatusNotFound, metav1.StatusReasonNotFound
	}
	if code != http.StatusOK {
		object = metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: string(reason)}
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object)
}

// dial leads every address to the fake, by port.
func (f *fakeTenant) dial(ctx context.Context, network, address string) (net.Conn, error) {
	target := f.api
	if strings.HasSuffix(address, ":8132") {
		target = f.agent
		if !f.tunnel {
			return nil, net.ErrClosed
		}
	}
	return (&net.Dialer{}).DialContext(ctx, network, target.Listener.Addr().String())
}

func lease(age time.Duration) *coordinationv1.Lease {
	holder, renewed := "t1-pod", metav1.NewMicroTime(time.Now().Add(-age))
	return &coordinationv1.Lease{
		TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		Spec:     coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &renewed},
	}
}

func clusterInfo(t *testing.T, server string, ca []byte) map[string]any {
	t.Helper()
	data, err := clientcmd.Write(clientcmdapi.Config{Clusters: map[string]*clientcmdapi.Cluster{"": {Server: server, CertificateAuthorityData: ca}}})
	if err != nil {
		t.Fatal(err)
	}
	return map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]string{"kubeconfig": string(data)}}
}
