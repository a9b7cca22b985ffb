package kamaji

import (
	"context"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

const (
	writeHooksName = "kamaji-write-permissions"
	writeHooksURL  = "https://kamaji-webhook-service.kamaji-system.svc:443/write-permission"
	nsNodeLease    = "kube-node-lease"
)

// writeHooks block writes in the tenant by a webhook that fails closed.
func writeHooks(blocked v1alpha1.Permissions) *admissionv1.ValidatingWebhookConfiguration {
	operations := map[admissionv1.OperationType]bool{
		admissionv1.Create: blocked.BlockCreation, admissionv1.Update: blocked.BlockUpdate, admissionv1.Delete: blocked.BlockDeletion,
	}
	pick := func(of ...admissionv1.OperationType) []admissionv1.OperationType {
		var picked []admissionv1.OperationType
		for _, operation := range of {
			if operations[operation] {
				picked = append(picked, operation)
			}
		}
		return picked
	}
	return &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: writeHooksName},
		Webhooks: append(
			writeHook("leases", pick(admissionv1.Create, admissionv1.Delete), "coordination.k8s.io", "leases", metav1.LabelSelectorOpIn, nsNodeLease),
			writeHook("catchall", pick(admissionv1.Create, admissionv1.Update, admissionv1.Delete), "*", "*", metav1.LabelSelectorOpNotIn, nsSystem, nsNodeLease)...),
	}
}

func writeHook(name string, operations []admissionv1.OperationType, group, resource string, match metav1.LabelSelectorOperator, namespaces ...string) []admissionv1.ValidatingWebhook {
	if len(operations) == 0 {
		return nil
	}
	return []admissionv1.ValidatingWebhook{{
		Name:         name + ".write-permissions.kamaji.clastix.io",
		ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To(writeHooksURL)},
		Rules: []admissionv1.RuleWithOperations{{
			Operations: operations,
			Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}, Scope: ptr.To(admissionv1.AllScopes)},
		}},
		FailurePolicy:           ptr.To(admissionv1.Fail),
		NamespaceSelector:       &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "kubernetes.io/metadata.name", Operator: match, Values: namespaces}}},
		SideEffects:             ptr.To(admissionv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"},
	}}
}

// healWriteHooks makes or removes the blocking webhook.
func (n *inside) healWriteHooks(ctx context.Context, blocked v1alpha1.Permissions) error {
	wanted := writeHooks(blocked)
	if blocked.Any() {
		n.open = false
		return n.ensure(ctx, piece{object: wanted})
	}
	if n.open {
		return nil
	}
	err := n.api.Delete(ctx, wanted)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete tenant webhook %s: %w", writeHooksName, err)
	}
	n.open = true
	return nil
}
