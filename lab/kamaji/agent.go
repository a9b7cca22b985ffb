package kamaji

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	agentName         = "konnectivity-agent"
	agentTokenVolume  = "konnectivity-agent-token"
	agentTokenFolder  = "/var/run/secrets/tokens"
	agentTokenSeconds = 3600
	agentProbeDelay   = 15
	agentProbeTimeout = 15
)

// agentPieces are the tunnel's objects in the tenant.
func (p *pass) agentPieces() []client.Object {
	serviceAccount := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: nsSystem, Name: agentName, Labels: objectLabels(p.tcp.Name, "konnectivity-sa")}}
	binding := clusterBinding(tunnelUser, "system:auth-delegator", user(tunnelUser))
	binding.Labels = objectLabels(p.tcp.Name, "konnectivity-clusterrolebinding")
	binding.Labels["kubernetes.io/cluster-service"] = "true"
	binding.Labels["addonmanager.kubernetes.io/mode"] = "Reconcile"
	return []client.Object{serviceAccount, binding, p.agentWorkload()}
}

func (p *pass) agentWorkload() client.Object {
	agent := p.tunnel().KonnectivityAgentSpec
	meta := metav1.ObjectMeta{Namespace: nsSystem, Name: agentName, Labels: objectLabels(p.tcp.Name, agentName)}
	podLabels := map[string]string{"k8s-app": agentName}
	selector := &metav1.LabelSelector{MatchLabels: podLabels}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: podLabels}, Spec: p.agentPod()}
	if agent.Mode == "Deployment" {
		return &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: agent.Replicas, Selector: selector, Template: template}}
	}
	return &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}}
}

func (p *pass) agentPod() corev1.PodSpec {
	agent := p.tunnel().KonnectivityAgentSpec
	args := arguments(map[string]string{"-v": "8", "--logtostderr": "true"}, agent.ExtraArgs, map[string]string{
		"--admin-server-port": fmt.Sprint(tunnelAdminPort), "--ca-cert": accountFolder + "/ca.crt",
		"--health-server-port": fmt.Sprint(tunnelHealthPort), "--proxy-server-host": p.advertise(),
		"--proxy-server-port":          fmt.Sprint(p.tunnel().KonnectivityServerSpec.Port),
		"--service-account-token-path": agentTokenFolder + "/" + agentTokenVolume,
	})
	return corev1.PodSpec{
		ServiceAccountName: agentName, PriorityClassName: criticalPods, HostNetwork: agent.HostNetwork,
		Tolerations:  agent.Tolerations,
		NodeSelector: map[string]string{corev1.LabelOSStable: "linux"},
		Containers: []corev1.Container{{
			Name: agentName, Image: agent.Image + ":" + p.tunnelVersion(agent.Version), ImagePullPolicy: corev1.PullAlways,
			Command: []string{"/proxy-agent"}, Args: args,
			LivenessProbe: &corev1.Probe{
				ProbeHandler:        corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(tunnelHealthPort), Scheme: corev1.URISchemeHTTP}},
				InitialDelaySeconds: agentProbeDelay, TimeoutSeconds: agentProbeTimeout, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3,
			},
			VolumeMounts: []corev1.VolumeMount{{Name: agentTokenVolume, MountPath: agentTokenFolder}},
		}},
		Volumes: []corev1.Volume{{Name: agentTokenVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			DefaultMode: ptr.To(fileMode),
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Path: agentTokenVolume, Audience: tunnelUser, ExpirationSeconds: ptr.To[int64](agentTokenSeconds),
			}}},
		}}}},
	}
}
