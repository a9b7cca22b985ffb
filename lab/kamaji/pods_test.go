package kamaji_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/lab/kamaji/kamajitest"
	"aether.internal/aether/lab/kamaji/v1alpha1"
)

// up is how long a control plane may take to start on a busy machine.
const up = 3 * time.Minute

const (
	system = "kube-system"
	public = "kube-public"
)

// TestWithPods runs one control plane with konnectivity behind a load balancer.
func TestWithPods(t *testing.T) {
	w := kamajitest.Start(t, kamajitest.Options{Balancer: true, Node: true})
	w.Namespace("tenants")
	w.DumpOnFailure("tenants")
	words := followWords(t.Context(), t, w, "tenants", "t2")
	tcp := w.Tenant("tenants", "t2", func(tcp *v1alpha1.TenantControlPlane) {
		tcp.Spec.ControlPlane.Service.ServiceType = "LoadBalancer"
		tcp.Spec.Addons.Konnectivity = &v1alpha1.KonnectivitySpec{KonnectivityServerSpec: v1alpha1.KonnectivityServerSpec{Version: "v0.34.0"}}
		tcp.Spec.Addons.KubeProxy = &v1alpha1.AddonSpec{}
	})
	if err := w.API.Create(t.Context(), tcp); err != nil {
		t.Fatal(err)
	}
	w.Eventually(up, "the tenant side", func(ctx context.Context) bool {
		tcp = w.Get(ctx, "tenants", "t2")
		return tcp.Status.Kubernetes.Version.Status == v1alpha1.VersionReady && tcp.Status.Addons.CoreDNS.Enabled &&
			tcp.Status.Addons.KubeProxy.Enabled && tcp.Status.Addons.Konnectivity.Agent.Name != "" &&
			len(tcp.Status.KubeadmPhase.BootstrapToken.Checksum) == 32 && tcp.Status.KubeadmPhase.BootstrapToken.Checksum != "d41d8cd98f00b204e9800998ecf8427e"
	})
	got := words()
	if !slices.IsSortedFunc(got[:3], func(a, b string) int { return slices.Index(expected(), a) - slices.Index(expected(), b) }) || got[len(got)-1] != "Ready" {
		t.Errorf("status words = %v", got)
	}
	if !slices.Equal(tcp.Finalizers, []string{"finalizer.kamaji.clastix.io", "finalizer.kamaji.clastix.io/soot"}) {
		t.Errorf("finalizers = %v", tcp.Finalizers)
	}
	config := tenantConfig(t, w)
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("tenant side", func(t *testing.T) { testTenantSide(t, api) })
	t.Run("self-heal", func(t *testing.T) { testSelfHeal(t, w, api) })
	t.Run("bootstrap token", func(t *testing.T) { testBootstrapToken(t, w, config, api) })
	t.Run("pod lost", func(t *testing.T) { testPodLost(t, w) })
	t.Run("deletion", func(t *testing.T) { testDeletion(t, w) })
}

func expected() []string { return []string{"", "Provisioning", "NotReady"} }

func secretOf(t *testing.T, w *kamajitest.World, name string) *corev1.Secret {
	t.Helper()
	s := &corev1.Secret{}
	if err := w.API.Get(t.Context(), client.ObjectKey{Namespace: "tenants", Name: name}, s); err != nil {
		t.Fatal(err)
	}
	return s
}

// tenantConfig reaches the tenant at its load balancer as super administrator.
func tenantConfig(t *testing.T, w *kamajitest.World) *rest.Config {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(secretOf(t, w, "t2-admin-kubeconfig").Data["super-admin.conf"])
	if err != nil {
		t.Fatal(err)
	}
	config.Host = "https://" + w.Get(t.Context(), "tenants", "t2").Status.ControlPlaneEndpoint
	config.QPS = -1
	return config
}

func testTenantSide(t *testing.T, api kubernetes.Interface) {
	ctx := t.Context()
	got := map[string]bool{}
	note := func(kind, name string, err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		got[kind+" "+name] = err == nil
	}
	for _, name := range []string{"kubeadm-config", "kubelet-config", "coredns", "kube-proxy"} {
		_, err := api.CoreV1().ConfigMaps(system).Get(ctx, name, metav1.GetOptions{})
		note("ConfigMap", name, err)
	}
	for _, name := range []string{
		"kubeadm:cluster-admins", "kubeadm:get-nodes", "kubeadm:kubelet-bootstrap", "kubeadm:node-autoapprove-bootstrap",
		"kubeadm:node-autoapprove-certificate-rotation", "kubeadm:apiserver-kubelet-client", "kubeadm:node-proxier",
		"system:coredns", "system:konnectivity-server",
	} {
		_, err := api.RbacV1().ClusterRoleBindings().Get(ctx, name, metav1.GetOptions{})
		note("ClusterRoleBinding", name, err)
	}
	for _, name := range []string{"kube-proxy", "konnectivity-agent"} {
		set, err := api.AppsV1().DaemonSets(system).Get(ctx, name, metav1.GetOptions{})
		note("DaemonSet", name, err)
		if err == nil && set.Generation != 1 {
			t.Errorf("DaemonSet %s was written %d times", name, set.Generation)
		}
	}
	dns, err := api.AppsV1().Deployments(system).Get(ctx, "coredns", metav1.GetOptions{})
	note("Deployment", "coredns", err)
	if err == nil && dns.Generation != 1 {
		t.Errorf("Deployment coredns was written %d times", dns.Generation)
	}
	service, err := api.CoreV1().Services(system).Get(ctx, "kube-dns", metav1.GetOptions{})
	note("Service", "kube-dns", err)
	if err == nil && service.Spec.ClusterIP != "10.112.0.10" {
		t.Errorf("kube-dns is at %s", service.Spec.ClusterIP)
	}
	for what, there := range got {
		if !there {
			t.Errorf("%s is missing", what)
		}
	}
	secrets, err := api.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	if err != nil || len(secrets.Items) != 0 {
		t.Errorf("secrets in the tenant: %d, %v; Kamaji makes none", len(secrets.Items), err)
	}
	eventually(t, "the API server publishes the advertised address", func() bool {
		slice, err := api.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		return err == nil && len(slice.Endpoints) == 1 && slices.Equal(slice.Endpoints[0].Addresses, []string{"10.1.1.10"})
	})
}

func testSelfHeal(t *testing.T, w *kamajitest.World, api kubernetes.Interface) {
	ctx := t.Context()
	if _, err := api.AppsV1().Deployments(system).Patch(ctx, "coredns", "application/merge-patch+json", []byte(`{"spec":{"replicas":5}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "CoreDNS is scaled back", func() bool {
		dns, err := api.AppsV1().Deployments(system).Get(ctx, "coredns", metav1.GetOptions{})
		return err == nil && *dns.Spec.Replicas == 2
	})
	if err := api.CoreV1().ConfigMaps(public).Delete(ctx, "cluster-info", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "cluster-info comes back", func() bool {
		_, err := api.CoreV1().ConfigMaps(public).Get(ctx, "cluster-info", metav1.GetOptions{})
		return err == nil
	})
	if err := w.API.Patch(ctx, w.Tenant("tenants", "t2", nil), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"addons":{"kubeProxy":null}}}`))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "kube-proxy is removed", func() bool {
		_, err := api.AppsV1().DaemonSets(system).Get(ctx, "kube-proxy", metav1.GetOptions{})
		return apierrors.IsNotFound(err) && !w.Get(ctx, "tenants", "t2").Status.Addons.KubeProxy.Enabled
	})
}

// testBootstrapToken joins as a kubelet would, with nothing but a token.
func testBootstrapToken(t *testing.T, w *kamajitest.World, admin *rest.Config, api kubernetes.Interface) {
	ctx := t.Context()
	anonymous := rest.AnonymousClientConfig(admin)
	bare, err := kubernetes.NewForConfig(anonymous)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bare.CoreV1().ConfigMaps(public).Get(ctx, "cluster-info", metav1.GetOptions{}); err != nil {
		t.Errorf("anonymous cluster-info: %v", err)
	}
	for _, token := range []string{"abc123.0123456789abcdef", "abcdef.0123456789abcdef"} {
		anonymous.BearerToken = token
		unknown, err := kubernetes.NewForConfig(anonymous)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unknown.CoreV1().Nodes().Get(ctx, "w1", metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
			t.Errorf("token %s before it exists: %v", token, err)
		}
	}
	before := w.Get(ctx, "tenants", "t2").Status.KubeadmPhase.BootstrapToken.Checksum
	_, err = api.CoreV1().Secrets(system).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abc123"}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": "abc123", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
			"auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token", "expiration": time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	anonymous.BearerToken = "abc123.0123456789abcdef"
	node, err := kubernetes.NewForConfig(anonymous)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the token is accepted", func() bool {
		_, err := node.CoreV1().Nodes().Get(ctx, "w1", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if _, err := node.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the token lists nodes: %v", err)
	}
	requestCertificate(ctx, t, node, api)
	eventually(t, "cluster-info is signed, and Kamaji tells its new sum", func() bool {
		info, err := api.CoreV1().ConfigMaps(public).Get(ctx, "cluster-info", metav1.GetOptions{})
		return err == nil && info.Data["jws-kubeconfig-abc123"] != "" && w.Get(ctx, "tenants", "t2").Status.KubeadmPhase.BootstrapToken.Checksum != before
	})
}

func requestCertificate(ctx context.Context, t *testing.T, node, api kubernetes.Interface) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:w1"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	_, err = node.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "w1"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the request is approved and signed", func() bool {
		csr, err := api.CertificatesV1().CertificateSigningRequests().Get(ctx, "w1", metav1.GetOptions{})
		return err == nil && len(csr.Status.Certificate) > 0
	})
}

// testPodLost deletes the pod: the word falls to NotReady and the tenant-side
// manager lets go until the next pod is ready.
func testPodLost(t *testing.T, w *kamajitest.World) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	words := followWords(ctx, t, w, "tenants", "t2")
	pods := &corev1.PodList{}
	if err := w.API.List(ctx, pods, client.InNamespace("tenants")); err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		if err := w.API.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(1)); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}
	w.Eventually(up, "NotReady and Ready again", func(context.Context) bool {
		all := strings.Join(words(), " ")
		return strings.Contains(all, "NotReady") && strings.HasSuffix(all, " Ready")
	})
	eventually(t, "the tenant-side manager is back", func() bool {
		return slices.Contains(w.Get(ctx, "tenants", "t2").Finalizers, "finalizer.kamaji.clastix.io/soot")
	})
}

func testDeletion(t *testing.T, w *kamajitest.World) {
	if err := w.API.Delete(t.Context(), w.Tenant("tenants", "t2", nil)); err != nil {
		t.Fatal(err)
	}
	left := func() int {
		pods := &corev1.PodList{}
		if err := w.API.List(t.Context(), pods, client.InNamespace("tenants")); err != nil {
			t.Fatal(err)
		}
		return len(pods.Items)
	}
	podsAfter := 0
	eventually(t, "the object is gone", func() bool {
		if w.Get(t.Context(), "tenants", "t2") != nil {
			return false
		}
		podsAfter = left()
		return true
	})
	if podsAfter == 0 {
		t.Error("the pods were gone with the object; the real one leaves them for later")
	}
	w.Eventually(up, "all the rest is gone", func(context.Context) bool { return left() == 0 && len(owned(t, w, "t2")) == 0 })
	if diff := cmp.Diff([]string{"root"}, users(t, w)); diff != "" {
		t.Errorf("users left in etcd (-want +got):\n%s", diff)
	}
}
