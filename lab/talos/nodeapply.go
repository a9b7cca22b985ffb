package talos

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// The annotations in which Talos remembers what it has set.
const (
	ownedLabels = "talos.dev/owned-labels"
	ownedTaints = "talos.dev/owned-taints"
)

// applyPeriod is how often the node is looked at when nothing changed;
// applyRetry is the shortest time between two attempts after a failure.
const (
	applyPeriod  = time.Minute
	applyRetry   = time.Second
	applyLongest = 30 * time.Second
)

// applyNode sets labels and taints of the configuration on the Node, with the
// node's own credential: what NodeRestriction forbids is tried for ever.
func (k *kubeletService) applyNode(ctx context.Context, client kubernetes.Interface) error {
	machine := k.node.provider.Machine()
	if len(machine.NodeLabels()) == 0 && len(machine.NodeTaints()) == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	wait := applyRetry
	for {
		err := k.applyOnce(ctx, client)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			wait = applyPeriod
		case apierrors.IsNotFound(err):
			wait = applyRetry / 4 // the kubelet has not registered yet
		default:
			k.node.console.talos("controller failed: k8s.NodeApplyController: %v", err)
			wait = min(max(2*wait, applyRetry), applyLongest)
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

func (k *kubeletService) applyOnce(ctx context.Context, client kubernetes.Interface) error {
	node, err := client.CoreV1().Nodes().Get(ctx, k.node.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("error getting node: %w", err)
	}
	changed, err := k.applyTo(node)
	if err != nil || !changed {
		return err
	}
	if _, err := client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("error updating node: %w", err)
	}
	return nil
}

// applyTo writes labels and taints into the object and remembers them there.
func (k *kubeletService) applyTo(node *corev1.Node) (changed bool, err error) {
	machine := k.node.provider.Machine()
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	for key, value := range machine.NodeLabels() {
		if old, ok := node.Labels[key]; !ok || old != value {
			node.Labels[key] = value
			changed = true
		}
	}
	for key, value := range machine.NodeTaints() {
		text, effect, found := strings.Cut(value, ":")
		if !found {
			text, effect = "", value
		}
		taint := corev1.Taint{Key: key, Value: text, Effect: corev1.TaintEffect(effect)}
		if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) && t.Value == taint.Value }) {
			node.Spec.Taints = append(node.Spec.Taints, taint)
			changed = true
		}
	}
	for annotation, keys := range map[string][]string{
		ownedLabels: slices.Sorted(maps.Keys(machine.NodeLabels())), ownedTaints: slices.Sorted(maps.Keys(machine.NodeTaints())),
	} {
		if len(keys) == 0 {
			continue
		}
		raw, err := json.Marshal(keys)
		if err != nil {
			return false, fmt.Errorf("error marshaling %s: %w", annotation, err)
		}
		if node.Annotations[annotation] != string(raw) {
			node.Annotations[annotation] = string(raw)
			changed = true
		}
	}
	return changed, nil
}
