package talos

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"
	"k8s.io/klog/v2"

	"aether.internal/aether/lab/kubelet"
	"aether.internal/aether/lab/registry"
)

// kubeletService is Talos's service of that name.
type kubeletService struct {
	node  *node
	image *registry.Image
	trust trust
	key   *ecdsa.PrivateKey // of the bootstrap, kept over restarts
}

// restartInterval is how long Talos waits before it starts a service again. A
// kubelet takes shortestRestart to come up, however fast the lab's clock is.
const (
	restartInterval = 5 * time.Second
	shortestRestart = 500 * time.Millisecond
)

// runKubelet pulls the kubelet and keeps it running. A kubelet that ends is
// started again for ever; one whose image cannot be had is not.
func (n *node) runKubelet(ctx context.Context) error {
	ref := n.provider.Machine().Kubelet().Image()
	n.console.talos("service[kubelet](Preparing): pulling %q", ref)
	image, err := n.pullAsMachined(ctx, ref)
	if err != nil {
		if errors.Is(err, errPullFailed) {
			n.console.talos("service[kubelet](Failed): Failed to run pre stage: %v", err)
			return nil
		}
		return err
	}
	k := &kubeletService{node: n, image: image}
	for {
		err := k.run(k.logged(ctx))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n.console.kubelet(`E "command failed" err="failed to run Kubelet: %v"`, err)
		n.console.talos("service[kubelet](Waiting): Error running Containerd(kubelet), going to restart forever: %v", err)
		if err := pause(ctx, max(n.cfg.Clock.Scale(restartInterval), shortestRestart)); err != nil {
			return err
		}
	}
}

// logged sends what Kubernetes's own libraries log to the console.
func (k *kubeletService) logged(ctx context.Context) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(k.node.console.logger("kubelet").Handler()))
}

// run is one life of the kubelet.
func (k *kubeletService) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t, err := k.node.newTrust()
	if err != nil {
		return err
	}
	k.trust = t
	first, err := k.clientCertificate(ctx)
	if err != nil {
		return err
	}
	certs := &current{}
	certs.value.Store(first)
	client, err := k.node.newClient(t, nil, certs.get)
	if err != nil {
		return err
	}
	defer client.dialer.CloseAll()
	clientCerts, err := k.clientManager(ctx, client)
	if err != nil {
		return err
	}
	serving, startServing, err := k.servingCertificates(ctx, client)
	if err != nil {
		return err
	}
	run, err := k.newKubelet(client, serving)
	if err != nil {
		return err
	}
	clientCerts.Start()
	defer clientCerts.Stop()
	defer startServing()()
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error { return certs.follow(groupCtx, clientCerts.Current, client) })
	group.Go(func() error { return k.applyNode(groupCtx, client) })
	group.Go(func() error { return run.Run(groupCtx) })
	return group.Wait()
}

// clientManager renews the client certificate before it expires.
func (k *kubeletService) clientManager(ctx context.Context, client kubernetes.Interface) (certificate.Manager, error) {
	manager, err := certificate.NewManager(&certificate.Config{
		Ctx: &ctx, Name: "kube-apiserver-client-kubelet",
		ClientsetFn:      func(*tls.Certificate) (kubernetes.Interface, error) { return client, nil },
		Template:         &x509.CertificateRequest{Subject: nodeSubject(k.node.name)},
		SignerName:       clientSigner,
		GetUsages:        clientUsages,
		CertificateStore: pemStore{disk: k.node.disk, file: clientFile},
	})
	if err != nil {
		return nil, fmt.Errorf("keep client certificate: %w", err)
	}
	return manager, nil
}

// newKubelet puts the node together from the configuration.
func (k *kubeletService) newKubelet(client *apiClient, serving func() (*tls.Certificate, error)) (*kubelet.Kubelet, error) {
	n := k.node
	template, maxPods, err := n.template()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(n.machine.Dir, "root")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make root directory: %w", err)
	}
	dns, err := n.clusterDNS()
	if err != nil {
		return nil, err
	}
	return kubelet.New(kubelet.Config{
		NodeName: n.name, Client: client, RestConfig: client.rest, Net: n.machine.Net,
		Containers: n.cfg.Containers, Programs: n.cfg.Programs, Pull: n.pullAsContainerd,
		PodNetwork: kubelet.NewPointToPoint(n.machine.Net), Dir: dir, Clock: n.cfg.Clock,
		Version: k.image.Version, NodeTemplate: template, MaxPods: maxPods,
		ServingCert: serving, ClientCA: k.trust.caPEM, Log: n.console.logger("kubelet"),
		ClusterDNS: dns, ClusterDomain: n.provider.Cluster().Network().DNSDomain(), Nameservers: n.resolvers(),
	})
}

func (n *node) clusterDNS() ([]string, error) {
	if explicit := n.provider.Machine().Kubelet().ClusterDNS(); len(explicit) > 0 {
		return explicit, nil
	}
	ips, err := n.provider.Cluster().Network().DNSServiceIPs()
	if err != nil {
		return nil, fmt.Errorf("cluster DNS: %w", err)
	}
	list := make([]string, 0, len(ips))
	for _, ip := range ips {
		list = append(list, ip.String())
	}
	return list, nil
}

func (n *node) resolvers() []string {
	list := make([]string, 0, len(n.names.nameservers))
	for _, ip := range n.names.nameservers {
		list = append(list, ip.String())
	}
	return list
}
