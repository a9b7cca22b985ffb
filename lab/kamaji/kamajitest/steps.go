package kamajitest

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

const poll = 50 * time.Millisecond

// Eventually waits until something holds, or fails the test.
func (w *World) Eventually(within time.Duration, what string, holds func(context.Context) bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), within)
	defer cancel()
	for !holds(ctx) {
		select {
		case <-ctx.Done():
			w.t.Fatalf("not within %s: %s", within, what)
		case <-time.After(poll):
		}
	}
}

// Namespace makes a namespace.
func (w *World) Namespace(name string) string {
	w.t.Helper()
	err := w.API.Create(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		w.t.Fatal(err)
	}
	return name
}

// Tenant returns a small control plane that was not sent yet.
func (w *World) Tenant(namespace, name string, change func(*v1alpha1.TenantControlPlane)) *v1alpha1.TenantControlPlane {
	tcp := &v1alpha1.TenantControlPlane{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.TenantControlPlaneSpec{
			DataStore: "default",
			ControlPlane: v1alpha1.ControlPlane{
				Deployment: v1alpha1.DeploymentSpec{Replicas: ptr.To[int32](1)},
				Service:    v1alpha1.ServiceSpec{ServiceType: "ClusterIP"},
			},
			Kubernetes: v1alpha1.KubernetesSpec{Version: "v1.35.4", Kubelet: v1alpha1.KubeletSpec{CGroupFS: "systemd"}},
			NetworkProfile: v1alpha1.NetworkProfileSpec{
				AdvertiseAddress: "10.1.1.10", CertSANs: []string{"api." + name + ".example.test"},
				ServiceCIDR: "10.112.0.0/16", PodCIDR: "10.200.0.0/16",
			},
			Addons: v1alpha1.AddonsSpec{CoreDNS: &v1alpha1.AddonSpec{}},
		},
	}
	if change != nil {
		change(tcp)
	}
	return tcp
}

// Get reads a control plane; nil when there is none.
func (w *World) Get(ctx context.Context, namespace, name string) *v1alpha1.TenantControlPlane {
	tcp := &v1alpha1.TenantControlPlane{}
	if err := w.API.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, tcp); err != nil {
		return nil
	}
	return tcp
}
