package cilium_test

import (
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func intOrString(n int32) intstr.IntOrString { return intstr.FromInt32(n) }

// serveDNS runs CoreDNS as the control plane's add-on does.
func (c *cluster) serveDNS() {
	c.t.Helper()
	ctx := c.t.Context()
	meta := metav1.ObjectMeta{Name: "coredns", Namespace: "kube-system", Labels: map[string]string{"k8s-app": "kube-dns"}}
	_, err := c.admin.CoreV1().ServiceAccounts("kube-system").Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	must(c.t, err)
	_, err = c.admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "coredns"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "coredns", Namespace: "kube-system"}},
	}, metav1.CreateOptions{})
	must(c.t, err)
	_, err = c.admin.CoreV1().ConfigMaps("kube-system").Create(ctx, &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{
		"Corefile": ".:53 {\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n    }\n}\n",
	}}, metav1.CreateOptions{})
	must(c.t, err)
	probe := func(path string, port int32) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intOrString(port)}}}
	}
	_, err = c.admin.CoreV1().Pods("kube-system").Create(ctx, &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
		ServiceAccountName: "coredns",
		Containers: []corev1.Container{{
			Name: "coredns", Image: "registry.k8s.io/coredns/coredns:v1.14.2", Args: []string{"-conf", "/etc/coredns/Corefile"},
			VolumeMounts:  []corev1.VolumeMount{{Name: "config-volume", MountPath: "/etc/coredns", ReadOnly: true}},
			LivenessProbe: probe("/health", 8080), ReadinessProbe: probe("/ready", 8181),
		}},
		Volumes: []corev1.Volume{{Name: "config-volume", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "coredns"},
		}}}},
	}}, metav1.CreateOptions{})
	must(c.t, err)
	meta.Name = "kube-dns"
	_, err = c.admin.CoreV1().Services("kube-system").Create(ctx, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		ClusterIP: dnsIP, Selector: map[string]string{"k8s-app": "kube-dns"},
		Ports: []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP}},
	}}, metav1.CreateOptions{})
	must(c.t, err)
}
