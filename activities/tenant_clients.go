package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/internal/domain"
)

// TenantClients opens tenants' API servers over the management side, so that a
// proxy that is down blinds nobody.
type TenantClients struct {
	// Kube is the management cluster, where the kubeconfigs are.
	Kube client.Client
}

// TenantAccess is an open tenant.
type TenantAccess struct {
	Kube   client.WithWatch
	Config *rest.Config
	// Kubeconfig is the management-side kubeconfig. It is a secret.
	Kubeconfig []byte
	// CA is the tenant's Kubernetes CA in PEM form.
	CA []byte
}

// ManagementKubeconfigSecret is the Secret in the tenant's namespace with the
// management-side kubeconfig, as Cluster API core looks it up.
func ManagementKubeconfigSecret(tenant string) string { return tenant + "-kubeconfig" }

// KubeconfigKey is the key of a kubeconfig in its Secret.
const KubeconfigKey = "value"

// tenantCallTimeout bounds one call to a tenant's API server.
const tenantCallTimeout = 15 * time.Second

// errNoAccess tells that a tenant has no kubeconfig: it was never built that
// far, or it is gone.
var errNoAccess = errors.New("tenant has no management-side kubeconfig")

// Open reads the tenant's management-side kubeconfig and returns clients.
func (t *TenantClients) Open(ctx context.Context, tenant string) (*TenantAccess, error) {
	secret := &corev1.Secret{}
	err := t.Kube.Get(ctx, client.ObjectKey{Namespace: domain.TenantNamespace(tenant), Name: ManagementKubeconfigSecret(tenant)}, secret)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("tenant %s: %w", tenant, errNoAccess)
	}
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of tenant %s: %w", tenant, err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data[KubeconfigKey])
	if err != nil {
		// The cause may quote the file.
		return nil, fmt.Errorf("the kubeconfig of tenant %s in Secret %s cannot be read; delete the Secret to have it made again", tenant, secret.Name)
	}
	config.Timeout = tenantCallTimeout
	kube, err := client.NewWithWatch(config, client.Options{})
	if err != nil {
		return nil, fmt.Errorf("open tenant %s: %w", tenant, err)
	}
	return &TenantAccess{Kube: kube, Config: config, Kubeconfig: secret.Data[KubeconfigKey], CA: config.CAData}, nil
}
