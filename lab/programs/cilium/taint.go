package cilium

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// mark makes a node's taint and network condition say how its agent is.
func (o *operator) mark(ctx context.Context, node *corev1.Node, ready bool) error {
	if err := o.taint(ctx, node, ready); err != nil {
		return err
	}
	if !ready || networkAvailable(node) {
		return nil
	}
	now := metav1.NewTime(time.Now())
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "CiliumIsUp",
		Message: "Cilium is running on this node", LastHeartbeatTime: now, LastTransitionTime: now,
	}}}})
	if err != nil {
		return fmt.Errorf("condition of node %s: %w", node.Name, err)
	}
	_, err = o.api.core.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return wrap(err, "set condition of node "+node.Name)
}

func networkAvailable(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse
	})
}

// taint removes the agent-not-ready taint from a node with a ready agent and
// puts it on one whose agent is scheduled but not ready.
func (o *operator) taint(ctx context.Context, node *corev1.Node, ready bool) error {
	key := o.settings.get("agent-not-ready-taint-key", DefaultTaint)
	isOurs := func(t corev1.Taint) bool { return t.Key == key }
	tainted := slices.ContainsFunc(node.Spec.Taints, isOurs)
	taints := slices.Clone(node.Spec.Taints)
	switch {
	case ready && tainted && o.settings.get("remove-cilium-node-taints", "true") == "true":
		taints = slices.DeleteFunc(taints, isOurs)
	case !ready && !tainted && o.settings.get("set-cilium-node-taints", "true") == "true":
		taints = append(taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	default:
		return nil
	}
	// The test of the old value keeps another writer's taint from being lost.
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/resourceVersion", "value": node.ResourceVersion},
		{"op": "add", "path": "/spec/taints", "value": taints},
	})
	if err != nil {
		return fmt.Errorf("taints of node %s: %w", node.Name, err)
	}
	_, err = o.api.core.CoreV1().Nodes().Patch(ctx, node.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
	if err == nil {
		o.log.Info("changed taint", "node", node.Name, "key", key, "present", !ready)
	}
	return wrap(err, "change taints of node "+node.Name)
}
