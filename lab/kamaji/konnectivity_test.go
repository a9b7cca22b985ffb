package kamaji_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/lab/kamaji/kamajitest"
	"aether.internal/aether/lab/kamaji/v1alpha1"
)

// testKonnectivity turns the tunnel on, which takes three Deployments, off,
// which is broken as observed, and on again, which heals it.
func testKonnectivity(t *testing.T, w *kamajitest.World) {
	ctx := t.Context()
	if err := w.API.Create(ctx, w.Tenant("tenants", "tunnel", func(tcp *v1alpha1.TenantControlPlane) { tcp.Spec.Addons.Konnectivity = &v1alpha1.KonnectivitySpec{} })); err != nil {
		t.Fatal(err)
	}
	deployment := &appsv1.Deployment{}
	read := func() bool {
		return w.API.Get(ctx, client.ObjectKey{Namespace: "tenants", Name: "tunnel"}, deployment) == nil
	}
	names := func() (containers, volumes []string) {
		for _, c := range deployment.Spec.Template.Spec.Containers {
			containers = append(containers, c.Name)
		}
		for _, v := range deployment.Spec.Template.Spec.Volumes {
			volumes = append(volumes, v.Name)
		}
		return containers, volumes
	}
	eventually(t, "the third Deployment, with sorted arguments", func() bool {
		return read() && deployment.Generation == 3 && slices.IsSorted(deployment.Spec.Template.Spec.Containers[0].Args)
	})
	containers, _ := names()
	if diff := cmp.Diff([]string{"kube-apiserver", "kube-scheduler", "kube-controller-manager", "konnectivity-server"}, containers); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	switchTunnel(t, w, `null`)
	eventually(t, "the container is gone and the volume is not", func() bool {
		read()
		containers, volumes := names()
		return len(containers) == 3 && slices.Contains(volumes, "konnectivity-server-kubeconfig") && !slices.Contains(volumes, "konnectivity-uds")
	})
	left := w.API.Get(ctx, client.ObjectKey{Namespace: "tenants", Name: "tunnel-konnectivity-kubeconfig"}, &corev1.Secret{})
	if !apierrors.IsNotFound(left) {
		t.Errorf("the Secret that the volume names: %v, want it gone", left)
	}
	service := &corev1.Service{}
	if err := w.API.Get(ctx, client.ObjectKey{Namespace: "tenants", Name: "tunnel"}, service); err != nil || len(service.Spec.Ports) != 2 {
		t.Errorf("ports left of the Service: %v, %v", service.Spec.Ports, err)
	}
	switchTunnel(t, w, `{}`)
	eventually(t, "the tunnel is whole again", func() bool {
		read()
		containers, volumes := names()
		slices.Sort(volumes)
		return len(containers) == 4 && len(slices.Compact(volumes)) == len(deployment.Spec.Template.Spec.Volumes) &&
			w.API.Get(ctx, client.ObjectKey{Namespace: "tenants", Name: "tunnel-konnectivity-kubeconfig"}, &corev1.Secret{}) == nil
	})
}

func switchTunnel(t *testing.T, w *kamajitest.World, konnectivity string) {
	t.Helper()
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"addons":{"konnectivity":`+konnectivity+`}}}`))
	if err := w.API.Patch(t.Context(), w.Tenant("tenants", "tunnel", nil), patch); err != nil {
		t.Fatal(err)
	}
}
