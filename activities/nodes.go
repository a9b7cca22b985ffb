package activities

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/site"
)

// Nodes looks at workers from inside their tenant.
type Nodes struct {
	Platform
	Tenants *TenantClients
}

// WaitNodeReady waits until the machine's Node has registered under the right
// name with the right provider ID and is Ready. It is repeatable. A Node of the
// same provider ID under another name is final, and the name is told.
func (a *Nodes) WaitNodeReady(ctx context.Context, in MachineRef) (*NodeResult, error) {
	m, err := a.machine(ctx, in.MachineID)
	if err != nil {
		return nil, classify(err)
	}
	access, err := a.Tenants.Open(ctx, m.Spec.Tenant)
	if err != nil {
		return nil, classify(err)
	}
	err = until(ctx, access.Kube, &corev1.NodeList{}, nil, func(ctx context.Context) (string, error) {
		return nodeReady(ctx, access.Kube, m)
	})
	if err != nil {
		return nil, classify(err)
	}
	return &NodeResult{NodeName: m.Spec.VMName}, nil
}

func nodeReady(ctx context.Context, tenant client.Client, m *machine) (waitsFor string, err error) {
	providerID := domain.ProviderID(m.Spec.Tenant, domain.MachineID(m.Name))
	nodes := &corev1.NodeList{}
	if err := tenant.List(ctx, nodes); err != nil {
		return "", fmt.Errorf("list Nodes of tenant %s: %w", m.Spec.Tenant, err)
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if node.Spec.ProviderID == providerID && node.Name != m.Spec.VMName {
			return "", refused("machine %s registered as Node %s, expected %s: its host name was not taken from the configuration", m.Name, node.Name, m.Spec.VMName)
		}
		if node.Name != m.Spec.VMName {
			continue
		}
		if node.Spec.ProviderID != providerID {
			return "", refused("Node %s has provider ID %q, expected %s; delete the Node, it belongs to another machine", node.Name, node.Spec.ProviderID, providerID)
		}
		return readiness(node), nil
	}
	return "Node " + m.Spec.VMName + " to register", nil
}

func readiness(node *corev1.Node) string {
	for _, condition := range node.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		if condition.Status == corev1.ConditionTrue {
			return ""
		}
		return fmt.Sprintf("Node %s to be Ready: %s", node.Name, condition.Message)
	}
	return "Node " + node.Name + " to report its condition"
}

// DeleteBootstrapToken deletes the machine's bootstrap token in its tenant. It
// is repeatable. A tenant that is gone, or was never built, has none.
func (a *Nodes) DeleteBootstrapToken(ctx context.Context, in MachineRef) error {
	m, err := a.machine(ctx, in.MachineID)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return classify(err)
	}
	access, err := a.Tenants.Open(ctx, m.Spec.Tenant)
	if errors.Is(err, errNoAccess) {
		return nil
	}
	if err != nil {
		return classify(err)
	}
	return classify(deleteTokens(ctx, access.Kube, m.Name))
}

// ProveNode proves that the machine's Node can be used: no start-up taint, the
// leased address as InternalIP, and a pod in the pod network that runs and
// answers logs and exec, which takes the proxy, konnectivity, the kubelet's
// serving certificate and Cilium. The pod is deleted again. It is repeatable.
func (a *Nodes) ProveNode(ctx context.Context, in MachineRef) error {
	return classify(a.proveNode(ctx, in.MachineID))
}

func (a *Nodes) proveNode(ctx context.Context, id string) error {
	m, err := a.machine(ctx, id)
	if err != nil {
		return err
	}
	access, err := a.Tenants.Open(ctx, m.Spec.Tenant)
	if err != nil {
		return err
	}
	err = until(ctx, access.Kube, &corev1.NodeList{}, nil, func(ctx context.Context) (string, error) {
		node := &corev1.Node{}
		if err := access.Kube.Get(ctx, client.ObjectKey{Name: m.Spec.VMName}, node); err != nil {
			return "", fmt.Errorf("read Node %s: %w", m.Spec.VMName, err)
		}
		return a.usable(node, m)
	})
	if err != nil {
		return err
	}
	pod := probePod(a.Site, m)
	err = access.Kube.Create(ctx, pod)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the probe pod: %w", err)
	}
	if err := proveBy(ctx, access, pod); err != nil {
		return err
	}
	err = access.Kube.Delete(ctx, pod, client.GracePeriodSeconds(0))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete the probe pod: %w", err)
	}
	return nil
}

// usable says what keeps pods off a Ready node. A wrong InternalIP is final: it
// does not change by itself.
func (a *Nodes) usable(node *corev1.Node, m *machine) (waitsFor string, err error) {
	wanted, _ := m.address(a.Site, site.TenantNetwork)
	told := false
	for _, address := range node.Status.Addresses {
		if address.Type != corev1.NodeInternalIP {
			continue
		}
		if address.Address != wanted.Addr().String() {
			return "", refused("Node %s has InternalIP %s, expected the leased %s: the kubelet chose another card", node.Name, address.Address, wanted.Addr())
		}
		told = true
	}
	if !told {
		return fmt.Sprintf("Node %s to tell its InternalIP %s", node.Name, wanted.Addr()), nil
	}
	for _, taint := range node.Spec.Taints {
		if taint.Key == domain.StartupTaint().Key || strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
			return fmt.Sprintf("taint %s to be taken off Node %s", taint.Key, node.Name), nil
		}
	}
	return readiness(node), nil
}

const probeContainer = "probe"

// probePod is bound to the node at once: it proves the node, not the scheduler.
func probePod(s *site.Site, m *machine) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "aether-probe-" + domain.MachineID(m.Name).Short(), Namespace: metav1.NamespaceSystem,
			Labels: map[string]string{machineLabel: m.Name},
		},
		Spec: corev1.PodSpec{
			NodeName:                      m.Spec.VMName,
			RestartPolicy:                 corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  new(false),
			TerminationGracePeriodSeconds: new(int64(0)),
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:                    []corev1.Container{{Name: probeContainer, Image: s.Spec.Images.Probe, Args: []string{"netexec"}}},
		},
	}
}

// proveBy waits for the pod to run, then asks it for its log and runs a command
// in it. What is in between (konnectivity, the kubelet's certificate) can only
// be tried, not watched.
func proveBy(ctx context.Context, access *TenantAccess, pod *corev1.Pod) error {
	options := []client.ListOption{client.InNamespace(pod.Namespace), client.MatchingLabels(pod.Labels)}
	for {
		err := until(ctx, access.Kube, &corev1.PodList{}, options, func(ctx context.Context) (string, error) {
			return podRuns(ctx, access.Kube, pod)
		})
		if err != nil {
			return err
		}
		err = askPod(ctx, access.Config, pod)
		if err == nil {
			return nil
		}
		waitsFor := "logs and exec on " + pod.Spec.NodeName + " through konnectivity and the kubelet's certificate"
		tell(ctx, waitsFor, err.Error())
		if stop := pause(ctx, checkPause); stop != nil {
			return fmt.Errorf("wait for %s: %w (%w)", waitsFor, stop, err)
		}
	}
}

// podRuns looks at the probe pod. One that ended is deleted.
func podRuns(ctx context.Context, tenant client.Client, pod *corev1.Pod) (waitsFor string, err error) {
	seen := &corev1.Pod{}
	if err := tenant.Get(ctx, client.ObjectKeyFromObject(pod), seen); err != nil {
		return "", fmt.Errorf("read the probe pod: %w", err)
	}
	switch seen.Status.Phase {
	case corev1.PodRunning:
		return "", nil
	case corev1.PodFailed, corev1.PodSucceeded:
		// It will not run again: the next attempt makes another.
		if err := tenant.Delete(ctx, seen, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			return "", fmt.Errorf("delete the probe pod that ended: %w", err)
		}
		return "", waiting("the probe pod on %s ended (%s %s)", pod.Spec.NodeName, seen.Status.Phase, seen.Status.Message)
	default:
		return "the probe pod on " + pod.Spec.NodeName + " to run" + why(seen), nil
	}
}

func why(pod *corev1.Pod) string {
	for _, status := range pod.Status.ContainerStatuses {
		if w := status.State.Waiting; w != nil && w.Reason != "" {
			return ": " + w.Reason + " " + w.Message
		}
	}
	return ""
}

// askPod reads the pod's log and runs hostname in it.
func askPod(ctx context.Context, config *rest.Config, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, tenantCallTimeout)
	defer cancel()
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	log, err := clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: probeContainer, LimitBytes: new(int64(1 << 10))}).Stream(ctx)
	if err != nil {
		return fmt.Errorf("logs: %w", err)
	}
	_, err = io.Copy(io.Discard, log)
	if err := errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("logs: %w", err)
	}
	request := clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: probeContainer, Command: []string{"hostname"}, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewSPDYExecutor(config, "POST", request.URL())
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	var out, problem bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &problem}); err != nil {
		return fmt.Errorf("exec: %w %s", err, strings.TrimSpace(problem.String()))
	}
	if strings.TrimSpace(out.String()) == "" {
		return errors.New("exec: the command printed nothing")
	}
	return nil
}
