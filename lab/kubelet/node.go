package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The periods of a real kubelet; the controllers that judge a node by them run
// in real time, so they do not follow the lab's clock.
const (
	leaseDuration   = 40 * time.Second
	leaseRenewal    = 10 * time.Second
	statusPeriod    = 10 * time.Second
	statusReport    = 5 * time.Minute
	registerBackoff = 200 * time.Millisecond
	registerLongest = 7 * time.Second
)

// register creates the Node, or takes the one there is: a kubelet never
// changes the provider ID or the taints of a Node that it did not make.
func (k *Kubelet) register(ctx context.Context) error {
	nodes := k.cfg.Client.CoreV1().Nodes()
	for wait := registerBackoff; ; wait = min(2*wait, registerLongest) {
		node, err := nodes.Create(ctx, k.initialNode(), metav1.CreateOptions{})
		if err == nil {
			k.log.Info("registered node")
			k.node.Store(node)
			return nil
		}
		if apierrors.IsAlreadyExists(err) {
			node, err = k.adopt(ctx)
			if err == nil {
				k.log.Info("node was registered before")
				k.node.Store(node)
				return nil
			}
		}
		k.log.Warn("unable to register node with API server", "error", err)
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// adopt corrects the labels that a kubelet owns on a Node that exists.
func (k *Kubelet) adopt(ctx context.Context) (*corev1.Node, error) {
	nodes := k.cfg.Client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", k.cfg.NodeName, err)
	}
	labels := map[string]string{}
	for key, value := range k.ownLabels() {
		if node.Labels[key] != value {
			labels[key] = value
		}
	}
	if len(labels) == 0 {
		return node, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return nil, fmt.Errorf("labels of node %s: %w", k.cfg.NodeName, err)
	}
	node, err = nodes.Patch(ctx, k.cfg.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("patch labels of node %s: %w", k.cfg.NodeName, err)
	}
	return node, nil
}

func (k *Kubelet) ownLabels() map[string]string {
	return map[string]string{
		corev1.LabelHostname: k.cfg.NodeName, corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH,
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": runtime.GOARCH,
	}
}

func (k *Kubelet) initialNode() *corev1.Node {
	node := k.cfg.NodeTemplate.DeepCopy()
	node.Name, node.ResourceVersion, node.UID = k.cfg.NodeName, "", ""
	labels := k.ownLabels()
	maps.Copy(labels, node.Labels)
	node.Labels = labels
	k.setStatus(node)
	return node
}

// setStatus writes what the kubelet knows into the Node's status.
func (k *Kubelet) setStatus(node *corev1.Node) {
	template := k.cfg.NodeTemplate.Status
	status := &node.Status
	status.Addresses = template.Addresses
	if len(status.Addresses) == 0 {
		status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: k.cfg.NodeName}}
	}
	status.Capacity = k.capacity()
	status.Allocatable = status.Capacity.DeepCopy()
	status.NodeInfo = template.NodeInfo
	status.NodeInfo.KubeletVersion = k.cfg.Version
	status.NodeInfo.OperatingSystem, status.NodeInfo.Architecture = "linux", runtime.GOARCH
	if status.NodeInfo.ContainerRuntimeVersion == "" {
		status.NodeInfo.ContainerRuntimeVersion = "containerd://2.1.6"
	}
	status.DaemonEndpoints.KubeletEndpoint.Port = int32(k.cfg.Port)
	status.Images = k.images.list()
	now := metav1.Now()
	for _, pressure := range pressures() {
		setNodeCondition(status, pressure, now)
	}
	setNodeCondition(status, k.readyCondition(), now)
}

func pressures() []corev1.NodeCondition {
	none := func(kind corev1.NodeConditionType, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason, Message: message}
	}
	return []corev1.NodeCondition{
		none(corev1.NodeMemoryPressure, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
		none(corev1.NodeDiskPressure, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
		none(corev1.NodePIDPressure, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
	}
}

func (k *Kubelet) readyCondition() corev1.NodeCondition {
	if ready, _ := k.cni.get(); ready {
		return corev1.NodeCondition{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
			Message: "kubelet is posting ready status",
		}
	}
	return corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady",
		Message: "container runtime network not ready: " + networkNotReady,
	}
}

const networkNotReady = "NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized"

func (k *Kubelet) capacity() corev1.ResourceList {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory:           resource.MustParse("4Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("20Gi"),
		corev1.ResourcePods:             *resource.NewQuantity(int64(k.cfg.MaxPods), resource.DecimalSI),
	}
	maps.Copy(capacity, k.cfg.NodeTemplate.Status.Capacity)
	return capacity
}

// setNodeCondition writes a condition and keeps the time of its last change.
func setNodeCondition(status *corev1.NodeStatus, condition corev1.NodeCondition, now metav1.Time) {
	condition.LastHeartbeatTime, condition.LastTransitionTime = now, now
	for i := range status.Conditions {
		if status.Conditions[i].Type != condition.Type {
			continue
		}
		if status.Conditions[i].Status == condition.Status {
			condition.LastTransitionTime = status.Conditions[i].LastTransitionTime
		}
		status.Conditions[i] = condition
		return
	}
	status.Conditions = append(status.Conditions, condition)
}

// reportStatus patches the Node's status when it changed, and at least every
// five minutes.
func (k *Kubelet) reportStatus(ctx context.Context) error {
	reported := time.Now()
	for {
		_, changed := k.cni.get()
		if err := k.patchNode(ctx, time.Since(reported) >= statusReport, &reported); err != nil && ctx.Err() == nil {
			k.log.Warn("cannot update node status", "error", err)
		}
		timer := time.NewTimer(statusPeriod)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (k *Kubelet) patchNode(ctx context.Context, force bool, reported *time.Time) error {
	nodes := k.cfg.Client.CoreV1().Nodes()
	old, err := nodes.Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // a kubelet registers once; a deleted Node stays deleted until a restart
	}
	if err != nil {
		return fmt.Errorf("get node %s: %w", k.cfg.NodeName, err)
	}
	wanted := old.DeepCopy()
	k.setStatus(wanted)
	if !force && sameNodeStatus(&old.Status, &wanted.Status) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": wanted.Status})
	if err != nil {
		return fmt.Errorf("status of node %s: %w", k.cfg.NodeName, err)
	}
	if _, err := nodes.Patch(ctx, k.cfg.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("patch status of node %s: %w", k.cfg.NodeName, err)
	}
	*reported = time.Now()
	return nil
}

// sameNodeStatus compares without heartbeat times.
func sameNodeStatus(a, b *corev1.NodeStatus) bool {
	a, b = a.DeepCopy(), b.DeepCopy()
	for _, status := range []*corev1.NodeStatus{a, b} {
		for i := range status.Conditions {
			status.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
	}
	return equality.Semantic.DeepEqual(a, b)
}

// heartbeat renews the node's Lease.
func (k *Kubelet) heartbeat(ctx context.Context) error {
	for {
		wait := leaseRenewal
		if err := k.renewLease(ctx); err != nil && ctx.Err() == nil {
			k.log.Warn("cannot renew lease", "error", err)
			wait = time.Second
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

func (k *Kubelet) renewLease(ctx context.Context) error {
	leases := k.cfg.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now := metav1.NewMicroTime(time.Now())
	seconds := int32(leaseDuration / time.Second)
	lease, err := leases.Get(ctx, k.cfg.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		lease = &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: k.cfg.NodeName, Namespace: corev1.NamespaceNodeLease, OwnerReferences: k.ownerOfLease()},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &k.cfg.NodeName, LeaseDurationSeconds: &seconds, RenewTime: &now},
		}
		if _, err = leases.Create(ctx, lease, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create lease of node %s: %w", k.cfg.NodeName, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("get lease of node %s: %w", k.cfg.NodeName, err)
	}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &k.cfg.NodeName, &seconds, &now
	lease.OwnerReferences = k.ownerOfLease()
	if _, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("renew lease of node %s: %w", k.cfg.NodeName, err)
	}
	return nil
}

func (k *Kubelet) ownerOfLease() []metav1.OwnerReference {
	node := k.node.Load()
	if node == nil {
		return nil
	}
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
}

// hostIP returns the node's internal address.
func (k *Kubelet) hostIP() string {
	for _, address := range k.cfg.NodeTemplate.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			return address.Address
		}
	}
	return ""
}

// podCIDR returns the node's range for pods, invalid until it is assigned.
func (k *Kubelet) podCIDR() netip.Prefix {
	if subnet := cniSubnet(k.cfg.Dir); subnet.IsValid() {
		return subnet
	}
	node := k.node.Load()
	if node == nil {
		return netip.Prefix{}
	}
	prefix, err := netip.ParsePrefix(node.Spec.PodCIDR)
	if err != nil {
		return netip.Prefix{} // not assigned yet
	}
	return prefix
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
