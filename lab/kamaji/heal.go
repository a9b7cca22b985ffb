package kamaji

import (
	"context"
	"fmt"
	"net"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"aether.internal/aether/lab/kamaji/v1alpha1"
	"aether.internal/aether/lab/latency"
)

// piece is one object wanted in the tenant.
type piece struct {
	object client.Object
	// once: made when absent, never put right. That is why cluster-info keeps
	// an old server and an old authority.
	once bool
}

// heal makes one pass over the tenant side.
func (n *inside) heal(ctx context.Context) error {
	tcp := &v1alpha1.TenantControlPlane{}
	if err := n.management().Get(ctx, n.key, tcp); err != nil {
		return fmt.Errorf("read control plane: %w", err)
	}
	host, _, err := net.SplitHostPort(tcp.Status.ControlPlaneEndpoint)
	if err != nil {
		return fmt.Errorf("read control plane endpoint: %w", err)
	}
	view := &pass{Kamaji: n.Kamaji, log: n.log, tcp: tcp, host: host}
	if view.store, err = n.loadStore(ctx, view.storeName()); err != nil {
		return err
	}
	pieces, err := view.kubeadmPieces(n.caPEM)
	if err != nil {
		return err
	}
	for i, piece := range pieces {
		if err := n.ensure(ctx, piece); err != nil {
			return err
		}
		if i == len(pieces)/2 && !n.set {
			if err := n.tellToken(ctx, tcp, nil); err != nil { // cluster-info is not there yet
				return err
			}
		}
	}
	if err := n.healAddons(ctx, view); err != nil {
		return err
	}
	if err := n.healWriteHooks(ctx, tcp.Spec.WritePermissions); err != nil {
		return err
	}
	info := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: nsPublic, Name: clusterInfo}}
	if err := n.api.Get(ctx, client.ObjectKeyFromObject(info), info); err != nil {
		return fmt.Errorf("read cluster-info: %w", err)
	}
	return n.tellToken(ctx, tcp, info.Data)
}

// tellToken puts the sum of cluster-info into the status. It changes with the
// signatures in it.
func (n *inside) tellToken(ctx context.Context, tcp *v1alpha1.TenantControlPlane, data map[string]string) error {
	checksum := sumStrings(data)
	_, err := n.updateStatus(ctx, tcp, func(s *status) {
		if data == nil && s.KubeadmPhase.BootstrapToken.Checksum != "" {
			return
		}
		if s.KubeadmPhase.BootstrapToken.Checksum != checksum {
			s.KubeadmPhase.BootstrapToken = v1alpha1.PhaseStatus{Checksum: checksum, LastUpdate: now()}
		}
	})
	return err
}

// ensure makes the object, or puts right what differs from what is wanted.
func (n *inside) ensure(ctx context.Context, piece piece) error {
	kind, err := apiutil.GVKForObject(piece.object, n.scheme)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s %s", kind.Kind, client.ObjectKeyFromObject(piece.object))
	fresh, err := n.scheme.New(kind)
	if err != nil {
		return fmt.Errorf("tenant %s: %w", name, err)
	}
	actual, ok := fresh.(client.Object)
	if !ok {
		return fmt.Errorf("tenant %s: type %T is not an object", name, fresh)
	}
	err = n.api.Get(ctx, client.ObjectKeyFromObject(piece.object), actual)
	switch {
	case apierrors.IsNotFound(err):
		return n.create(ctx, piece.object, name)
	case err != nil:
		return fmt.Errorf("read tenant %s: %w", name, err)
	}
	piece.object.SetUID(actual.GetUID())
	same, err := covers(actual, piece.object)
	if err != nil || same || piece.once {
		return err
	}
	return n.correct(ctx, actual, piece.object, name)
}

func (n *inside) create(ctx context.Context, object client.Object, name string) error {
	if err := n.api.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create tenant %s: %w", name, err)
	}
	if n.set {
		return nil
	}
	return n.cfg.Clock.Sleep(ctx, latency.KamajiTenantSide, insideEach)
}

// correct merges what is wanted into what is there.
func (n *inside) correct(ctx context.Context, actual, wanted client.Object, name string) error {
	kind, err := apiutil.GVKForObject(wanted, n.scheme)
	if err != nil {
		return err
	}
	has, err := runtime.DefaultUnstructuredConverter.ToUnstructured(actual)
	if err != nil {
		return fmt.Errorf("merge tenant %s: %w", name, err)
	}
	wants, err := runtime.DefaultUnstructuredConverter.ToUnstructured(wanted)
	if err != nil {
		return fmt.Errorf("merge tenant %s: %w", name, err)
	}
	delete(wants, "status")
	merged := asUnstructured(merge(has, wants))
	merged.SetGroupVersionKind(kind)
	err = n.api.Update(ctx, merged)
	if apierrors.IsInvalid(err) { // a field that cannot change, such as roleRef
		err = n.api.Delete(ctx, actual)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("correct tenant %s: %w", name, err)
	}
	return nil
}

func merge(has, wants map[string]any) map[string]any {
	for key, value := range wants {
		want, isMap := value.(map[string]any)
		have, hasMap := has[key].(map[string]any)
		switch {
		case value == nil:
		case isMap && hasMap:
			has[key] = merge(have, want)
		default:
			has[key] = value
		}
	}
	return has
}

func (n *inside) drop(ctx context.Context, object client.Object) error {
	err := n.api.Get(ctx, client.ObjectKeyFromObject(object), object)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		err = n.api.Delete(ctx, object)
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete tenant %s: %w", object.GetName(), err)
	}
	return nil
}
