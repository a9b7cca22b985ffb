package activities

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/internal/domain"
)

const nodeName = "demo-workers-6f1e0c52"

// node is the worker's Node as it is once everything is well.
func node() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Spec:       corev1.NodeSpec{ProviderID: "aether://demo/" + workerID},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: nodeName}, {Type: corev1.NodeInternalIP, Address: "10.1.1.50"}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// TestWhatANodeIsWaitedFor: either it is well, or it is said what is missing,
// or why it will never be.
func TestWhatANodeIsWaitedFor(t *testing.T) {
	w := leased(t)
	m, nodes := w.platformMachine(workerID), &Nodes{Platform: w.platform}
	ready := func(status corev1.ConditionStatus, message string) []corev1.NodeCondition {
		return []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, Message: message}}
	}
	for _, test := range []struct {
		name    string
		change  func(*corev1.Node)
		waits   string
		refused string
	}{
		{"all is well", func(*corev1.Node) {}, "", ""},
		{"another node", func(n *corev1.Node) { n.Name, n.Spec.ProviderID = "other", "aether://demo/"+worker2ID }, "Node " + nodeName + " to register", ""},
		{"not ready", func(n *corev1.Node) {
			n.Status.Conditions = ready(corev1.ConditionFalse, "cni plugin not initialized")
		}, "to be Ready: cni plugin not initialized", ""},
		{"silent", func(n *corev1.Node) { n.Status.Conditions = ready(corev1.ConditionUnknown, "Kubelet stopped posting") }, "Kubelet stopped posting", ""},
		{"no word yet", func(n *corev1.Node) { n.Status.Conditions = nil }, "to report its condition", ""},
		{"under another name", func(n *corev1.Node) { n.Name = "talos-6jk-4yw" }, "", "registered as Node talos-6jk-4yw, expected " + nodeName},
		{"name of an old machine", func(n *corev1.Node) { n.Spec.ProviderID = "aether://demo/" + worker2ID }, "", "delete the Node"},
		{"without provider ID", func(n *corev1.Node) { n.Spec.ProviderID = "" }, "", `provider ID ""`},
		{"storage address", func(n *corev1.Node) { n.Status.Addresses[1].Address = "10.1.2.50" }, "", "InternalIP 10.1.2.50, expected the leased 10.1.1.50"},
		{"without address", func(n *corev1.Node) { n.Status.Addresses = nil }, "to tell its InternalIP 10.1.1.50", ""},
		{"start-up taint", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{domain.StartupTaint()} }, "taint node.cilium.io/agent-not-ready to be taken off", ""},
		{"network taint", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/network-unavailable"}}
		}, "network-unavailable", ""},
		{"taint of the pool", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "example.com/dedicated"}} }, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := node()
			test.change(n)
			waits, err := nodeReady(t.Context(), newKube(t, n), m)
			if err == nil && waits == "" {
				waits, err = nodes.usable(n, m)
			}
			if test.refused != "" {
				if err := errorIs(classify(err), RefusedType, true, test.refused); err != nil {
					t.Error(err)
				}
				return
			}
			if err != nil || (test.waits == "") != (waits == "") || !strings.Contains(waits, test.waits) {
				t.Errorf("waits for %q, %v", waits, err)
			}
		})
	}
}

func TestTheProbePodProvesTheNodeAndNotTheScheduler(t *testing.T) {
	w := leased(t)
	pod := probePod(w.site, w.platformMachine(workerID))
	if pod.Spec.NodeName != nodeName || pod.Name != "aether-probe-6f1e0c52" || *pod.Spec.AutomountServiceAccountToken || pod.Spec.Containers[0].Image != w.site.Spec.Images.Probe {
		t.Errorf("pod %+v", pod.Spec)
	}
	if len(pod.Spec.Tolerations) != 1 || pod.Spec.Tolerations[0].Operator != corev1.TolerationOpExists {
		t.Errorf("a pool's own taint would keep it off: %+v", pod.Spec.Tolerations)
	}
}

// TestProveByTellsWhereItHangs and makes way for another pod when one ended.
func TestProveByTellsWhereItHangs(t *testing.T) {
	w := leased(t)
	pod := probePod(w.site, w.platformMachine(workerID))
	for name, test := range map[string]struct {
		status corev1.PodStatus
		want   string
	}{
		"pulling": {corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}},
		}}}, "to run: ImagePullBackOff not found"},
		"no konnectivity": {corev1.PodStatus{Phase: corev1.PodRunning}, "logs and exec on " + nodeName},
	} {
		t.Run(name, func(t *testing.T) {
			seen := pod.DeepCopy()
			seen.Status = test.status
			access := &TenantAccess{Kube: newKube(t, seen), Config: &rest.Config{Host: "127.0.0.1:1"}}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := proveBy(ctx, access, pod); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v", err)
			}
		})
	}
	failed := pod.DeepCopy()
	failed.Status = corev1.PodStatus{Phase: corev1.PodFailed, Message: "evicted"}
	access := &TenantAccess{Kube: newKube(t, failed)}
	if err := errorIs(classify(proveBy(t.Context(), access, pod)), WaitingType, false, "evicted"); err != nil {
		t.Error(err)
	}
	if err := access.Kube.Get(t.Context(), client.ObjectKeyFromObject(pod), failed); !apierrors.IsNotFound(err) {
		t.Errorf("the pod that ended stands in the way of the next: %v", err)
	}
}
