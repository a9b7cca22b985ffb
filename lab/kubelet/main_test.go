package kubelet_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/kubelet"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/namespace"
	"aether.internal/aether/lab/network"
	"aether.internal/aether/lab/programs"
	"aether.internal/aether/lab/registry"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == container.Command {
		os.Exit(container.Main(os.Args[2:]))
	}
	if name := filepath.Base(os.Args[0]); programs.Has(name) {
		os.Exit(programs.Main(name, os.Args[1:]))
	}
	os.Exit(namespace.RunTests(m))
}

const (
	nodeName  = "worker-1"
	nodeIP    = "10.1.1.50"
	podCIDR   = "10.244.7.0/24"
	goodToken = "good-token"
	weakToken = "weak-token"
	agnhost   = "registry.k8s.io/e2e-test-images/agnhost:2.53"
	busybox   = "docker.io/library/busybox:1.37"
)

// testNode is a node with a running kubelet. The test itself is somebody else
// on its network.
type testNode struct {
	t      *testing.T
	dir    string
	client *fake.Clientset
	node   *network.Namespace
	ca     []byte
}

// newNode starts a kubelet against a fake API server.
func newNode(t *testing.T, objects ...runtime.Object) *testNode {
	t.Helper()
	return newNodeIn(t, t.TempDir(), objects...)
}

func newNodeIn(t *testing.T, dir string, objects ...runtime.Object) *testNode {
	t.Helper()
	n := &testNode{t: t, dir: dir, client: fake.NewClientset(objects...)}
	n.review()
	n.node = mustNamespace(t, "node")
	outside, err := network.Here() // client-go's exec cannot be told how to dial
	must(t, err)
	must(t, network.Veth(n.node, "eth0", outside, "outside", network.VethOptions{}))
	t.Cleanup(func() { must(t, n.node.DelLink("eth0")) })
	must(t, n.node.AddAddress("eth0", netip.MustParsePrefix(nodeIP+"/24")))
	must(t, outside.AddAddress("outside", netip.MustParsePrefix("10.1.1.9/24")))
	self, err := os.Executable()
	must(t, err)
	clock, err := latency.NewClock(50)
	must(t, err)
	certificate, ca := selfSigned(t)
	n.ca = ca
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	k, err := kubelet.New(kubelet.Config{
		NodeName: nodeName, Client: n.client, Net: n.node, Containers: container.New(self, log),
		Programs: map[string]string{"lab": self}, Pull: pull, PodNetwork: kubelet.NewPointToPoint(n.node),
		Dir: n.dir, Clock: clock, Version: "v1.35.4", Log: log, ClientCA: ca,
		ServingCert:  func() (*tls.Certificate, error) { return certificate, nil },
		Hosts:        map[string]string{"harbor.lab": "192.168.0.5"},
		NodeTemplate: corev1.Node{Spec: corev1.NodeSpec{ProviderID: "aether://demo/1"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeIP}}}},
	})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("kubelet ended with %v", err)
		}
	})
	return n
}

// review answers TokenReview, SubjectAccessReview and TokenRequest.
func (n *testNode) review() {
	n.client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		switch review.Spec.Token {
		case goodToken:
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "admin"}}
		case weakToken:
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "weak"}}
		}
		return true, review, nil
	})
	n.client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		attributes := review.Spec.ResourceAttributes
		review.Status.Allowed = review.Spec.User == "admin" && attributes.Resource == "nodes" && attributes.Name == nodeName
		return true, review, nil
	})
	n.client.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "token" {
			return false, nil, nil
		}
		request := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest).DeepCopy()
		request.Status.Token = fmt.Sprintf("token-for-%v", request.Spec.Audiences)
		return true, request, nil
	})
}

// pull knows the images of the catalogue.
func pull(_ context.Context, ref string) (*registry.Image, error) {
	for _, d := range registry.Catalogue() {
		if d.Ref == ref {
			return &registry.Image{
				Ref: ref, Repository: ref, Digest: "sha256:0", Program: d.Program, Commands: d.Commands,
				Entrypoint: d.Entrypoint, Cmd: d.Cmd,
			}, nil
		}
	}
	return nil, fmt.Errorf("image %s: %w", ref, registry.ErrNotFound)
}

// cniReady brings the pod network up, as an agent's file does.
func (n *testNode) cniReady() {
	n.t.Helper()
	dir := filepath.Join(n.dir, "etc/cni/net.d")
	must(n.t, os.MkdirAll(dir, 0o755))
	config := `{"plugins": [{"type": "test", "ipam": {"subnet": "` + podCIDR + `"}}]}`
	must(n.t, os.WriteFile(filepath.Join(dir, "05-test.conflist"), []byte(config), 0o600))
}

// run creates a pod bound to the node.
func (n *testNode) run(name string, spec corev1.PodSpec) {
	n.t.Helper()
	spec.NodeName = nodeName
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name), Labels: map[string]string{"app": name}},
		Spec:       spec,
	}
	_, err := n.client.CoreV1().Pods("default").Create(n.t.Context(), pod, metav1.CreateOptions{})
	must(n.t, err)
}

// await waits until the pod's status is as wanted.
func (n *testNode) await(name, what string, wanted func(corev1.PodStatus) bool) corev1.PodStatus {
	n.t.Helper()
	var last corev1.PodStatus
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		pod, err := n.client.CoreV1().Pods("default").Get(n.t.Context(), name, metav1.GetOptions{})
		must(n.t, err)
		if last = pod.Status; wanted(last) {
			return last
		}
	}
	n.t.Fatalf("pod %s is not %s: %+v", name, what, last)
	return last
}

func isReady(status corev1.PodStatus) bool {
	for _, condition := range status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func mustNamespace(t *testing.T, name string) *network.Namespace {
	t.Helper()
	space, err := network.NewNamespace(name)
	must(t, err)
	t.Cleanup(func() { must(t, space.Close()) })
	return space
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// selfSigned is a certificate that is its own CA, for serving and for clients.
func selfSigned(t *testing.T) (*tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "admin"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.ParseIP(nodeIP)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
