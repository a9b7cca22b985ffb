package capi

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
)

const nodeName = "demo-workers-6f1e0c52"

// worker is a machine with a card on the tenant's network and one on storage.
func worker() v1alpha1.AetherVM {
	return v1alpha1.AetherVM{
		ObjectMeta: metav1.ObjectMeta{Namespace: domain.SystemNamespace, Name: "6f1e0c52-8e0f-4a36-9a0e-0f6f2a3c4d5e", Labels: map[string]string{domain.TenantLabel: "demo"}},
		Spec: v1alpha1.AetherVMSpec{
			Tenant: "demo", Role: v1alpha1.RoleWorker, VMName: nodeName,
			NICs:     []v1alpha1.NIC{{Network: "tenant", Address: "10.1.1.50/24"}, {Network: "storage", Address: "10.1.2.50/24"}},
			ClaimRef: v1alpha1.ClaimReference{Namespace: "tenant-demo", Name: "demo-workers-abc"},
		},
	}
}

// wish is a request before it is signed and sent.
type wish struct {
	request  certificatesv1.CertificateSigningRequest
	template x509.CertificateRequest
	machine  v1alpha1.AetherVM
	spoilPEM func([]byte) []byte
}

// honest is what a kubelet asks for.
func honest() *wish {
	return &wish{
		request: certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "csr-1"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: certificatesv1.KubeletServingSignerName, Username: "system:node:" + nodeName, Groups: []string{"system:nodes", "system:authenticated"},
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
			},
		},
		template: x509.CertificateRequest{
			Subject:  pkix.Name{CommonName: "system:node:" + nodeName, Organization: []string{"system:nodes"}},
			DNSNames: []string{nodeName}, IPAddresses: []net.IP{net.ParseIP("10.1.1.50")},
		},
		machine:  worker(),
		spoilPEM: func(data []byte) []byte { return data },
	}
}

func (w *wish) sign(t *testing.T) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &w.template, key)
	if err != nil {
		t.Fatal(err)
	}
	w.request.Spec.Request = w.spoilPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	return &w.request
}

func TestMayServe(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*wish)
		want   string // in the refusal; empty: approved
	}{
		{"as a kubelet asks", func(*wish) {}, ""},
		{"with both addresses", func(w *wish) { w.template.IPAddresses = append(w.template.IPAddresses, net.ParseIP("10.1.2.50")) }, ""},
		{"without a name", func(w *wish) { w.template.DNSNames = nil }, ""},
		{"with key encipherment", func(w *wish) {
			w.request.Spec.Usages = append(w.request.Spec.Usages, certificatesv1.UsageKeyEncipherment)
		}, ""},
		{"the node of another machine", func(w *wish) {
			w.request.Spec.Username = "system:node:demo-workers-ffffffff"
			w.template.Subject.CommonName, w.template.DNSNames = w.request.Spec.Username, []string{"demo-workers-ffffffff"}
		}, "no machine that Aether made"},
		{"another node's name in the subject", func(w *wish) { w.template.Subject.CommonName = "system:node:demo-workers-ffffffff" }, "subject"},
		{"another node's DNS name", func(w *wish) { w.template.DNSNames = append(w.template.DNSNames, "demo-workers-ffffffff") }, `DNS name "demo-workers-ffffffff"`},
		{"a service's DNS name", func(w *wish) { w.template.DNSNames = []string{"kubernetes.default.svc"} }, "DNS name"},
		{"a foreign address", func(w *wish) { w.template.IPAddresses = []net.IP{net.ParseIP("10.1.1.10")} }, "address 10.1.1.10 is not leased"},
		{"a foreign address beside its own", func(w *wish) { w.template.IPAddresses = append(w.template.IPAddresses, net.ParseIP("10.96.0.1")) }, "10.96.0.1"},
		{"loopback", func(w *wish) { w.template.IPAddresses = append(w.template.IPAddresses, net.ParseIP("127.0.0.1")) }, "127.0.0.1"},
		{"no address", func(w *wish) { w.template.IPAddresses = nil }, "no address"},
		{"an e-mail address", func(w *wish) { w.template.EmailAddresses = []string{"a@example.com"} }, "e-mail"},
		{"a URI", func(w *wish) { w.template.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} }, "URIs"},
		{"another organisation", func(w *wish) { w.template.Subject.Organization = []string{"system:masters"} }, "subject"},
		{"one organisation more", func(w *wish) {
			w.template.Subject.Organization = append(w.template.Subject.Organization, "system:masters")
		}, "subject"},
		{"no organisation", func(w *wish) { w.template.Subject.Organization = nil }, "subject"},
		{"another signer", func(w *wish) { w.request.Spec.SignerName = certificatesv1.KubeAPIServerClientKubeletSignerName }, "signer"},
		{"as a client too", func(w *wish) { w.request.Spec.Usages = append(w.request.Spec.Usages, certificatesv1.UsageClientAuth) }, `usage "client auth"`},
		{"not as a server", func(w *wish) { w.request.Spec.Usages = w.request.Spec.Usages[:1] }, "not for a server"},
		{"asked by a person", func(w *wish) { w.request.Spec.Username = "admin" }, `requester "admin"`},
		{"asked by a service account", func(w *wish) { w.request.Spec.Username = "system:serviceaccount:kube-system:x" }, "is not a node"},
		{"asked by one who is no node", func(w *wish) { w.request.Spec.Groups = []string{"system:authenticated"} }, "is not a node"},
		{"a machine nobody has claimed", func(w *wish) { w.machine.Spec.ClaimRef = v1alpha1.ClaimReference{} }, "claimed"},
		{"a proxy", func(w *wish) { w.machine.Spec.Role = v1alpha1.RoleProxy }, "no machine"},
		{"a machine whose leases are gone", func(w *wish) { w.machine.Spec.NICs = nil }, "not leased"},
		{"not PEM", func(w *wish) { w.spoilPEM = func([]byte) []byte { return []byte("x") } }, "not PEM"},
		{"PEM of something else", func(w *wish) {
			w.spoilPEM = func([]byte) []byte {
				return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("x")})
			}
		}, "cannot be read"},
		{"signed with another key", func(w *wish) {
			w.spoilPEM = func(data []byte) []byte {
				block, _ := pem.Decode(data)
				block.Bytes[len(block.Bytes)-1] ^= 1
				return pem.EncodeToMemory(block)
			}
		}, "own key"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := honest()
			test.change(w)
			err := mayServe(w.sign(t), []v1alpha1.AetherVM{w.machine})
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
	t.Run("of two machines its own counts", func(t *testing.T) {
		other := worker()
		other.Name, other.Spec.VMName = "ffffffff-8e0f-4a36-9a0e-0f6f2a3c4d5e", "demo-workers-ffffffff"
		other.Spec.NICs = []v1alpha1.NIC{{Network: "tenant", Address: "10.1.1.51/24"}}
		w := honest()
		w.template.IPAddresses = []net.IP{net.ParseIP("10.1.1.51")}
		if err := mayServe(w.sign(t), []v1alpha1.AetherVM{other, worker()}); err == nil {
			t.Error("it may serve at the other's address")
		}
	})
}

func TestPending(t *testing.T) {
	request := honest().sign(t)
	if !pending(request) {
		t.Error("a new one is not pending")
	}
	other := request.DeepCopy()
	other.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName
	if pending(other) {
		t.Error("one for another signer is ours to look at")
	}
	for _, kind := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed} {
		decided := request.DeepCopy()
		decided.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: kind, Status: corev1.ConditionTrue}}
		if pending(decided) {
			t.Errorf("one that is %s is pending", kind)
		}
	}
}

// TestApproverApprovesLater: the record of the machine may lag behind its
// request, and kubelets renew their certificates as long as they live.
func TestApproverApprovesLater(t *testing.T) {
	w := newWorld(t)
	a := newApprover(w.client, slog.New(slog.DiscardHandler))
	tenantSide := kubefake.NewClientset(honest().sign(t))
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.run(t.Context(), "demo", tenantSide)
	}()
	approved := func(name string) bool {
		request, err := tenantSide.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(request.Status.Conditions) == 1 && request.Status.Conditions[0].Type == certificatesv1.CertificateApproved
	}
	time.Sleep(50 * time.Millisecond)
	if approved("csr-1") {
		t.Fatal("approved before anyone has the machine")
	}
	vm := worker()
	if err := w.client.Create(t.Context(), &vm); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return approved("csr-1") })
	renewal := honest()
	renewal.request.Name = "csr-2"
	if _, err := tenantSide.CertificatesV1().CertificateSigningRequests().Create(t.Context(), renewal.sign(t), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return approved("csr-2") })
}

func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			t.Fatal("it does not come to hold")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

const kubeconfig = `{apiVersion: v1, kind: Config, clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}], contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a}], current-context: a}`

// TestTenantsAreWatchedAsLongAsTheirKubeconfigIsThere: one watch per tenant,
// another for another kubeconfig, none after it is gone.
func TestTenantsAreWatchedAsLongAsTheirKubeconfigIsThere(t *testing.T) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-demo", Name: "demo-kubeconfig", Labels: map[string]string{domain.TenantLabel: "demo", clusterv1.ClusterNameLabel: "demo"}},
		Data:       map[string][]byte{KubeconfigKey: []byte(kubeconfig)},
	}
	w := newWorld(t, secret)
	a := newApprover(w.client, slog.New(slog.DiscardHandler))
	watcher := &tenantWatcher{client: w.client, approver: a}
	key := client.ObjectKeyFromObject(secret)
	reconcile := func() error { _, err := watcher.Reconcile(t.Context(), request(key)); return err }
	if err := reconcile(); !errors.Is(err, errNotStarted) {
		t.Errorf("before the manager has started: %v", err)
	}
	go func() { _ = a.Start(t.Context()) }()
	eventually(t, func() bool { return reconcile() == nil })
	digest := func() string {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.tenants["demo"].kubeconfig
	}
	first := digest()
	if err := reconcile(); err != nil || first == "" || digest() != first {
		t.Errorf("%v, digest %q then %q", err, first, digest())
	}
	change := func(content string) {
		t.Helper()
		w.get(key, secret)
		secret.Data[KubeconfigKey] = []byte(content)
		if err := w.client.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	// A broken one ends the watch, does not quote itself, and does not stand in
	// the way of the old one when that comes back.
	change("hunter2")
	if err := reconcile(); err == nil || strings.Contains(err.Error(), "hunter2") || digest() != "" {
		t.Errorf("got %v, digest %q", err, digest())
	}
	change(kubeconfig)
	if err := reconcile(); err != nil || digest() != first {
		t.Errorf("got %v, digest %q", err, digest())
	}
	if err := w.client.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if err := reconcile(); err != nil || digest() != "" {
		t.Errorf("got %v, digest %q", err, digest())
	}
	if !a.NeedLeaderElection() {
		t.Error("every replica approves")
	}
}
