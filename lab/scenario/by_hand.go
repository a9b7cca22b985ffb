package scenario

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	talosclient "github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"
	plainyaml "sigs.k8s.io/yaml"

	"aether.internal/aether/internal/talos"
)

// handMade is a control plane that was made with a manifest, as the origin did,
// and not by Aether.
type handMade struct {
	name string
	// kubeconfig as Kamaji wrote it.
	kubeconfig []byte
	server     string
	talosCA    []byte // PEM
	config     *rest.Config
	api        kubernetes.Interface
}

// handMadeTenant is the control plane that the naive halves share: reached at
// its load balancer's address, with Cluster API's default range for pods. It
// lives as long as the lab.
func (t *T) handMadeTenant(ctx context.Context) (*handMade, error) {
	return t.byHand.get(func() (*handMade, error) {
		return t.applyControlPlane(ctx, filepath.Join(filepath.Dir(t.Testdata("")), "by-hand", "tenantcontrolplane.yaml"), "by-hand")
	})
}

// applyControlPlane does `kubectl apply` and waits until Kamaji says Ready.
func (t *T) applyControlPlane(ctx context.Context, file, name string) (*handMade, error) {
	t.Logf("kubectl apply -f %s", file)
	if err := t.apply(ctx, file); err != nil {
		return nil, err
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(controlPlaneKind())
	err := eventually(ctx, "control plane "+name, func(ctx context.Context) error {
		if err := t.Kube.Get(ctx, kubeclient.ObjectKey{Namespace: name, Name: name}, object); err != nil {
			return fmt.Errorf("read TenantControlPlane: %w", err)
		}
		status, _, err := unstructured.NestedString(object.Object, "status", "kubernetesResources", "version", "status")
		if err != nil || status != "Ready" {
			return unexpected("Kamaji says %q", status)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	secret := &corev1.Secret{}
	if err := t.Kube.Get(ctx, kubeclient.ObjectKey{Namespace: name, Name: name + "-admin-kubeconfig"}, secret); err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	ca, err := talos.NewCA(time.Now())
	if err != nil {
		return nil, err
	}
	h := &handMade{name: name, kubeconfig: secret.Data["admin.conf"], talosCA: ca.Certificate}
	if h.config, err = clientcmd.RESTConfigFromKubeConfig(h.kubeconfig); err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	h.server, h.config.QPS = h.config.Host, -1
	if h.api, err = kubernetes.NewForConfig(h.config); err != nil {
		return nil, fmt.Errorf("client of %s: %w", name, err)
	}
	// Kamaji says Ready before its administrator has any rights.
	return h, eventually(ctx, "the administrator's rights", func(ctx context.Context) error {
		_, err := h.api.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
}

// apply creates the objects of a file; those that exist stay.
func (t *T) apply(ctx context.Context, file string) error {
	data, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	defer func() { _ = data.Close() }() // only read from
	decoder := yaml.NewYAMLOrJSONDecoder(data, 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		if err := t.Kube.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
}

// rawWorker makes a Talos VM with the scenario's script and pushes the machine
// configuration of testdata/by-hand to it, filled with what is right for the
// control plane, changed by the scenario's worker.yaml.
func (t *T) rawWorker(ctx context.Context, h *handMade, vmid int, address string) error {
	p, err := t.pvesh()
	if err != nil {
		return err
	}
	t.removeVMs(p, "pv1-1", vmid)
	for _, line := range []string{
		fmt.Sprintf("create /nodes/pv1-1/qemu/901/clone --newid %d --name by-hand-%d", vmid, vmid),
		fmt.Sprintf("set /nodes/pv1-1/qemu/%d/config --net0 virtio,bridge=vmbr1 --net1 virtio,bridge=vmbr2 --ipconfig0 ip=%s/24,gw=10.1.1.1", vmid, address),
		fmt.Sprintf("create /nodes/pv1-1/qemu/%d/status/start", vmid),
	} {
		t.Logf("pvesh %s", line)
		c, err := parseCall(line)
		if err != nil {
			return err
		}
		if _, err := p.do(ctx, c); err != nil {
			return err
		}
	}
	configuration, err := t.rawConfiguration(ctx, h, vmid, address)
	if err != nil {
		return err
	}
	t.Logf("talosctl apply-config --insecure -n %s", address)
	var refusal error
	err = eventually(ctx, "Talos to be there", func(ctx context.Context) error {
		err := t.push(ctx, address, configuration)
		if status.Code(err) == codes.InvalidArgument {
			refusal = err
			return nil
		}
		return err
	})
	return errors.Join(err, refusal)
}

// rawConfiguration fills the machine configuration.
func (t *T) rawConfiguration(ctx context.Context, h *handMade, vmid int, address string) ([]byte, error) {
	token, err := h.bootstrapToken(ctx)
	if err != nil {
		return nil, err
	}
	encode := base64.StdEncoding.EncodeToString
	values := map[string]string{
		"hostname": fmt.Sprintf("by-hand-%d", vmid), "address": address, "api": h.server, "token": token,
		"ca": encode(h.config.CAData), "talosCA": encode(h.talosCA), "kubelet": "ghcr.io/siderolabs/kubelet:v1.35.4",
	}
	if data, err := os.ReadFile(t.Testdata("worker.yaml")); err == nil {
		changes := map[string]string{}
		if err := plainyaml.UnmarshalStrict(data, &changes); err != nil {
			return nil, fmt.Errorf("read %s: %w", t.Testdata("worker.yaml"), err)
		}
		maps.Copy(values, changes)
	}
	data, err := os.ReadFile(filepath.Join(filepath.Dir(t.Testdata("")), "by-hand", "worker.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read machine configuration: %w", err)
	}
	return []byte(os.Expand(string(data), func(key string) string { return values[key] })), nil
}

// push sends a configuration to maintenance mode, as talosctl does.
func (t *T) push(ctx context.Context, address string, configuration []byte) error {
	c, err := talosclient.New(ctx, talosclient.WithEndpoints(address), talosclient.WithTLSConfig(&tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // as --insecure
	}))
	if err != nil {
		return fmt.Errorf("connect to Talos: %w", err)
	}
	defer func() { _ = c.Close() }() // it has been used
	_, err = c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: configuration})
	return err
}

// bootstrapToken makes the token that workers made by hand share.
func (h *handMade) bootstrapToken(ctx context.Context) (string, error) {
	const id, secret = "nzbyod", "5a2f8c0d1e3b4a69"
	_, err := h.api.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
			"auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("create bootstrap token: %w", err)
	}
	return id + "." + secret, nil
}

// node waits for a node to register.
func (h *handMade) node(ctx context.Context, name string) (*corev1.Node, error) {
	var node *corev1.Node
	err := eventually(ctx, "node "+name, func(ctx context.Context) error {
		var err error
		node, err = h.api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return node, err
}

// noNode is an error if a node has registered.
func (h *handMade) noNode(ctx context.Context, name string) error {
	_, err := h.api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		return unexpected("node %s has joined", name)
	}
	return kubeclient.IgnoreNotFound(err)
}

// hostOf is the host part of a server's URL.
func hostOf(server string) string {
	address := strings.TrimPrefix(server, "https://")
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// plainHTTPS is a client that only wants to know whether someone answers.
func plainHTTPS(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	return &http.Client{Timeout: answerTime, Transport: &http.Transport{
		DialContext:     dial,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // nothing is trusted to the answer
	}}
}
