package kamajitest

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/controlplane"
	"aether.internal/aether/lab/controlplane/pki"
	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/kamaji"
	"aether.internal/aether/lab/kamaji/v1alpha1"
	"aether.internal/aether/lab/kubelet"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/namespace"
	"aether.internal/aether/lab/network"
	"aether.internal/aether/lab/registry"
	"aether.internal/aether/lab/services"
	"aether.internal/aether/lab/upstream"
)

const (
	speed        = 20
	startTimeout = 2 * time.Minute
	webhooks     = "192.168.0.2:9444"
	storePort    = 2389
	storePeer    = 2390
)

// Main runs a package's tests in a world of their own. What must be built is
// built before: inside is no network.
func Main(m *testing.M) int {
	if len(os.Args) == 2 && os.Args[1] == container.Command {
		return container.Main(os.Args[2:])
	}
	if !namespace.Inside() {
		if err := upstream.Share(context.Background(), os.Stderr, upstream.Kubernetes, upstream.KonnectivityServer); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	log.SetLogger(logr.Discard()) // a cache's own lines have no other door
	return namespace.RunTests(m)
}

// Options say what the world has beside the management cluster and Kamaji.
type Options struct {
	Balancer bool // load balancers get addresses
	Node     bool // pods run
}

// World is a running management cluster.
type World struct {
	API    client.WithWatch
	Config *rest.Config
	Faults *faults.Set
	Store  *controlplane.Etcd

	t       testing.TB
	log     *slog.Logger
	nodeDir string
}

// Start starts a world that ends with the test.
func Start(t testing.TB, o Options) *World {
	t.Helper()
	w := &World{t: t, Faults: &faults.Set{}, log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))}
	paths, err := upstream.Ensure(t.Context(), os.Stderr, upstream.Kubernetes, upstream.KonnectivityServer)
	w.must(err)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	fabric, err := network.NewFabric(network.DefaultTopology())
	w.must(err)
	t.Cleanup(func() { _ = fabric.Close() })
	w.startCluster(ctx, fabric, paths[upstream.Kubernetes])
	w.startKamaji(ctx)
	if o.Balancer {
		w.startBalancer(fabric)
	}
	if o.Node {
		w.startNode(fabric, paths)
	}
	return w
}

func (w *World) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *World) startCluster(ctx context.Context, fabric *network.Fabric, program string) {
	w.t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	address := netip.MustParseAddr("192.168.0.2")
	cluster, err := controlplane.Start(ctx, controlplane.Config{
		Name: "management", Dir: w.t.TempDir(), Net: fabric.Platform(), Address: address, Kubernetes: program,
		ServiceCIDR: netip.MustParsePrefix("10.98.0.0/16"), PodCIDR: netip.MustParsePrefix("10.250.0.0/16"), Log: quiet,
	})
	w.must(err)
	w.t.Cleanup(func() { _ = cluster.Stop() })
	w.Store, err = controlplane.StartEtcd(ctx, controlplane.EtcdConfig{
		Name: "tenants", Dir: w.t.TempDir(), Net: fabric.Platform(), Address: address,
		Port: storePort, PeerPort: storePeer, Kubernetes: program, Log: quiet,
	})
	w.must(err)
	w.t.Cleanup(func() { _ = w.Store.Stop() })
	_, err = w.Store.EnableAuth(ctx)
	w.must(err)
	w.Config = cluster.RestConfig()
	w.Config.QPS = -1
	scheme := runtime.NewScheme()
	w.must(clientgoscheme.AddToScheme(scheme))
	w.must(v1alpha1.AddToScheme(scheme))
	w.must(kamaji.InstallCRDs(ctx, w.Config))
	w.API, err = client.NewWithWatch(w.Config, client.Options{Scheme: scheme})
	w.must(err)
}

func (w *World) startKamaji(ctx context.Context) {
	w.t.Helper()
	w.must(kamaji.InstallDataStore(ctx, w.Config, kamaji.EtcdDataStore{
		Name: "default", Namespace: "kamaji-system", Endpoints: []string{netip.AddrPortFrom(netip.MustParseAddr("192.168.0.2"), storePort).String()},
		CACert: w.Store.CA().Certificate, CAKey: w.Store.CA().Key,
		Cert: w.Store.Root().Certificate, Key: w.Store.Root().Key,
	}))
	clock, err := latency.NewClock(speed)
	w.must(err)
	stand, err := kamaji.New(kamaji.Config{
		RestConfig: w.Config, Clock: clock, Faults: w.Faults, WebhookAddress: webhooks,
		Log: w.log.With("of", "kamaji"),
	})
	w.must(err)
	w.run("kamaji", stand.Run)
	// The hooks are registered before the controllers start; a control plane
	// made earlier would pass unchecked.
	w.Eventually(startTimeout, "kamaji's webhooks", func(ctx context.Context) bool {
		probe := w.Tenant("default", "probe", nil)
		probe.Spec.DataStore = ""
		if err := w.API.Create(ctx, probe, client.DryRunAll); err != nil {
			return false
		}
		return probe.Spec.DataStore == "default"
	})
}

// run runs a part until the test ends.
func (w *World) run(name string, part func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("%s: %v", name, err)
		}
	})
}

func (w *World) startBalancer(fabric *network.Fabric) {
	w.t.Helper()
	clientset, err := kubernetes.NewForConfig(w.Config)
	w.must(err)
	balancer, err := services.New(services.Config{
		Client: clientset, Net: fabric.Platform(), Link: "mgmt0", PrefixBits: 24, ClusterLink: "lo",
		First: netip.MustParseAddr("192.168.0.100"), Last: netip.MustParseAddr("192.168.0.199"), Log: w.log.With("of", "services"),
	})
	w.must(err)
	w.run("services", balancer.Run)
}

func (w *World) startNode(fabric *network.Fabric, paths upstream.Paths) {
	w.t.Helper()
	clientset, err := kubernetes.NewForConfig(w.Config)
	w.must(err)
	clock, err := latency.NewClock(speed)
	w.must(err)
	self, err := os.Executable()
	w.must(err)
	authority, err := pki.NewAuthority("node")
	w.must(err)
	serving, err := authority.Issue(pki.Request{CommonName: "mgmt", Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.2")}})
	w.must(err)
	pair, err := serving.TLS()
	w.must(err)
	program := paths[upstream.Kubernetes]
	w.nodeDir = w.t.TempDir()
	node, err := kubelet.New(kubelet.Config{
		NodeName: "mgmt", Client: clientset, RestConfig: w.Config, Net: fabric.Platform(),
		Containers: container.New(self, w.log.With("of", "container")),
		Programs: map[string]string{
			"kube-apiserver": program, "kube-controller-manager": program, "kube-scheduler": program,
			"konnectivity-server": paths[upstream.KonnectivityServer],
		},
		Pull: pull, PodNetwork: kubelet.NewPointToPoint(fabric.Platform()), Dir: w.nodeDir, Clock: clock,
		APIServer: w.Config.Host, Version: "v1.35.4", CNIReady: func() bool { return true },
		ServingCert: func() (*tls.Certificate, error) { return &pair, nil }, ClientCA: authority.Certificate,
		NodeTemplate: corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "mgmt"},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.0.2"}}},
		},
		Log: w.log.With("of", "kubelet"),
	})
	w.must(err)
	w.run("node", node.Run)
}

// pull knows the images of a control plane; where they come from is not what
// these tests are about.
func pull(_ context.Context, ref string) (*registry.Image, error) {
	for repository, image := range map[string]registry.Image{
		"registry.k8s.io/kube-apiserver":                 {Program: "kube-apiserver", Commands: []string{"kube-apiserver"}},
		"registry.k8s.io/kube-controller-manager":        {Program: "kube-controller-manager", Commands: []string{"kube-controller-manager"}},
		"registry.k8s.io/kube-scheduler":                 {Program: "kube-scheduler", Commands: []string{"kube-scheduler"}},
		"registry.k8s.io/kas-network-proxy/proxy-server": {Program: "konnectivity-server", Commands: []string{"proxy-server"}},
	} {
		if len(ref) > len(repository) && ref[:len(repository)+1] == repository+":" {
			image.Ref, image.Repository, image.Digest = ref, repository, "sha256:"+filepath.Base(repository)
			return &image, nil
		}
	}
	return nil, os.ErrNotExist
}
