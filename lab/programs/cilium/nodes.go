package cilium

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// node is what the programs read from and write into a CiliumNode.
type node struct {
	Name string `json:"-"`
	Spec struct {
		Addresses []nodeAddress `json:"addresses,omitempty"`
		IPAM      struct {
			PodCIDRs []string `json:"podCIDRs,omitempty"`
		} `json:"ipam"`
	} `json:"spec"`
}

type nodeAddress struct {
	Type string `json:"type"`
	IP   string `json:"ip"`
}

// internalIP returns where the node is reached, invalid if it has not said.
func (n *node) internalIP() netip.Addr {
	for _, address := range n.Spec.Addresses {
		if address.Type != string(corev1.NodeInternalIP) {
			continue
		}
		if ip, err := netip.ParseAddr(address.IP); err == nil {
			return ip
		}
	}
	return netip.Addr{}
}

// podCIDR returns the node's range, invalid if it has none yet.
func (n *node) podCIDR() netip.Prefix {
	for _, text := range n.Spec.IPAM.PodCIDRs {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			return prefix
		}
	}
	return netip.Prefix{}
}

func parseNode(object *unstructured.Unstructured) (node, error) {
	found := node{Name: object.GetName()}
	raw, err := json.Marshal(object.Object)
	if err != nil {
		return found, fmt.Errorf("CiliumNode %s: %w", found.Name, err)
	}
	if err := json.Unmarshal(raw, &found); err != nil {
		return found, fmt.Errorf("CiliumNode %s: %w", found.Name, err)
	}
	return found, nil
}

func listNodes(ctx context.Context, api *clients) ([]node, error) {
	list, err := api.any.Resource(nodesResource()).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list CiliumNodes: %w", err)
	}
	nodes := make([]node, 0, len(list.Items))
	for i := range list.Items {
		parsed, err := parseNode(&list.Items[i])
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, parsed)
	}
	return nodes, nil
}

// publish writes this node's CiliumNode: its addresses, and in kubernetes mode
// its range.
func publish(ctx context.Context, api *clients, k8sNode *corev1.Node, kubernetesMode bool) error {
	var wanted node
	for _, address := range k8sNode.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			wanted.Spec.Addresses = append(wanted.Spec.Addresses, nodeAddress{string(address.Type), address.Address})
		}
	}
	if kubernetesMode && k8sNode.Spec.PodCIDR != "" {
		wanted.Spec.IPAM.PodCIDRs = []string{k8sNode.Spec.PodCIDR}
	}
	client := api.any.Resource(nodesResource())
	patch, err := json.Marshal(wanted)
	if err != nil {
		return fmt.Errorf("CiliumNode %s: %w", k8sNode.Name, err)
	}
	_, err = client.Patch(ctx, k8sNode.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if !apierrors.IsNotFound(err) {
		return wrap(err, "update CiliumNode "+k8sNode.Name)
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(patch, &object.Object); err != nil {
		return fmt.Errorf("CiliumNode %s: %w", k8sNode.Name, err)
	}
	object.SetAPIVersion(crdGroup + "/v2")
	object.SetKind("CiliumNode")
	object.SetName(k8sNode.Name)
	object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: k8sNode.Name, UID: k8sNode.UID}})
	_, err = client.Create(ctx, object, metav1.CreateOptions{})
	return wrap(err, "create CiliumNode "+k8sNode.Name)
}

func setPodCIDR(ctx context.Context, api *clients, name string, prefix netip.Prefix) error {
	var wanted node
	wanted.Spec.IPAM.PodCIDRs = []string{prefix.String()}
	patch, err := json.Marshal(wanted)
	if err != nil {
		return fmt.Errorf("CiliumNode %s: %w", name, err)
	}
	_, err = api.any.Resource(nodesResource()).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return wrap(err, "give CiliumNode "+name+" a range")
}

func wrap(err error, what string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
