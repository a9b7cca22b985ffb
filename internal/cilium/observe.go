package cilium

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Observed is how Cilium is in a tenant.
type Observed struct {
	MissingCRDs   []string // resources of cilium.io the operator has not made
	OperatorReady bool
	Nodes         []NodeObserved // by name
}

// NodeObserved is how Cilium is on a node.
type NodeObserved struct {
	Name       string
	AgentReady bool
	NodeReady  bool
	Tainted    bool   // the start-up taint is still there
	Reason     string // what the agent waits for, for people
}

// Usable tells whether pods can be run on the node.
func (n NodeObserved) Usable() bool { return n.AgentReady && n.NodeReady && !n.Tainted }

// Waits says what is not there yet on the node; empty: nothing.
func (n NodeObserved) Waits() string {
	switch {
	case !n.AgentReady:
		return "Cilium's agent on node " + n.Name + ": " + n.Reason
	case n.Tainted:
		return "Cilium's operator to remove the taint " + TaintKey + " from node " + n.Name
	case !n.NodeReady:
		return "node " + n.Name + " to become Ready"
	default:
		return ""
	}
}

// Node returns the node of that name.
func (o Observed) Node(name string) (NodeObserved, bool) {
	i := slices.IndexFunc(o.Nodes, func(n NodeObserved) bool { return n.Name == name })
	if i < 0 {
		return NodeObserved{}, false
	}
	return o.Nodes[i], true
}

// Waits says the first thing that is not there yet; empty: Cilium works on
// all nodes. Without nodes nothing can run, and nothing is waited for.
func (o Observed) Waits() string {
	if len(o.Nodes) == 0 {
		return ""
	}
	if len(o.MissingCRDs) > 0 {
		return "Cilium's operator to make " + strings.Join(o.MissingCRDs, ", ")
	}
	for _, node := range o.Nodes {
		if waits := node.Waits(); waits != "" {
			return waits
		}
	}
	if !o.OperatorReady {
		return "Cilium's operator to become ready"
	}
	return ""
}

// neededCRDs are those without which an agent does not start.
func neededCRDs() []string {
	return []string{"ciliumendpoints", "ciliumidentities", "ciliumnetworkpolicies", "ciliumnodes"}
}

// Observe looks at the tenant.
func Observe(ctx context.Context, client kubernetes.Interface) (Observed, error) {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return Observed{}, fmt.Errorf("list nodes: %w", err)
	}
	agents, err := client.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=cilium"})
	if err != nil {
		return Observed{}, fmt.Errorf("list Cilium's agents: %w", err)
	}
	operators, err := client.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{LabelSelector: "name=cilium-operator"})
	if err != nil {
		return Observed{}, fmt.Errorf("list Cilium's operators: %w", err)
	}
	o := Observed{MissingCRDs: neededCRDs(), OperatorReady: slices.ContainsFunc(operators.Items, podReady)}
	resources, err := client.Discovery().ServerResourcesForGroupVersion("cilium.io/v2")
	if err != nil && !apierrors.IsNotFound(err) {
		return Observed{}, fmt.Errorf("list resources of cilium.io: %w", err)
	}
	if err == nil {
		o.MissingCRDs = slices.DeleteFunc(o.MissingCRDs, func(name string) bool {
			return slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Name == name })
		})
	}
	for i := range nodes.Items {
		o.Nodes = append(o.Nodes, observeNode(&nodes.Items[i], agents.Items))
	}
	slices.SortFunc(o.Nodes, func(a, b NodeObserved) int { return strings.Compare(a.Name, b.Name) })
	return o, nil
}

func observeNode(node *corev1.Node, agents []corev1.Pod) NodeObserved {
	n := NodeObserved{Name: node.Name, Reason: "its pod is not made yet"}
	n.Tainted = slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == TaintKey })
	n.NodeReady = slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	for _, pod := range agents {
		if pod.Spec.NodeName != node.Name || pod.DeletionTimestamp != nil {
			continue
		}
		n.AgentReady = podReady(pod)
		n.Reason = podReason(&pod)
	}
	return n
}

func podReady(pod corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// podReason says what a pod that is not ready waits for.
func podReason(pod *corev1.Pod) string {
	for _, status := range pod.Status.InitContainerStatuses {
		if status.Ready || status.State.Terminated != nil && status.State.Terminated.ExitCode == 0 {
			continue
		}
		text := "init container " + status.Name + " " + stateReason(status)
		if status.Name == "config" && status.RestartCount > 0 {
			// It is the first that needs the API server.
			text += ": it does not reach the API server at k8sServiceHost; check proxy, route and the certificate's addresses"
		}
		return text
	}
	for _, status := range pod.Status.ContainerStatuses {
		if !status.Ready {
			return "container " + status.Name + " " + stateReason(status)
		}
	}
	return "its pod is " + string(pod.Status.Phase)
}

func stateReason(status corev1.ContainerStatus) string {
	switch {
	case status.State.Waiting != nil:
		return "waits (" + status.State.Waiting.Reason + ")"
	case status.State.Terminated != nil:
		return fmt.Sprintf("ended with status %d", status.State.Terminated.ExitCode)
	case status.State.Running != nil:
		return "runs and is not ready"
	default:
		return "has not started"
	}
}
