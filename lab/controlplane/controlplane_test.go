package controlplane_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"aether.internal/aether/lab/controlplane"
	"aether.internal/aether/lab/upstream"
)

var loopback = netip.MustParseAddr("127.0.0.1")

func kubernetesProgram(t *testing.T) string {
	t.Helper()
	paths, err := upstream.Ensure(t.Context(), os.Stderr, upstream.Kubernetes)
	if err != nil {
		t.Fatal(err)
	}
	return paths[upstream.Kubernetes]
}

func freePorts(t *testing.T, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports
}

func startControlPlane(t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	p := freePorts(t, 5)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, err := controlplane.Start(ctx, controlplane.Config{
		Name: "management", Dir: t.TempDir(), Address: loopback,
		Ports:       controlplane.Ports{APIServer: p[0], Etcd: p[1], EtcdPeer: p[2], ControllerManager: p[3], Scheduler: p[4]},
		Kubernetes:  kubernetesProgram(t),
		ServiceCIDR: netip.MustParsePrefix("10.98.0.0/16"),
		PodCIDR:     netip.MustParsePrefix("10.250.0.0/16"),
		Names:       []string{"api.management.example.test"},
		Log:         slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// eventually asks until there is no error.
func eventually(t *testing.T, within time.Duration, what string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, within, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func TestControlPlane(t *testing.T) {
	c := startControlPlane(t)
	client, err := kubernetes.NewForConfig(c.RestConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Run("version", func(t *testing.T) {
		v, err := client.Discovery().ServerVersion()
		if err != nil || v.GitVersion != "v1.35.4" || v.Major != "1" || v.Minor != "35" {
			t.Errorf("version %+v, error %v", v, err)
		}
	})
	t.Run("controllers", func(t *testing.T) { testControllers(t, client) })
	t.Run("scheduler", func(t *testing.T) { testScheduler(t, client) })
	t.Run("users", func(t *testing.T) { testUsers(t, c) })
	t.Run("crashes", func(t *testing.T) { testCrashes(t, c, client) })
	for _, component := range controlplane.Components() {
		size, err := c.Process(component).ResidentBytes()
		if err != nil {
			t.Error(err)
		}
		t.Logf("%s: resident %d MiB", component, size>>20)
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, component := range controlplane.Components() {
		if c.Process(component).Running() {
			t.Errorf("%s still runs", component)
		}
	}
}

// The controller-manager acts: it makes the default service account, publishes
// the CA, and gives a node its pod range.
func testControllers(t *testing.T, client *kubernetes.Clientset) {
	eventually(t, 30*time.Second, "default service account", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status: corev1.NodeStatus{
			Capacity:   corev1.ResourceList{},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}},
		},
	}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "pod range of the node", func(ctx context.Context) error {
		n, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		if err == nil && !strings.HasPrefix(n.Spec.PodCIDR, "10.250.") {
			err = errors.New("pod range is " + n.Spec.PodCIDR)
		}
		return err
	})
}

// The scheduler acts: a pod that tolerates everything gets the one node.
func testScheduler(t *testing.T, client *kubernetes.Clientset) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p1"},
		Spec: corev1.PodSpec{
			Containers:  []corev1.Container{{Name: "c", Image: "example.test/none"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	node, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	room := node.DeepCopy()
	room.Status.Allocatable = resources("4", "8Gi", "110")
	room.Status.Capacity = room.Status.Allocatable
	if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), room, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 60*time.Second, "node of the pod", func(ctx context.Context) error {
		p, err := client.CoreV1().Pods("default").Get(ctx, "p1", metav1.GetOptions{})
		if err == nil && p.Spec.NodeName != "n1" {
			err = errors.New("pod is on no node")
		}
		return err
	})
}

// A made user is known by name, has no rights of its own, and is in the audit
// log; a node may not touch another.
func testUsers(t *testing.T, c *controlplane.ControlPlane) {
	clientOf := func(user string, groups ...string) *kubernetes.Clientset {
		kubeconfig, err := c.ClientKubeconfig(user, groups...)
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	if _, err := clientOf("somebody").CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("somebody lists nodes: %v, want forbidden", err)
	}
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
	_, err := clientOf("system:node:n9", "system:nodes").CoreV1().Nodes().Create(t.Context(), other, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("node n9 makes node n2: %v, want NodeRestriction's refusal", err)
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "*", Resource: "*", Group: "*"},
	}}
	got, err := clientOf("boss", "system:masters").AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
	if err != nil || !got.Status.Allowed {
		t.Errorf("a master may not do everything: %+v, %v", got, err)
	}
	seen := map[string]bool{}
	f, err := os.Open(c.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct{ User struct{ Username string } }
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			t.Fatalf("audit line %q: %v", lines.Text(), err)
		}
		seen[event.User.Username] = true
	}
	for _, user := range []string{"somebody", "system:node:n9", "boss", "system:kube-scheduler"} {
		if !seen[user] {
			t.Errorf("audit log does not know %s", user)
		}
	}
}

// Each component can die and come back without losing anything.
func testCrashes(t *testing.T, c *controlplane.ControlPlane, client *kubernetes.Clientset) {
	for _, component := range controlplane.Components() {
		before := c.Process(component).PID()
		if err := c.Kill(component); err != nil {
			t.Fatal(err)
		}
		if c.Process(component).Running() {
			t.Errorf("%s runs after Kill", component)
		}
		if err := c.Restart(t.Context(), component); err != nil {
			t.Fatal(err)
		}
		if c.Process(component).PID() == before {
			t.Errorf("%s has its old process ID", component)
		}
	}
	eventually(t, 30*time.Second, "node after the crashes", func(ctx context.Context) error {
		_, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		return err
	})
	if err := c.Kill("kubelet"); err == nil {
		t.Error("a component that is none was killed")
	}
}

func TestStartRefuses(t *testing.T) {
	good := func() controlplane.Config {
		return controlplane.Config{
			Name: "m", Dir: t.TempDir(), Address: loopback, Kubernetes: "/bin/false",
			ServiceCIDR: netip.MustParsePrefix("10.98.0.0/16"), Log: slog.New(slog.DiscardHandler),
		}
	}
	used := t.TempDir()
	if err := os.Mkdir(filepath.Join(used, "pki"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		change     func(*controlplane.Config)
	}{
		{"no name", "Name is empty", func(c *controlplane.Config) { c.Name = "" }},
		{"no address", "Address is not set", func(c *controlplane.Config) { c.Address = netip.Addr{} }},
		{"no services", "ServiceCIDR is not set", func(c *controlplane.Config) { c.ServiceCIDR = netip.Prefix{} }},
		{"no program", "names no program", func(c *controlplane.Config) { c.Kubernetes = "" }},
		{"missing program", "no such file", func(c *controlplane.Config) { c.Kubernetes = "/nonexistent" }},
		{"no log", "Log is nil", func(c *controlplane.Config) { c.Log = nil }},
		{"relative folder", "not an absolute path", func(c *controlplane.Config) { c.Dir = "here" }},
		{"used folder", "give an empty folder", func(c *controlplane.Config) { c.Dir = used }},
		{"program that ends", "exit status 1", func(*controlplane.Config) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := good()
			c.change(&cfg)
			if _, err := controlplane.Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}
