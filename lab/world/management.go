package world

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"aether.internal/aether/lab/capicore"
	"aether.internal/aether/lab/controlplane"
	"aether.internal/aether/lab/controlplane/pki"
	"aether.internal/aether/lab/kubelet"
	"aether.internal/aether/lab/registry"
	"aether.internal/aether/lab/services"
	"aether.internal/aether/lab/upstream"
	"aether.internal/aether/lab/upstream/process"
)

// The management cluster; examples/site.yaml states its ranges.
const (
	managementName    = "management"
	managementNode    = "mgmt"
	managementPods    = "10.250.0.0/16"
	managementService = "10.98.0.0/16"
	managementLink    = "mgmt0"
	clusterLink       = "lo"
	balancerFirst     = "192.168.0.100"
	balancerLast      = "192.168.0.199"
)

func (w *World) startManagement(ctx context.Context) error {
	log, err := w.logger(partManagement)
	if err != nil {
		return err
	}
	cp, err := controlplane.Start(ctx, controlplane.Config{
		Name: managementName, Dir: filepath.Join(w.opts.Dir, "run", managementName), Net: w.Fabric.Platform(),
		Address:     netip.MustParseAddr(platformAddress),
		Kubernetes:  w.opts.Programs[upstream.Kubernetes],
		ServiceCIDR: netip.MustParsePrefix(managementService), PodCIDR: netip.MustParsePrefix(managementPods),
		Log: log,
	})
	if err != nil {
		return err
	}
	w.Management = cp
	for _, c := range controlplane.Components() {
		if err := w.linkLog("mgmt-"+string(c), cp.LogFile(c)); err != nil {
			return err
		}
		address := ""
		if c == controlplane.APIServer {
			address = cp.Endpoint()
		}
		w.supervise(&component{
			name: "mgmt-" + string(c), address: address, logFile: cp.LogFile(c),
			process: func() *process.Process { return cp.Process(c) },
			kill:    func() error { return cp.Kill(c) },
			restart: func(ctx context.Context) error { return cp.Restart(ctx, c) },
		})
	}
	w.onStop(cp.Stop)
	if err := w.writeKubeconfigs(); err != nil {
		return err
	}
	return w.collectSecrets(ctx)
}

// administrator reaches the management cluster without the client-side limits
// that would slow a busy lab down.
func (w *World) administrator() *rest.Config {
	cfg := rest.CopyConfig(w.Management.RestConfig())
	cfg.QPS = -1
	return cfg
}

// RestConfig reaches the management cluster as its administrator, from
// everywhere in this process.
func (w *World) RestConfig() *rest.Config { return w.administrator() }

// Management node: the platform's own network stack, so that control planes of
// tenants are where the load balancer is.
func (w *World) startNode(ctx context.Context) error {
	log, err := w.logger(partNode)
	if err != nil {
		return err
	}
	cfg, err := w.nodeConfig()
	if err != nil {
		return err
	}
	cfg.Log = log
	k, err := kubelet.New(cfg)
	if err != nil {
		return err
	}
	w.run(partNode, net.JoinHostPort(platformAddress, fmt.Sprint(kubelet.DefaultPort)), k.Run)
	return w.eventually(ctx, func(ctx context.Context) error { return nodeReady(ctx, cfg.Client, managementNode) })
}

func (w *World) nodeConfig() (kubelet.Config, error) {
	data, err := w.Management.ClientKubeconfig("system:node:"+managementNode, "system:nodes")
	if err != nil {
		return kubelet.Config{}, err
	}
	restConfig, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		return kubelet.Config{}, fmt.Errorf("node's kubeconfig: %w", err)
	}
	restConfig.QPS, restConfig.Dial = -1, w.Fabric.Platform().DialContext
	client, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		return kubelet.Config{}, fmt.Errorf("node's client: %w", err)
	}
	serving, err := w.servingCertificate()
	if err != nil {
		return kubelet.Config{}, err
	}
	puller := &registry.Puller{
		Dial: w.Fabric.Platform().DialContext, Hosts: w.Registry.Names(harborAddress),
		RootCAs: append(w.Registry.PublicCAPEM(), w.Registry.CAPEM()...), Clock: w.Clock,
	}
	return kubelet.Config{
		NodeName: managementNode, Client: client, RestConfig: restConfig, Net: w.Fabric.Platform(), Containers: w.Containers,
		Programs: w.images(), Pull: puller.Pull, PodNetwork: kubelet.NewPointToPoint(w.Fabric.Platform()),
		Dir: filepath.Join(w.opts.Dir, "run", "node"), Clock: w.Clock, APIServer: w.Management.Endpoint(),
		Hosts: w.Registry.Names(harborAddress), Version: registry.KubernetesVersion, NodeTemplate: nodeTemplate(),
		ServingCert: func() (*tls.Certificate, error) { return serving, nil }, ClientCA: w.Management.CA(),
		CNIReady: func() bool { return true }, MaxPods: maxPods,
	}, nil
}

// maxPods is above the usual 110, for a lab may hold many control planes.
const maxPods = 250

func nodeTemplate() corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
			corev1.LabelHostname: managementNode, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: platformAddress},
				{Type: corev1.NodeHostName, Address: managementNode},
			},
			Capacity: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"),
				corev1.ResourcePods: *resource.NewQuantity(maxPods, resource.DecimalSI),
			},
		},
	}
}

func (w *World) servingCertificate() (*tls.Certificate, error) {
	pair, err := w.Management.IssueServing(pki.Request{
		CommonName: "system:node:" + managementNode, Organizations: []string{"system:nodes"},
		Names: []string{managementNode}, Addresses: []netip.Addr{netip.MustParseAddr(platformAddress)},
	})
	if err != nil {
		return nil, err
	}
	certificate, err := pair.TLS()
	if err != nil {
		return nil, fmt.Errorf("node's serving certificate: %w", err)
	}
	return &certificate, nil
}

// images says which executable stands behind an image's program.
func (w *World) images() map[string]string {
	kubernetes := w.opts.Programs[upstream.Kubernetes]
	return map[string]string{
		"kube-apiserver": kubernetes, "kube-controller-manager": kubernetes, "kube-scheduler": kubernetes,
		"etcd": kubernetes, "kubectl": kubernetes,
		"konnectivity-server": w.opts.Programs[upstream.KonnectivityServer],
		"konnectivity-agent":  w.opts.Programs[upstream.KonnectivityAgent],
		"lab":                 w.opts.Self,
	}
}

func (w *World) startServices(context.Context) error {
	log, err := w.logger(partServices)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(w.administrator())
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	balancer, err := services.New(services.Config{
		Client: client, Net: w.Fabric.Platform(), Log: log, Link: managementLink, PrefixBits: 24,
		First: netip.MustParseAddr(balancerFirst), Last: netip.MustParseAddr(balancerLast), ClusterLink: clusterLink,
	})
	if err != nil {
		return err
	}
	w.run(partServices, balancerFirst+"-"+balancerLast, balancer.Run)
	return nil
}

func (w *World) startCAPI(ctx context.Context) error {
	log, err := w.logger(partCAPI)
	if err != nil {
		return err
	}
	kubeconfig, err := w.Management.ClientKubeconfig(capicore.User)
	if err != nil {
		return err
	}
	manager, err := capicore.Start(ctx, capicore.Config{
		Program: w.opts.Programs[upstream.CAPI], Manifests: w.opts.CAPI, Dir: filepath.Join(w.opts.Dir, "run", "capi"),
		Net: w.Fabric.Platform(), Rest: w.administrator(), Kubeconfig: kubeconfig,
		Address: netip.MustParseAddr(platformAddress), Log: log,
	})
	if err != nil {
		return err
	}
	if err := w.linkLog("capi-manager", manager.LogFile()); err != nil {
		return err
	}
	w.supervise(&component{
		name: "capi-manager", logFile: manager.LogFile(), process: manager.Process,
		kill: manager.Kill, restart: manager.Restart, stop: manager.Stop,
	})
	return nil
}
