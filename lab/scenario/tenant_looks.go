package scenario

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/talos"
	"aether.internal/aether/lab/network"
)

// noTokens is an error while the tenant has a bootstrap token of Aether's.
func (n *tenant) noTokens(ctx context.Context) error {
	secrets, err := n.api.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		FieldSelector: "type=" + string(corev1.SecretTypeBootstrapToken), LabelSelector: "aether.internal/machine",
	})
	if err != nil {
		return fmt.Errorf("list bootstrap tokens: %w", err)
	}
	if len(secrets.Items) > 0 {
		return unexpected("%d bootstrap tokens are left", len(secrets.Items))
	}
	return nil
}

// onlyWorker is the record of a tenant's one worker.
func (t *T) onlyWorker(ctx context.Context, tenant string) (*v1alpha1.AetherVM, error) {
	list := &v1alpha1.AetherVMList{}
	err := t.Kube.List(ctx, list, kubeclient.InNamespace(domain.SystemNamespace), kubeclient.MatchingLabels{domain.TenantLabel: tenant})
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	var workers []v1alpha1.AetherVM
	for _, vm := range list.Items {
		if vm.Spec.Role == v1alpha1.RoleWorker {
			workers = append(workers, vm)
		}
	}
	if len(workers) != 1 {
		return nil, unexpected("tenant %s has %d workers", tenant, len(workers))
	}
	return &workers[0], nil
}

// wantedBy is what Aether would want of a configuration for that machine.
func (t *T) wantedBy(ctx context.Context, h *handMade, vmid int, address string) (talos.Want, error) {
	secret, err := h.bootstrapToken(ctx)
	if err != nil {
		return talos.Want{}, err
	}
	token, err := talos.ParseBootstrapToken(secret)
	if err != nil {
		return talos.Want{}, err
	}
	id := domain.NewMachineID()
	return talos.Want{
		Cluster: h.name, Endpoint: h.server, KubernetesCA: h.config.CAData, TalosCA: h.talosCA, Token: token,
		KubernetesVersion: "v1.35.4", TalosVersion: "v1.12.6", Hostname: fmt.Sprintf("by-hand-%d", vmid), ProviderID: domain.ProviderID(h.name, id),
		PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}, DNSDomain: "cluster.local",
		NICs: []talos.NIC{{
			Alias: "net0", MAC: domain.WorkerMAC(id, 0), Address: netip.PrefixFrom(netip.MustParseAddr(address), 24),
			Gateway: netip.MustParseAddr("10.1.1.1"), MTU: 1500,
		}},
		Nameservers: []netip.Addr{netip.MustParseAddr("192.168.0.1")}, TimeServers: []string{"192.168.0.1"},
		Install: talos.Install{Disk: "/dev/sda", Image: "factory.talos.dev/nocloud-installer/ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515:v1.12.6"},
	}, nil
}

// storageMember is a machine on the storage network, as Ceph is.
func (t *T) storageMember() (*network.Namespace, error) {
	return t.ceph.get(func() (*network.Namespace, error) {
		return t.World.Fabric.AddSubnetMember("storage", "ceph", netip.MustParseAddr("10.1.2.10"))
	})
}

// visitor is a machine on the tenants' network.
func (t *T) visitor() (*network.Namespace, error) {
	return t.guest.get(func() (*network.Namespace, error) {
		return t.World.Fabric.AddSubnetMember("tenant", "visitor", netip.MustParseAddr("10.1.1.230"))
	})
}

// tenantSideAnswers tells whether the address answers on the tenants' network.
func (t *T) tenantSideAnswers(ctx context.Context, address string) error {
	from, err := t.visitor()
	if err != nil {
		return err
	}
	response, err := plainHTTPS(from.DialContext).Get("https://" + address + "/version")
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", address, err)
	}
	return response.Body.Close()
}

// advertised is where an API server tells its cluster to find it.
func advertised(ctx context.Context, api kubernetes.Interface) (string, error) {
	address := ""
	err := eventually(ctx, "the endpoints of the API server", func(ctx context.Context) error {
		slices, err := api.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=kubernetes",
		})
		if err != nil {
			return fmt.Errorf("read endpoints: %w", err)
		}
		for _, s := range slices.Items {
			for _, e := range s.Endpoints {
				address = net.JoinHostPort(e.Addresses[0], fmt.Sprint(*s.Ports[0].Port))
				return nil
			}
		}
		return unexpected("there are none")
	})
	return address, err
}

// createNodeAs creates another node with the certificate of node-a.
func createNodeAs(ctx context.Context, config *rest.Config, admin kubernetes.Interface, file string) error {
	certificate, key, err := nodeCertificate(ctx, admin, "node-a")
	if err != nil {
		return err
	}
	own := rest.AnonymousClientConfig(config)
	own.CertData, own.KeyData, own.Dial = certificate, key, config.Dial
	api, err := kubernetes.NewForConfig(own)
	if err != nil {
		return fmt.Errorf("client of node-a: %w", err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read node: %w", err)
	}
	node := &corev1.Node{}
	if err := yaml.UnmarshalStrict(data, node); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	_, err = api.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	return err
}

// nodeCertificate gets what a kubelet gets: a client certificate of the node's
// name, approved by the administrator.
func nodeCertificate(ctx context.Context, admin kubernetes.Interface, name string) (certificate, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
	}, key)
	if err != nil {
		return nil, nil, fmt.Errorf("make request: %w", err)
	}
	requests := admin.CertificatesV1().CertificateSigningRequests()
	request, err := requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("request certificate: %w", err)
	}
	// The tenant's own controllers write the request too.
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		seen, err := requests.Get(ctx, request.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(seen.Status.Conditions) > 0 {
			return nil
		}
		seen.Status.Conditions = append(seen.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Scenario", Message: "as the approver does",
		})
		_, err = requests.UpdateApproval(ctx, seen.Name, seen, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("approve certificate: %w", err)
	}
	err = eventually(ctx, "the certificate to be signed", func(ctx context.Context) error {
		seen, err := requests.Get(ctx, request.Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		if certificate = seen.Status.Certificate; len(certificate) == 0 {
			return unexpected("it is not there yet")
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	return certificate, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded}), nil
}

// forbidden returns the reason of a 403.
func forbidden(err error) (string, bool) {
	var status *apierrors.StatusError
	if !errors.As(err, &status) || !apierrors.IsForbidden(err) {
		return "", false
	}
	return status.ErrStatus.Message, true
}
