package kamaji

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	proxyName     = "kube-proxy"
	proxyBinding  = "kubeadm:node-proxier"
	proxyConfig   = "config.conf"
	proxyAccess   = "kubeconfig.conf"
	proxyFolder   = "/var/lib/kube-proxy"
	criticalNodes = "system-node-critical"
	accountFolder = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// kubeProxyPieces are the addon's objects; the binding owns the others.
func (p *pass) kubeProxyPieces() []client.Object {
	config := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: nsSystem, Name: proxyName, Labels: map[string]string{"app": proxyName}},
		Data:       map[string]string{proxyConfig: proxyConfiguration, proxyAccess: p.proxyKubeconfig()},
	}
	objects := []client.Object{
		clusterBinding(proxyBinding, "system:node-proxier", account(proxyName)),
		p.kubeProxyDaemonSet(),
		config,
	}
	objects = append(objects, readConfigMap(nsSystem, proxyName, proxyName, group(tokenGroup))...)
	return append(objects, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: nsSystem, Name: proxyName}})
}

const proxyConfiguration = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
clientConnection:
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
clusterCIDR: ""
kind: KubeProxyConfiguration
mode: ""
`

func (p *pass) proxyKubeconfig() string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- cluster:
    certificate-authority: %[1]s/ca.crt
    server: %[2]s
  name: default
contexts:
- context:
    cluster: default
    namespace: default
    user: default
  name: default
current-context: default
users:
- name: default
  user:
    tokenFile: %[1]s/token
`, accountFolder, p.publicServer())
}

// kubeProxyImage follows the tenant's version, at once when it changes.
func (p *pass) kubeProxyImage() string {
	repository, tag := defaultImages, p.spec().Kubernetes.Version
	if addon := p.spec().Addons.KubeProxy; addon != nil {
		if addon.ImageRepository != "" {
			repository = addon.ImageRepository
		}
		if addon.ImageTag != "" {
			tag = addon.ImageTag
		}
	}
	return repository + "/kube-proxy:" + tag
}

func (p *pass) kubeProxyDaemonSet() *appsv1.DaemonSet {
	labels := map[string]string{"k8s-app": proxyName}
	host := func(name, path string, kind corev1.HostPathType) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: ptr.To(kind)}}}
	}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: nsSystem, Name: proxyName, Labels: labels},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					ServiceAccountName: proxyName, PriorityClassName: criticalNodes, HostNetwork: true,
					Tolerations:  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					NodeSelector: map[string]string{corev1.LabelOSStable: "linux"},
					Containers: []corev1.Container{{
						Name: proxyName, Image: p.kubeProxyImage(), ImagePullPolicy: corev1.PullIfNotPresent,
						Command: []string{"/usr/local/bin/kube-proxy", "--config=" + proxyFolder + "/" + proxyConfig, "--hostname-override=$(NODE_NAME)"},
						Env: []corev1.EnvVar{{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{
							FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "spec.nodeName"},
						}}},
						SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)},
						VolumeMounts: []corev1.VolumeMount{
							{Name: proxyName, MountPath: proxyFolder},
							{Name: "xtables-lock", MountPath: "/run/xtables.lock"},
							{Name: "lib-modules", MountPath: "/lib/modules", ReadOnly: true},
						},
					}},
					Volumes: []corev1.Volume{
						{Name: proxyName, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: proxyName}}}},
						host("xtables-lock", "/run/xtables.lock", corev1.HostPathFileOrCreate), host("lib-modules", "/lib/modules", corev1.HostPathUnset),
					},
				},
			},
		},
	}
}
