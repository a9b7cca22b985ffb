package kamaji

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

// healAddons makes the addons that are wanted, and deletes CoreDNS and
// kube-proxy when they are not. The tunnel's agent is never deleted.
func (n *inside) healAddons(ctx context.Context, view *pass) error {
	addons := view.spec().Addons
	if err := n.healAddon(ctx, view, addons.CoreDNS != nil, view.coreDNSPieces(), func(s *v1alpha1.AddonsStatus) *v1alpha1.AddonStatus { return &s.CoreDNS }); err != nil {
		return fmt.Errorf("addon coreDNS: %w", err)
	}
	if err := n.healAddon(ctx, view, addons.KubeProxy != nil, view.kubeProxyPieces(), func(s *v1alpha1.AddonsStatus) *v1alpha1.AddonStatus { return &s.KubeProxy }); err != nil {
		return fmt.Errorf("addon kubeProxy: %w", err)
	}
	if addons.Konnectivity == nil {
		return nil
	}
	for _, object := range view.agentPieces() {
		if err := n.ensure(ctx, piece{object: object}); err != nil {
			return fmt.Errorf("addon konnectivity: %w", err)
		}
	}
	_, err := n.updateStatus(ctx, view.tcp, func(s *status) {
		k := &s.Addons.Konnectivity
		k.ServiceAccount = v1alpha1.ObjectReference{Name: agentName, Namespace: nsSystem}
		k.ClusterRoleBinding = v1alpha1.ObjectReference{Name: tunnelUser}
		mode := addons.Konnectivity.KonnectivityAgentSpec.Mode
		if k.Agent.Name != agentName || k.Agent.Mode != mode {
			k.Agent = v1alpha1.KonnectivityAgentStatus{Name: agentName, Namespace: nsSystem, Mode: mode, LastUpdate: now()}
		}
	})
	return err
}

// healAddon takes the addon's objects, the owner of all others first.
func (n *inside) healAddon(ctx context.Context, view *pass, wanted bool, objects []client.Object, entry func(*v1alpha1.AddonsStatus) *v1alpha1.AddonStatus) error {
	if !wanted {
		if !entry(&view.tcp.Status.Addons).Enabled {
			return nil
		}
		for _, object := range objects {
			if err := n.drop(ctx, object); err != nil {
				return err
			}
		}
	} else if err := n.ensureOwned(ctx, objects); err != nil {
		return err
	}
	_, err := n.updateStatus(ctx, view.tcp, func(s *status) {
		if e := entry(&s.Addons); e.Enabled != wanted {
			*e = v1alpha1.AddonStatus{Enabled: wanted, LastUpdate: now()}
		}
	})
	return err
}

func (n *inside) ensureOwned(ctx context.Context, objects []client.Object) error {
	owner := objects[0]
	for i, object := range objects {
		labels := object.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[labelProject] = projectName
		object.SetLabels(labels)
		if i > 0 {
			object.SetOwnerReferences([]metav1.OwnerReference{{
				APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding", Name: owner.GetName(), UID: owner.GetUID(),
			}})
		}
		if err := n.ensure(ctx, piece{object: object}); err != nil {
			return err
		}
	}
	return nil
}
