package talos

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// kubeletConfiguration is the part of machine.kubelet.extraConfig that the
// simulated kubelet acts on.
type kubeletConfiguration struct {
	ProviderID         string         `json:"providerID"`
	RegisterWithTaints []corev1.Taint `json:"registerWithTaints"`
	MaxPods            int            `json:"maxPods"`
}

// template is the Node as it is registered.
func (n *node) template() (corev1.Node, int, error) {
	raw, err := json.Marshal(n.provider.Machine().Kubelet().ExtraConfig())
	if err != nil {
		return corev1.Node{}, 0, fmt.Errorf("encode extra kubelet configuration: %w", err)
	}
	var extra kubeletConfiguration
	if err := json.Unmarshal(raw, &extra); err != nil {
		return corev1.Node{}, 0, fmt.Errorf("error unmarshalling extra kubelet configuration: %w", err)
	}
	hardware := n.machine.Hardware
	node := corev1.Node{}
	node.Name = n.name
	node.Spec.ProviderID, node.Spec.Taints = extra.ProviderID, extra.RegisterWithTaints
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: n.ip.String()}, {Type: corev1.NodeHostName, Address: n.name},
	}
	node.Status.NodeInfo = corev1.NodeSystemInfo{
		MachineID: hardware.UUID, SystemUUID: hardware.UUID, BootID: hardware.UUID,
		KernelVersion: "6.18.18-talos", OSImage: "Talos (" + n.disk.content.Image.Version + ")",
		ContainerRuntimeVersion: "containerd://2.1.6",
	}
	node.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(hardware.Cores), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(int64(hardware.MemoryMiB)<<20, resource.BinarySI),
	}
	if size := hardware.Disks[0].SizeBytes; size > 0 {
		node.Status.Capacity[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(size, resource.BinarySI)
	}
	return node, extra.MaxPods, nil
}
