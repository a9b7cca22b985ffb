package kubelet

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// field returns what a fieldRef of the downward API names.
func (w *worker) field(pod *corev1.Pod, path string) (string, error) {
	if name, key, ok := subscript(path); ok {
		switch name {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
	}
	podIP := ""
	if w.sandbox != nil {
		podIP = w.sandbox.podIP
	}
	fields := map[string]string{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "metadata.uid": string(pod.UID),
		"metadata.labels": quoted(pod.Labels), "metadata.annotations": quoted(pod.Annotations),
		"spec.nodeName": pod.Spec.NodeName, "spec.serviceAccountName": pod.Spec.ServiceAccountName,
		"status.hostIP": w.k.hostIP(), "status.hostIPs": w.k.hostIP(), "status.podIP": podIP, "status.podIPs": podIP,
	}
	value, ok := fields[path]
	if !ok {
		return "", fmt.Errorf("fieldPath: %q is not supported; supported are %v and metadata.labels['<key>'], metadata.annotations['<key>']", path, sortedKeys(fields))
	}
	return value, nil
}

// subscript splits metadata.labels['app'] into its two parts.
func subscript(path string) (name, key string, ok bool) {
	name, rest, ok := strings.Cut(path, "['")
	if !ok || !strings.HasSuffix(rest, "']") {
		return "", "", false
	}
	return name, strings.TrimSuffix(rest, "']"), true
}

func quoted(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, key := range sortedKeys(m) {
		lines = append(lines, key+"="+strconv.Quote(m[key]))
	}
	return strings.Join(lines, "\n")
}

// resourceField returns a request or limit, by default the node's capacity.
func (w *worker) resourceField(pod *corev1.Pod, containerName string, ref *corev1.ResourceFieldSelector) (string, error) {
	if ref.ContainerName != "" {
		containerName = ref.ContainerName
	}
	kind, name, ok := strings.Cut(ref.Resource, ".")
	if !ok || kind != "limits" && kind != "requests" {
		return "", fmt.Errorf("resource: %q is not supported; use limits.<resource> or requests.<resource>", ref.Resource)
	}
	quantity := w.k.capacity()[corev1.ResourceName(name)]
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name != containerName {
				continue
			}
			values := list[i].Resources.Limits
			if kind == "requests" {
				values, quantity = list[i].Resources.Requests, resource.Quantity{}
			}
			if own, set := values[corev1.ResourceName(name)]; set {
				quantity = own
			}
		}
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	return strconv.FormatInt(int64(math.Ceil(quantity.AsApproximateFloat64()/divisor.AsApproximateFloat64())), 10), nil
}
