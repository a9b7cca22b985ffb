package talos

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// SplitLabels sorts a pool's labels by who is able to set them on a Node.
//
// A kubelet's credential may set labels outside Kubernetes' own domains and a
// short list inside them (NodeRestriction refuses the rest, and Talos would
// retry for ever). Cluster API core copies labels of three other domains from
// the Machine to the Node. Labels of neither kind are refused.
func SplitLabels(labels map[string]string) (node, core map[string]string, err error) {
	node, core = map[string]string{}, map[string]string{}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		switch {
		case coreSetsLabel(key):
			core[key] = labels[key]
		case nodeMaySetLabel(key):
			node[key] = labels[key]
		default:
			errs = append(errs, fmt.Errorf("labels: %q is in a domain that neither a node nor Cluster API core may write; "+
				"use a domain of your own, node.kubernetes.io/… or node-role.kubernetes.io/…", key))
		}
	}
	return node, core, errors.Join(errs...)
}

// coreSetsLabel tells whether Cluster API core syncs the label from Machine to
// Node.
func coreSetsLabel(key string) bool {
	domain, _, found := strings.Cut(key, "/")
	if !found {
		return false
	}
	for _, synced := range []string{"node-role.kubernetes.io", "node-restriction.kubernetes.io", "node.cluster.x-k8s.io"} {
		if domain == synced || strings.HasSuffix(domain, "."+synced) {
			return true
		}
	}
	return false
}

// nodeMaySetLabel tells whether the NodeRestriction admission plugin lets a
// kubelet set the label on its own Node.
func nodeMaySetLabel(key string) bool {
	domain, _, found := strings.Cut(key, "/")
	if !found {
		return true
	}
	if domain == "node-restriction.kubernetes.io" || strings.HasSuffix(domain, ".node-restriction.kubernetes.io") {
		return false
	}
	if !inDomain(domain, "kubernetes.io") && !inDomain(domain, "k8s.io") {
		return true
	}
	if inDomain(domain, "kubelet.kubernetes.io") || inDomain(domain, "node.kubernetes.io") {
		return true
	}
	return slices.Contains([]string{
		"kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os",
		"beta.kubernetes.io/arch", "beta.kubernetes.io/os", "beta.kubernetes.io/instance-type",
		"topology.kubernetes.io/zone", "topology.kubernetes.io/region",
		"failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
	}, key)
}

func inDomain(domain, parent string) bool {
	return domain == parent || strings.HasSuffix(domain, "."+parent)
}
