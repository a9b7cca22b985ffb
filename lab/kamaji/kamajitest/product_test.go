package kamajitest_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/internal/kamaji"
	"aether.internal/aether/lab/kamaji/kamajitest"
)

func TestMain(m *testing.M) { os.Exit(kamajitest.Main(m)) }

const longest = 3 * time.Minute

func spec() kamaji.Spec {
	return kamaji.Spec{
		Ref:     kamaji.Ref{Namespace: "tenant-t1", Name: "t1"},
		Labels:  map[string]string{"aether.internal/tenant": "t1"},
		Version: "v1.35.4", Replicas: 1, DataStore: "default",
		ProxyAddress: netip.MustParseAddr("10.1.1.10"), ServerNames: []string{"api.t1.example.test"},
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"), PodCIDR: netip.MustParsePrefix("10.244.0.0/16"), DNSDomain: "cluster.local",
		Registry: "registry.k8s.io", CoreDNS: kamaji.Image{Repository: "registry.k8s.io/coredns", Tag: "v1.13.1"},
		Konnectivity: kamaji.Konnectivity{
			ServerRepository: "registry.k8s.io/kas-network-proxy/proxy-server",
			AgentRepository:  "registry.k8s.io/kas-network-proxy/proxy-agent", Version: "v0.34.0",
		},
	}
}

// TestProduct has the product's client take one control plane from nothing to
// nothing, with a real API server behind it.
func TestProduct(t *testing.T) {
	w := kamajitest.Start(t, kamajitest.Options{Balancer: true, Node: true})
	c, err := kamaji.New(w.API, kamaji.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w.Namespace("tenant-t1")
	w.DumpOnFailure("tenant-t1")
	t.Run("refused", func(t *testing.T) { testRefused(t, c) })
	if err := c.Apply(t.Context(), spec()); err != nil {
		t.Fatal(err)
	}
	t.Run("usable", func(t *testing.T) { testUsable(t, c) })
	if t.Failed() {
		return
	}
	t.Run("applied again", func(t *testing.T) { testAppliedAgain(t, c) })
	t.Run("kubeconfigs", func(t *testing.T) { testKubeconfigs(t, c) })
	t.Run("node restriction", func(t *testing.T) { testNodeRestriction(t, c) })
	t.Run("healed", func(t *testing.T) { testHealed(t, c) })
	t.Run("moved proxy", func(t *testing.T) { testMovedProxy(t, c) })
	t.Run("gone", func(t *testing.T) { testGone(t, w, c) })
}

func testRefused(t *testing.T, c *kamaji.Client) {
	bad := spec()
	bad.DataStore = "nope"
	err := c.Apply(t.Context(), bad)
	var invalid *kamaji.InvalidError
	if !errors.As(err, &invalid) || !errors.Is(err, kamaji.ErrInvalid) || len(invalid.Fields) != 1 || !strings.Contains(invalid.Fields[0].Message, "DataStore does not exist") {
		t.Errorf("unknown datastore: %v", err)
	}
	if _, err := c.Status(t.Context(), bad.Ref); !errors.Is(err, kamaji.ErrNotFound) {
		t.Errorf("status of what was refused: %v", err)
	}
}

// testUsable waits for the judgement, and wants Kamaji's Ready to have come
// before it.
func testUsable(t *testing.T, c *kamaji.Client) {
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	early, last, began := false, "", time.Now()
	for {
		report, err := c.Check(ctx, spec().Ref, kamaji.WantOf(spec()))
		if err != nil {
			t.Fatal(err)
		}
		if text := report.String(); text != last {
			t.Logf("+%s %s", time.Since(began).Round(100*time.Millisecond), text)
			last = text
		}
		if report.Ready() {
			break
		}
		status, err := c.Status(ctx, spec().Ref)
		if err != nil {
			t.Fatal(err)
		}
		early = early || status.Word == "Ready"
		select {
		case <-ctx.Done():
			t.Fatalf("not usable within %s: %s", longest, last)
		case <-time.After(100 * time.Millisecond):
		}
	}
	if !early {
		t.Error("Kamaji's Ready was never seen before the control plane was usable; the stand-in lost that trap, or the check looks at nothing")
	}
}

func testAppliedAgain(t *testing.T, c *kamaji.Client) {
	before, err := c.Status(t.Context(), spec().Ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), spec()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	after, err := c.Status(t.Context(), spec().Ref)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("applying the same changed something (-before +after):\n%s", diff)
	}
	if !after.Observed || after.Advertised != "10.1.1.10" || after.Address == "" {
		t.Errorf("status %+v", after)
	}
}

func tenant(t *testing.T, c *kamaji.Client) (kubernetes.Interface, kamaji.Kubeconfigs) {
	t.Helper()
	both, err := c.Kubeconfigs(t.Context(), spec().Ref, kamaji.WantOf(spec()))
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(both.Management)
	if err != nil {
		t.Fatal(err)
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return api, both
}

func testKubeconfigs(t *testing.T, c *kamaji.Client) {
	api, both := tenant(t, c)
	published, err := clientcmd.RESTConfigFromKubeConfig(both.Published)
	if err != nil {
		t.Fatal(err)
	}
	if published.Host != "https://10.1.1.10:6443" {
		t.Errorf("published server = %s", published.Host)
	}
	if _, err := api.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("management kubeconfig: %v", err)
	}
	ca, err := c.CA(t.Context(), spec().Ref)
	if err != nil || string(ca) != string(both.CA) {
		t.Errorf("authority: %v", err)
	}
}

// testNodeRestriction makes a node's certificate as the tenant's authority
// would sign it, and tries to make another Node with it.
func testNodeRestriction(t *testing.T, c *kamaji.Client) {
	_, both := tenant(t, c)
	config, err := clientcmd.RESTConfigFromKubeConfig(both.Management)
	if err != nil {
		t.Fatal(err)
	}
	config.Impersonate.UserName = "system:node:w1"
	config.Impersonate.Groups = []string{"system:nodes", "system:authenticated"}
	node, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = node.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w2"}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("node w1 makes node w2: %v, want forbidden", err)
	}
}

func testHealed(t *testing.T, c *kamaji.Client) {
	api, _ := tenant(t, c)
	bindings := api.RbacV1().ClusterRoleBindings()
	if err := bindings.Delete(t.Context(), "kubeadm:kubelet-bootstrap", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if _, err := bindings.Get(t.Context(), "kubeadm:kubelet-bootstrap", metav1.GetOptions{}); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the binding did not come back")
		}
	}
}

// testMovedProxy changes the advertised address of a living control plane:
// what the origin did by hand. The check names what Kamaji leaves behind.
func testMovedProxy(t *testing.T, c *kamaji.Client) {
	moved := spec()
	moved.ProxyAddress = netip.MustParseAddr("10.1.1.11")
	if err := c.Apply(t.Context(), moved); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	var unmet []string
	for {
		report, err := c.Check(ctx, moved.Ref, kamaji.WantOf(moved))
		if err != nil {
			t.Fatal(err)
		}
		unmet = nil
		for _, finding := range report.Unmet() {
			unmet = append(unmet, string(finding.Need))
		}
		if cmp.Equal(unmet, []string{string(kamaji.NeedPublished), string(kamaji.NeedClusterInfo)}) {
			t.Log(report)
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("unmet after the move: %v", report.Unmet())
		}
		time.Sleep(200 * time.Millisecond)
	}
	if _, err := c.Kubeconfigs(t.Context(), moved.Ref, kamaji.WantOf(moved)); !errors.Is(err, kamaji.ErrStale) {
		t.Errorf("kubeconfigs after the move: %v, want ErrStale", err)
	}
}

func testGone(t *testing.T, w *kamajitest.World, c *kamaji.Client) {
	ref := spec().Ref
	if err := c.Delete(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	objectFirst := false
	err := c.WaitGone(ctx, ref, func(left []kamaji.Remainder) {
		object := w.Get(t.Context(), ref.Namespace, ref.Name) != nil
		objectFirst = objectFirst || (!object && len(left) > 0)
	})
	if err != nil {
		t.Fatal(err)
	}
	if !objectFirst {
		t.Error("the object was never gone before its pods")
	}
	if err := c.Delete(t.Context(), ref); err != nil {
		t.Errorf("delete what is gone: %v", err)
	}
	secrets := &corev1.SecretList{}
	if err := w.API.List(t.Context(), secrets, client.InNamespace(ref.Namespace), client.MatchingLabels{"kamaji.clastix.io/name": ref.Name}); err != nil || len(secrets.Items) != 0 {
		t.Errorf("%d secrets left, %v", len(secrets.Items), err)
	}
}
