package domain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/site"
)

// NodePoolLabel is the label Cluster API core copies to the Nodes of a pool;
// the autoscaler balances groups that share it.
const NodePoolLabel = "node.cluster.x-k8s.io/pool"

func (t Tenant) validatePool(s *site.Site, i int, pool v1alpha1.Pool, p *Problems) {
	at := fmt.Sprintf("spec.pools[%d]", i)
	const maxPoolName = 20
	if len(pool.Name) > maxPoolName || len(validation.IsDNS1035Label(pool.Name)) > 0 {
		p.Add(at+".name", Shown(pool.Name), "a DNS label that starts with a letter, at most 20 characters", "")
	}
	for _, other := range t.Spec.Pools[:i] {
		if other.Name == pool.Name {
			p.Add(at+".name", Shown(pool.Name), "a name no other pool of the tenant has", "")
		}
	}
	if _, ok := Class(s, pool.Class); !ok {
		var names []string
		for _, c := range s.Spec.MachineClasses {
			names = append(names, c.Name)
		}
		p.Add(at+".class", Shown(pool.Class), "a machine class of the site: "+strings.Join(names, ", "), "")
	}
	validateSizes(at, pool, p)
	known := workerHosts(s)
	for j, host := range pool.Hosts {
		if slices.Contains(pool.Hosts[:j], host) {
			p.Add(fmt.Sprintf("%s.hosts[%d]", at, j), Shown(host), "each host once", "remove one of them")
		}
		if !slices.Contains(known, host) {
			p.Add(fmt.Sprintf("%s.hosts[%d]", at, j), Shown(host), "a Proxmox host with a worker template: "+strings.Join(known, ", "), "names are as in the Proxmox cluster, without a domain")
		}
	}
	validateLabels(at, pool.Labels, p)
	validateTaints(at, pool.Taints, p)
}

func validateSizes(at string, pool v1alpha1.Pool, p *Problems) {
	const most = 1000
	for _, size := range []struct {
		field string
		value *int32
	}{{"replicas", pool.Replicas}, {"minSize", pool.MinSize}, {"maxSize", pool.MaxSize}} {
		if size.value != nil && (*size.value < 0 || *size.value > most) {
			p.Add(at+"."+size.field, Shown(*size.value), "0 to 1000", "")
		}
	}
	if pool.MinSize == nil || pool.MaxSize == nil || pool.Replicas == nil {
		return
	}
	if *pool.MinSize > *pool.MaxSize {
		p.Add(at+".minSize", Shown(*pool.MinSize), fmt.Sprintf("at most maxSize, %d", *pool.MaxSize), "")
	}
	if *pool.Replicas < *pool.MinSize || *pool.Replicas > *pool.MaxSize {
		p.Add(at+".replicas", Shown(*pool.Replicas), fmt.Sprintf("from minSize %d to maxSize %d", *pool.MinSize, *pool.MaxSize), "")
	}
}

// reservedNodeDomains are label domains that neither a kubelet under
// NodeRestriction may set nor Cluster API core copies.
func reservedNodeDomains(key string) bool {
	domain, _, qualified := strings.Cut(key, "/")
	if !qualified {
		return false
	}
	for _, allowed := range []string{"node-role.kubernetes.io", "node-restriction.kubernetes.io", "node.kubernetes.io", "node.cluster.x-k8s.io"} {
		if domain == allowed || strings.HasSuffix(domain, "."+allowed) {
			return false
		}
	}
	return domain == "kubernetes.io" || domain == "k8s.io" || strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io")
}

func validateLabels(at string, labels map[string]string, p *Problems) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		field := fmt.Sprintf("%s.labels[%s]", at, key)
		if len(validation.IsQualifiedName(key)) > 0 {
			p.Add(field, Shown(key), "a label key, as example.com/tier", "")
			continue
		}
		if len(validation.IsValidLabelValue(labels[key])) > 0 {
			p.Add(field, Shown(labels[key]), "a label value: at most 63 letters, digits, -, _ and .", "")
		}
		if key == NodePoolLabel || reservedNodeDomains(key) {
			p.Add(field, Shown(key), "your own domain, node-role.kubernetes.io/… or node-restriction.kubernetes.io/…", "Kubernetes does not let a node carry this label by itself; use another key")
		}
	}
}

func validateTaints(at string, taints []corev1.Taint, p *Problems) {
	effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	for i, taint := range taints {
		field := fmt.Sprintf("%s.taints[%d]", at, i)
		if len(validation.IsQualifiedName(taint.Key)) > 0 {
			p.Add(field+".key", Shown(taint.Key), "a taint key, as example.com/dedicated", "")
		}
		if !slices.Contains(effects, taint.Effect) {
			p.Add(field+".effect", Shown(string(taint.Effect)), "NoSchedule, PreferNoSchedule or NoExecute", "")
		}
		if taint.Key == StartupTaint().Key {
			p.Add(field+".key", Shown(taint.Key), "a key other than Cilium's start-up taint", "Aether sets and Cilium removes that one")
		}
	}
}

// KubeletLabels returns the labels of a pool that the kubelet may register by
// itself under NodeRestriction.
func KubeletLabels(labels map[string]string) map[string]string {
	own := map[string]string{}
	for key, value := range labels {
		if !CoreLabel(key) {
			own[key] = value
		}
	}
	return own
}

// CoreLabel tells whether Cluster API core, and not the kubelet, writes the
// label: cluster-api util/labels GetManagedLabels.
func CoreLabel(key string) bool {
	domain, _, qualified := strings.Cut(key, "/")
	if !qualified {
		return false
	}
	for _, managed := range []string{"node-role.kubernetes.io", "node-restriction.kubernetes.io", "node.cluster.x-k8s.io"} {
		if domain == managed || strings.HasSuffix(domain, "."+managed) {
			return true
		}
	}
	return false
}
