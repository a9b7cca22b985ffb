package world

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/lab/site"
)

// errNotPublished says that a tenant has no kubeconfig yet.
var errNotPublished = errors.New("no kubeconfig is published yet")

// TenantKubeconfig is the kubeconfig that Aether published for a tenant: the
// Secret that its AetherCluster names.
func (w *World) TenantKubeconfig(ctx context.Context, namespace, name string) ([]byte, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	api, err := client.New(w.administrator(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	var tenant v1alpha1.AetherCluster
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &tenant); err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	if tenant.Status.KubeconfigSecret == "" {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, errNotPublished)
	}
	var secret corev1.Secret
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: tenant.Status.KubeconfigSecret}, &secret); err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	for _, data := range secret.Data { // it has one key
		return data, nil
	}
	return nil, fmt.Errorf("kubeconfig of %s: secret %s: %w", name, secret.Name, errNotPublished)
}

// TenantRestConfig reaches a tenant's API server as its people do, by the
// published kubeconfig, from everywhere in this process.
func (w *World) TenantRestConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	data, err := w.TenantKubeconfig(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", name, err)
	}
	cfg.QPS, cfg.Dial = -1, w.Fabric.Platform().DialContext
	return cfg, nil
}

// TenantNodes lists a tenant's nodes by the published kubeconfig.
func (w *World) TenantNodes(ctx context.Context, namespace, name string) ([]corev1.Node, error) {
	cfg, err := w.TenantRestConfig(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	api, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("nodes of %s: %w", name, err)
	}
	list, err := api.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("nodes of %s: %w", name, err)
	}
	return list.Items, nil
}

// Starter runs the product's command line as a person on the platform would.
func (w *World) Starter(ctx context.Context, out io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(w.opts.Product, "starter"), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = w.opts.Source, out, out
	cmd.Env = append(cmd.Environ(), w.ClientEnvironment()...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("starter %v: %w", args, err)
	}
	return nil
}

// ManagementKubeconfig is the file with the administrator's kubeconfig.
func (w *World) ManagementKubeconfig() string { return w.insideKubeconfig() }

// CodecKeys is the file with the keys of the payload codec.
func (w *World) CodecKeys() string { return site.CodecKeysFile(w.siteDir()) }

// LogFile is where a component's log is.
func (w *World) LogFile(name string) string { return w.logPath(name) }
