package kamaji

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	dnsName        = "coredns"
	dnsService     = "kube-dns"
	dnsRole        = "system:coredns"
	defaultImages  = "registry.k8s.io"
	dnsPort        = 53
	dnsMetricsPort = 9153
	dnsHealthPort  = 8080
	dnsReadyPort   = 8181
	dnsReplicas    = 2
	criticalPods   = "system-cluster-critical"
)

// corefile is kubeadm's configuration of CoreDNS for a cluster domain.
func corefile(domain string) string {
	return `.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes ` + domain + ` in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30 {
       disable success ` + domain + `
       disable denial ` + domain + `
    }
    loop
    reload
    loadbalance
}
`
}

// coreDNSImage follows kubeadm: the default repository gets one more folder,
// any other must name it itself; and the tag counts only together with a
// repository.
func (p *pass) coreDNSImage() string {
	repository, tag := defaultImages, coreDNSVersion
	if addon := p.spec().Addons.CoreDNS; addon != nil && addon.ImageRepository != "" {
		repository = addon.ImageRepository
		if addon.ImageTag != "" {
			tag = addon.ImageTag
		}
	}
	if repository == defaultImages {
		repository += "/coredns"
	}
	return repository + "/coredns:" + tag
}

func (p *pass) coreDNSPieces() []client.Object {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: nsSystem, Name: name} }
	service := &corev1.Service{
		ObjectMeta: meta(dnsService),
		Spec: corev1.ServiceSpec{
			Selector: dnsLabels(),
			Ports: []corev1.ServicePort{
				{Name: "dns", Port: dnsPort, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(dnsPort)},
				{Name: "dns-tcp", Port: dnsPort, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(dnsPort)},
				{Name: "metrics", Port: dnsMetricsPort, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(dnsMetricsPort)},
			},
		},
	}
	service.Labels = map[string]string{"k8s-app": dnsService, "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"}
	if ips := p.spec().NetworkProfile.DNSServiceIPs; len(ips) > 0 {
		service.Spec.ClusterIP = ips[0]
	}
	read := []string{"list", "watch"}
	return []client.Object{
		clusterBinding(dnsRole, dnsRole, account(dnsName)),
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: dnsRole}, Rules: []rbacv1.PolicyRule{
			{Verbs: read, APIGroups: []string{""}, Resources: []string{"endpoints", "services", "pods", "namespaces"}},
			{Verbs: read, APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}},
		}},
		p.coreDNSDeployment(),
		configMap(nsSystem, dnsName, "Corefile", corefile(p.spec().NetworkProfile.ClusterDomain)),
		service,
		&corev1.ServiceAccount{ObjectMeta: meta(dnsName)},
	}
}

func dnsLabels() map[string]string { return map[string]string{"k8s-app": dnsService} }

func (p *pass) coreDNSDeployment() *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: nsSystem, Name: dnsName, Labels: dnsLabels()},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](dnsReplicas),
			Selector: &metav1.LabelSelector{MatchLabels: dnsLabels()},
			Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType,
				// The default of maxSurge is written out, or it would count as changed.
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: ptr.To(intstr.FromInt32(1)), MaxSurge: ptr.To(intstr.FromString("25%"))},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: dnsLabels()},
				Spec: corev1.PodSpec{
					ServiceAccountName: dnsName, PriorityClassName: criticalPods, DNSPolicy: corev1.DNSDefault,
					Tolerations: []corev1.Toleration{
						{Key: "CriticalAddonsOnly", Operator: corev1.TolerationOpExists},
						{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule},
					},
					NodeSelector: map[string]string{corev1.LabelOSStable: "linux"},
					Containers:   []corev1.Container{p.coreDNSContainer()},
					Volumes: []corev1.Volume{{Name: "config-volume", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
						LocalObjectReference: corev1.LocalObjectReference{Name: dnsName}, Items: []corev1.KeyToPath{{Key: "Corefile", Path: "Corefile"}},
					}}}},
				},
			},
		},
	}
}

func (p *pass) coreDNSContainer() corev1.Container {
	check := func(path string, port int32) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(port), Scheme: corev1.URISchemeHTTP}}
	}
	return corev1.Container{
		Name: dnsName, Image: p.coreDNSImage(), ImagePullPolicy: corev1.PullIfNotPresent,
		Args: []string{"-conf", "/etc/coredns/Corefile"},
		Resources: corev1.ResourceRequirements{
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("170Mi")},
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("70Mi")},
		},
		Ports: []corev1.ContainerPort{
			{Name: "dns", ContainerPort: dnsPort, Protocol: corev1.ProtocolUDP},
			{Name: "dns-tcp", ContainerPort: dnsPort, Protocol: corev1.ProtocolTCP},
			{Name: "metrics", ContainerPort: dnsMetricsPort, Protocol: corev1.ProtocolTCP},
		},
		LivenessProbe:   &corev1.Probe{ProbeHandler: check("/health", dnsHealthPort), InitialDelaySeconds: 60, TimeoutSeconds: 5, FailureThreshold: 5},
		ReadinessProbe:  &corev1.Probe{ProbeHandler: check("/ready", dnsReadyPort)},
		VolumeMounts:    []corev1.VolumeMount{{Name: "config-volume", MountPath: "/etc/coredns", ReadOnly: true}},
		SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true)},
	}
}
