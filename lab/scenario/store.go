package scenario

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/internal/domain"
)

// controlPlaneKind is Kamaji's kind of a hosted control plane.
func controlPlaneKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "kamaji.clastix.io", Version: "v1alpha1", Kind: "TenantControlPlane"}
}

// controlPlaneUID is the UID of a tenant's TenantControlPlane, which is where
// its API server keeps its objects in the shared etcd.
func (t *T) controlPlaneUID(ctx context.Context, name string) (string, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(controlPlaneKind())
	if err := t.Kube.Get(ctx, kubeclient.ObjectKey{Namespace: domain.TenantNamespace(name), Name: name}, object); err != nil {
		return "", fmt.Errorf("read TenantControlPlane %s: %w", name, err)
	}
	return string(object.GetUID()), nil
}

// storedKeys counts what a control plane has in the shared etcd.
func (t *T) storedKeys(ctx context.Context, uid string) (int64, error) {
	secret := &corev1.Secret{}
	if err := t.Kube.Get(ctx, kubeclient.ObjectKey{Namespace: "kamaji-system", Name: "default-etcd-certs"}, secret); err != nil {
		return 0, fmt.Errorf("read the certificates of etcd: %w", err)
	}
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		return 0, fmt.Errorf("certificate for etcd: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["ca.crt"])
	c, err := clientv3.New(clientv3.Config{
		Context: ctx, Endpoints: []string{"192.168.0.2:2389"}, Logger: zap.NewNop(),
		TLS: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	})
	if err != nil {
		return 0, fmt.Errorf("connect to etcd: %w", err)
	}
	defer func() { _ = c.Close() }() // only read from
	answer, err := c.Get(ctx, "/"+uid+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, fmt.Errorf("count keys in etcd: %w", err)
	}
	return answer.Count, nil
}
