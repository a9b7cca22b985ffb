package capicore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"

	"aether.internal/aether/lab/capicore"
	"aether.internal/aether/lab/controlplane"
	"aether.internal/aether/lab/upstream"
)

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

// world is a management cluster with core in it.
type world struct {
	*capicore.Manager
	client dynamic.Interface
}

func start(t *testing.T) world {
	t.Helper()
	paths, err := upstream.Ensure(t.Context(), os.Stderr, upstream.Kubernetes, upstream.CAPI)
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := upstream.EnsureCAPIManifests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	p := freePorts(t, 7)
	c, err := controlplane.Start(ctx, controlplane.Config{
		Name: "management", Dir: t.TempDir(), Address: netip.MustParseAddr("127.0.0.1"),
		Ports:      controlplane.Ports{APIServer: p[0], Etcd: p[1], EtcdPeer: p[2], ControllerManager: p[3], Scheduler: p[4]},
		Kubernetes: paths[upstream.Kubernetes], ServiceCIDR: netip.MustParsePrefix("10.98.0.0/16"), Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	kubeconfig, err := c.ClientKubeconfig(capicore.User)
	if err != nil {
		t.Fatal(err)
	}
	m, err := capicore.Start(ctx, capicore.Config{
		Program: paths[upstream.CAPI], Manifests: manifests, Dir: t.TempDir(),
		Rest: c.RestConfig(), Kubeconfig: kubeconfig, WebhookPort: p[5], HealthPort: p[6], Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Stop(); err != nil {
			t.Error(err)
		}
	})
	client, err := dynamic.NewForConfig(c.RestConfig())
	if err != nil {
		t.Fatal(err)
	}
	return world{m, client}
}

func core(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: resource}
}

func infra(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha1", Resource: resource}
}

func object(t *testing.T, file string) *unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(data, &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

func (w world) create(t *testing.T, resource schema.GroupVersionResource, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	t.Helper()
	return w.client.Resource(resource).Namespace("default").Create(t.Context(), o, metav1.CreateOptions{})
}

func (w world) mustCreate(t *testing.T, resource schema.GroupVersionResource, o *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	got, err := w.create(t, resource, o)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func eventually(t *testing.T, what string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// installProvider makes the smallest infrastructure kinds core accepts.
func (w world) installProvider(t *testing.T) {
	t.Helper()
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	for _, kind := range []string{"TestCluster", "TestMachine", "TestMachineTemplate"} {
		crd := object(t, "crd.yaml")
		plural := strings.ToLower(kind) + "s"
		crd.SetName(plural + ".infrastructure.cluster.x-k8s.io")
		names := map[string]any{"kind": kind, "listKind": kind + "List", "plural": plural, "singular": strings.ToLower(kind)}
		if err := unstructured.SetNestedMap(crd.Object, names, "spec", "names"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.client.Resource(crds).Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, plural, func(ctx context.Context) error {
			_, err := w.client.Resource(infra(plural)).List(ctx, metav1.ListOptions{})
			return err
		})
	}
}

func TestCore(t *testing.T) {
	w := start(t)
	w.installProvider(t)
	w.mustCreate(t, infra("testclusters"), object(t, "infracluster.yaml"))
	w.mustCreate(t, infra("testmachinetemplates"), object(t, "template.yaml"))
	w.mustCreate(t, core("clusters"), object(t, "cluster.yaml"))

	t.Run("defaulting", func(t *testing.T) { testDefaulting(t, w) })
	t.Run("validation", func(t *testing.T) { testValidation(t, w) })
	t.Run("machines", func(t *testing.T) { testMachines(t, w) })
	t.Run("crash", func(t *testing.T) { testCrash(t, w) })
	size, err := w.Process().ResidentBytes()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("manager: resident %d MiB", size>>20)
}

// The mutating webhook fills in what the file leaves out.
func testDefaulting(t *testing.T, w world) {
	got := w.mustCreate(t, core("machinedeployments"), object(t, "machinedeployment.yaml"))
	replicas, found, err := unstructured.NestedInt64(got.Object, "spec", "replicas")
	if err != nil || !found || replicas != 1 {
		t.Errorf("replicas %d, found %v, error %v; want 1 by default", replicas, found, err)
	}
	version, _, err := unstructured.NestedString(got.Object, "spec", "template", "spec", "version")
	if err != nil || version != "v1.35.4" {
		t.Errorf("version %q, error %v; want v1.35.4, with the v", version, err)
	}
	selector, _, err := unstructured.NestedStringMap(got.Object, "spec", "selector", "matchLabels")
	if err != nil || selector["cluster.x-k8s.io/cluster-name"] != "t1" || selector["cluster.x-k8s.io/deployment-name"] != "t1-pool" {
		t.Errorf("selector %v, error %v", selector, err)
	}
}

// The validating webhook refuses.
func testValidation(t *testing.T, w world) {
	bad := object(t, "machinedeployment.yaml")
	bad.SetName("bad")
	if err := unstructured.SetNestedField(bad.Object, "latest", "spec", "template", "spec", "version"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.create(t, core("machinedeployments"), bad); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
		t.Errorf("version latest: %v, want a refusal", err)
	}
}

// The controllers act: a MachineDeployment becomes a Machine with an object of
// the provider's, made with nothing but the manager's own rights.
func testMachines(t *testing.T, w world) {
	infraCluster, err := w.client.Resource(infra("testclusters")).Namespace("default").Get(t.Context(), "t1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedField(infraCluster.Object, true, "status", "initialization", "provisioned"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.Resource(infra("testclusters")).Namespace("default").UpdateStatus(t.Context(), infraCluster, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "phase of the cluster", func(ctx context.Context) error {
		got, err := w.client.Resource(core("clusters")).Namespace("default").Get(ctx, "t1", metav1.GetOptions{})
		if err != nil {
			return err
		}
		phase, _, err := unstructured.NestedString(got.Object, "status", "phase")
		if err == nil && phase != "Provisioned" {
			err = fmt.Errorf("phase %q", phase)
		}
		return err
	})
	eventually(t, "machine and its infrastructure", func(ctx context.Context) error {
		machines, err := w.client.Resource(core("machines")).Namespace("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		infras, err := w.client.Resource(infra("testmachines")).Namespace("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(machines.Items) != 1 || len(infras.Items) != 1 || machines.Items[0].GetName() != infras.Items[0].GetName() {
			return fmt.Errorf("%d machines, %d infrastructure machines", len(machines.Items), len(infras.Items))
		}
		if len(infras.Items[0].GetOwnerReferences()) != 1 {
			return errors.New("infrastructure machine has no owner")
		}
		return nil
	})
}

// Without the manager the API server refuses what the webhooks judge; after a
// restart all is as before.
func testCrash(t *testing.T, w world) {
	if err := w.Kill(); err != nil {
		t.Fatal(err)
	}
	another := object(t, "cluster.yaml")
	another.SetName("t2")
	if _, err := w.create(t, core("clusters"), another); !apierrors.IsInternalError(err) {
		t.Errorf("cluster without the manager: %v, want the failed call of the webhook", err)
	}
	if err := w.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.mustCreate(t, core("clusters"), another)
}
