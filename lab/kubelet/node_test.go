package kubelet_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.internal/aether/lab/kubelet"
	"aether.internal/aether/lab/programs/cilium"
)

func (n *testNode) awaitNode(what string, wanted func(*corev1.Node) bool) *corev1.Node {
	n.t.Helper()
	var last *corev1.Node
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		node, err := n.client.CoreV1().Nodes().Get(n.t.Context(), nodeName, metav1.GetOptions{})
		if err == nil && wanted(node) {
			return node
		}
		last = node
	}
	n.t.Fatalf("node is not %s: %+v", what, last)
	return nil
}

func nodeReady(node *corev1.Node) corev1.NodeCondition {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition
		}
	}
	return corev1.NodeCondition{}
}

func TestNodeBecomesReadyWithTheNetwork(t *testing.T) {
	n := newNode(t)
	node := n.awaitNode("registered", func(node *corev1.Node) bool { return nodeReady(node).Type != "" })
	if got := nodeReady(node); got.Status != corev1.ConditionFalse || got.Reason != "KubeletNotReady" {
		t.Errorf("node without a network is %s (%s)", got.Status, got.Reason)
	}
	if node.Spec.ProviderID != "aether://demo/1" || node.Status.NodeInfo.KubeletVersion != "v1.35.4" || node.Labels[corev1.LabelHostname] != nodeName {
		t.Errorf("node has provider ID %q, version %q, labels %v", node.Spec.ProviderID, node.Status.NodeInfo.KubeletVersion, node.Labels)
	}
	if got := node.Status.DaemonEndpoints.KubeletEndpoint.Port; got != kubelet.DefaultPort {
		t.Errorf("kubelet's port is %d", got)
	}
	n.cniReady()
	n.awaitNode("ready", func(node *corev1.Node) bool { return nodeReady(node).Status == corev1.ConditionTrue })
	lease, err := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), nodeName, metav1.GetOptions{})
	must(t, err)
	if *lease.Spec.HolderIdentity != nodeName || lease.Spec.RenewTime == nil || len(lease.OwnerReferences) != 1 {
		t.Errorf("lease is %+v", lease)
	}
}

func TestNodeThatExistsKeepsItsIdentity(t *testing.T) {
	n := newNode(t, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{"mine": "yes"}},
		Spec:       corev1.NodeSpec{ProviderID: "aether://demo/other", Taints: []corev1.Taint{{Key: "t", Effect: corev1.TaintEffectNoSchedule}}},
	})
	node := n.awaitNode("adopted", func(node *corev1.Node) bool { return node.Labels[corev1.LabelHostname] == nodeName })
	if node.Spec.ProviderID != "aether://demo/other" || len(node.Spec.Taints) != 1 || node.Labels["mine"] != "yes" {
		t.Errorf("node was changed: %+v %v", node.Spec, node.Labels)
	}
}

func TestSpeedReachesThePrograms(t *testing.T) {
	if kubelet.SpeedVariable != cilium.SpeedVariable {
		t.Errorf("kubelet sets %s, programs read %s", kubelet.SpeedVariable, cilium.SpeedVariable)
	}
}
