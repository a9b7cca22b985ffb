package cilium_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/cli"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"

	"aether.internal/aether/lab/charts"
	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/controlplane"
	"aether.internal/aether/lab/controlplane/pki"
	"aether.internal/aether/lab/kubelet"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/network"
	"aether.internal/aether/lab/registry"
	"aether.internal/aether/lab/upstream"
)

const (
	apiServer = "192.168.0.2"
	harborIP  = "192.168.0.5"
	dnsIP     = "10.96.0.10"
	taint     = "node.cilium.io/agent-not-ready"
)

// cluster is a real control plane with nodes on the lab's network.
type cluster struct {
	t      *testing.T
	plane  *controlplane.ControlPlane
	fabric *network.Fabric
	admin  kubernetes.Interface
	config *rest.Config
	images *registry.Registry
	log    *slog.Logger
	dir    string
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	var err error
	c.fabric, err = network.NewFabric(network.DefaultTopology())
	must(t, err)
	t.Cleanup(func() { must(t, c.fabric.Close()) })
	paths, err := upstream.Ensure(t.Context(), os.Stderr, upstream.Kubernetes)
	must(t, err)
	c.plane, err = controlplane.Start(t.Context(), controlplane.Config{
		Name: "tenant", Dir: filepath.Join(c.dir, "plane"), Address: netip.MustParseAddr(apiServer),
		Kubernetes: paths[upstream.Kubernetes], Log: c.log,
		ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"), PodCIDR: netip.MustParsePrefix("10.244.0.0/16"),
	})
	must(t, err)
	t.Cleanup(func() { must(t, c.plane.Stop()) })
	c.config = c.plane.RestConfig()
	c.admin, err = kubernetes.NewForConfig(c.config)
	must(t, err)
	c.images, err = registry.New(registry.Config{})
	must(t, err)
	harbor, err := c.fabric.AddSubnetMember("mgmt", "harbor", netip.MustParseAddr(harborIP))
	must(t, err)
	listener, err := harbor.Listen("tcp", harborIP+":443")
	must(t, err)
	go func() { _ = c.images.Serve(t.Context(), listener) }()
	return c
}

// join starts a kubelet with the rights of a node and nothing else.
func (c *cluster) join(name, ip string) {
	c.t.Helper()
	node, err := c.fabric.AddSubnetMember("tenant", name, netip.MustParseAddr(ip))
	must(c.t, err)
	kubeconfig, err := c.plane.ClientKubeconfig("system:node:"+name, "system:nodes")
	must(c.t, err)
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	must(c.t, err)
	config.Dial = node.DialContext
	client, err := kubernetes.NewForConfig(config)
	must(c.t, err)
	pair, err := c.plane.IssueServing(pki.Request{CommonName: "system:node:" + name, Names: []string{name}, Addresses: []netip.Addr{netip.MustParseAddr(ip)}})
	must(c.t, err)
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	must(c.t, err)
	self, err := os.Executable()
	must(c.t, err)
	clock, err := latency.NewClock(50)
	must(c.t, err)
	puller := &registry.Puller{
		Dial: node.DialContext, Hosts: c.images.Names(harborIP), RootCAs: append(c.images.CAPEM(), c.images.PublicCAPEM()...), Clock: clock,
		Mirrors: []registry.Mirror{{Host: "quay.io", Endpoints: []string{"https://harbor.lab/v2/proxy-quay.io"}, OverridePath: []bool{true}, SkipFallback: true}},
	}
	k, err := kubelet.New(kubelet.Config{
		NodeName: name, Client: client, RestConfig: config, Net: node, Containers: container.New(self, c.log),
		Programs: map[string]string{"lab": self}, Pull: puller.Pull, PodNetwork: kubelet.NewPointToPoint(node),
		Dir: filepath.Join(c.dir, name), Clock: clock, Version: "v1.35.4", Log: c.log, ClientCA: c.plane.CA(),
		ServingCert: func() (*tls.Certificate, error) { return &certificate, nil }, ClusterDNS: []string{dnsIP},
		NodeTemplate: corev1.Node{
			Spec: corev1.NodeSpec{ProviderID: "aether://demo/" + name, Taints: []corev1.Taint{{Key: taint, Effect: corev1.TaintEffectNoExecute}}},
			Status: corev1.NodeStatus{
				Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}, {Type: corev1.NodeHostName, Address: name}},
				Capacity:  corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
			},
		},
	})
	must(c.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	c.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			c.t.Errorf("kubelet of %s ended with %v", name, err)
		}
	})
}

// install installs the chart as a tenant would get it.
func (c *cluster) install(host string) {
	c.t.Helper()
	chart, err := charts.Cilium()
	must(c.t, err)
	path := filepath.Join(c.dir, "kubeconfig")
	must(c.t, os.WriteFile(path, c.plane.Kubeconfig(), 0o600))
	settings := cli.New()
	settings.KubeConfig = path
	settings.SetNamespace("kube-system")
	var configuration action.Configuration
	must(c.t, configuration.Init(settings.RESTClientGetter(), "kube-system", "secret", func(string, ...any) {}))
	install := action.NewInstall(&configuration)
	install.ReleaseName, install.Namespace = "cilium", "kube-system"
	_, err = install.Run(chart, map[string]any{
		"k8sServiceHost": host, "k8sServicePort": "6443", "kubeProxyReplacement": true,
		"ipam":     map[string]any{"mode": "kubernetes"},
		"hubble":   map[string]any{"enabled": false},
		"operator": map[string]any{"replicas": 1},
		"cgroup":   map[string]any{"autoMount": map[string]any{"enabled": false}, "hostRoot": "/sys/fs/cgroup"},
	})
	must(c.t, err)
}

// eventually waits until there is no error.
func (c *cluster) eventually(within time.Duration, what string, f func(ctx context.Context) error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), within)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			c.dump()
			c.t.Fatalf("%s: not within %s: %v", what, within, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// dump tells what every pod waits for.
func (c *cluster) dump() {
	pods, err := c.admin.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		c.t.Log(err)
		return
	}
	for _, pod := range pods.Items {
		c.t.Logf("pod %s/%s on %s: %s", pod.Namespace, pod.Name, pod.Spec.NodeName, pod.Status.Phase)
		for _, s := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
			c.t.Logf("  %s restarts=%d %+v last=%+v", s.Name, s.RestartCount, s.State, s.LastTerminationState.Terminated)
		}
	}
}

func (c *cluster) nodesUsable(names ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, name := range names {
			node, err := c.admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, t := range node.Spec.Taints {
				return fmt.Errorf("node %s has taint %s", name, t.Key)
			}
			for _, condition := range node.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
					return fmt.Errorf("node %s: %s", name, condition.Message)
				}
			}
		}
		return nil
	}
}

// exec runs a command through the API server.
func (c *cluster) exec(ctx context.Context, pod string, command ...string) (string, int, error) {
	request := c.admin.CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "main", Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(c.config, "GET", request.URL().String())
	if err != nil {
		return "", 0, err
	}
	var out bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &out})
	var exit utilexec.CodeExitError
	if errors.As(err, &exit) {
		return out.String(), exit.Code, nil
	}
	return out.String(), 0, err
}

// run runs a pod on a node.
func (c *cluster) run(name, node string, labels map[string]string) {
	c.t.Helper()
	_, err := c.admin.CoreV1().Pods("default").Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "main", Image: "registry.k8s.io/e2e-test-images/agnhost:2.53", Args: []string{"netexec", "--http-port=8080"},
		}}},
	}, metav1.CreateOptions{})
	must(c.t, err)
}

func (c *cluster) podReady(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		pod, err := c.admin.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("pod %s is %s", name, pod.Status.Phase)
	}
}

func TestNodesBecomeUsable(t *testing.T) {
	c := newCluster(t)
	c.install(apiServer)
	c.join("w1", "10.1.1.51")
	c.join("w2", "10.1.1.52")
	c.eventually(time.Minute, "nodes", c.nodesUsable("w1", "w2"))
	c.serveDNS()
	c.run("one", "w1", nil)
	c.run("two", "w2", map[string]string{"app": "two"})
	_, err := c.admin.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "two"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "two"}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intOrString(8080)}}},
	}, metav1.CreateOptions{})
	must(t, err)
	c.eventually(30*time.Second, "pods", func(ctx context.Context) error {
		return errors.Join(c.podReady("one")(ctx), c.podReady("two")(ctx))
	})
	two, err := c.admin.CoreV1().Pods("default").Get(t.Context(), "two", metav1.GetOptions{})
	must(t, err)
	for _, target := range []struct{ what, host, port string }{
		{"a pod on the other node", two.Status.PodIP, "8080"},
		{"the API server through the masquerade", apiServer, "6443"},
		{"the kubernetes Service", "10.96.0.1", "443"},
		{"a Service by its name", "two.default.svc.cluster.local", "80"},
		{"a Service by its short name", "two", "80"},
	} {
		c.eventually(20*time.Second, "reach "+target.what, func(ctx context.Context) error {
			out, code, err := c.exec(ctx, "one", "nc", "-z", target.host, target.port)
			if err == nil && code != 0 {
				err = fmt.Errorf("exit code %d: %s", code, out)
			}
			return err
		})
	}
	log, err := c.admin.CoreV1().Pods("default").GetLogs("two", &corev1.PodLogOptions{Timestamps: true}).DoRaw(t.Context())
	if err != nil || !strings.Contains(string(log), "started HTTP server") {
		t.Errorf("log through the API server: %q, %v", log, err)
	}
}

func TestWrongAPIHostShowsInTheFirstInitContainer(t *testing.T) {
	c := newCluster(t)
	c.install("192.168.0.77") // nobody is there
	c.join("w1", "10.1.1.51")
	c.eventually(2*time.Minute, "config fails", func(ctx context.Context) error {
		pods, err := c.admin.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=cilium"})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			for _, s := range pod.Status.InitContainerStatuses {
				end := s.State.Terminated
				if end == nil {
					end = s.LastTerminationState.Terminated
				}
				if s.Name == "config" && end != nil && end.ExitCode == 1 && strings.Contains(end.Message, "192.168.0.77") {
					return nil
				}
			}
		}
		return errors.New("no failed run of config yet")
	})
	node, err := c.admin.CoreV1().Nodes().Get(t.Context(), "w1", metav1.GetOptions{})
	must(t, err)
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			t.Error("node is ready without a network")
		}
	}
}
