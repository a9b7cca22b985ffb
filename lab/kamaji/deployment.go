package kamaji

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

const (
	containerAPIServer  = "kube-apiserver"
	containerController = "kube-controller-manager"
	containerScheduler  = "kube-scheduler"

	volumePKI            = "etc-kubernetes-pki"
	volumeScheduler      = "scheduler-kubeconfig"
	volumeController     = "controller-manager-kubeconfig"
	fileMode             = int32(0o644)
	schedulerPort        = 10259
	controllerPort       = 10257
	progressDeadline     = int32(600)
	revisionHistoryLimit = int32(10)
)

// readDeployment reads the Deployment once a pass; nil means there is none.
func (p *pass) readDeployment(ctx context.Context) error {
	if p.deployment != nil {
		return nil
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: p.tcp.Namespace, Name: p.tcp.Name}}
	exists, err := p.fetch(ctx, deployment)
	if err != nil {
		return fmt.Errorf("read deployment: %w", err)
	}
	if exists {
		p.deployment = deployment
	}
	return nil
}

// ensureDeployment writes the Deployment with as much of the tunnel as it has
// already: adding the tunnel is a step of its own.
func (p *pass) ensureDeployment(ctx context.Context) (bool, error) {
	if err := p.readDeployment(ctx); err != nil {
		return false, err
	}
	wanted := p.buildDeployment()
	p.keepTunnel(&wanted.Spec.Template.Spec)
	return p.writeDeployment(ctx, wanted)
}

func (p *pass) writeDeployment(ctx context.Context, wanted *appsv1.Deployment) (bool, error) {
	if err := p.own(wanted, "deployment"); err != nil {
		return false, err
	}
	if p.deployment == nil {
		if err := p.api.Create(ctx, wanted); err != nil {
			return false, fmt.Errorf("create deployment: %w", err)
		}
		p.deployment = wanted
		return true, nil
	}
	same, err := covers(p.deployment, wanted)
	if err != nil || same {
		return false, err
	}
	updated := p.deployment.DeepCopy()
	updated.Labels, updated.Spec = wanted.Labels, wanted.Spec
	for key, value := range wanted.Annotations {
		metav1.SetMetaDataAnnotation(&updated.ObjectMeta, key, value)
	}
	if err := p.api.Update(ctx, updated); err != nil {
		return false, fmt.Errorf("update deployment: %w", err)
	}
	p.deployment = updated
	return true, nil
}

func (p *pass) buildDeployment() *appsv1.Deployment {
	spec := p.spec().ControlPlane.Deployment
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.tcp.Namespace, Name: p.tcp.Name,
			Labels: copyMap(spec.AdditionalMetadata.Labels), Annotations: copyMap(spec.AdditionalMetadata.Annotations),
		},
		Spec: appsv1.DeploymentSpec{
			ProgressDeadlineSeconds: ptr.To(progressDeadline),
			RevisionHistoryLimit:    ptr.To(revisionHistoryLimit),
			Replicas:                spec.Replicas,
			Selector:                &metav1.LabelSelector{MatchLabels: map[string]string{labelName: p.tcp.Name}},
			Strategy:                spec.Strategy,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: p.podLabels(), Annotations: p.podAnnotations()},
				Spec:       p.podSpec(),
			},
		},
	}
	if extra := p.extraArguments().apiServer; len(extra) > 0 {
		metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, annotationArgs, sumArguments(extra))
	}
	return deployment
}

func (p *pass) podAnnotations() map[string]string {
	annotations := copyMap(p.spec().ControlPlane.Deployment.PodAdditionalMetadata.Annotations)
	annotations["storage.kamaji.clastix.io/certificate"] = p.tcp.Status.Storage.Certificate.Checksum
	annotations["storage.kamaji.clastix.io/config"] = p.tcp.Status.Storage.Config.Checksum
	return annotations
}

// podLabels sum the mounted Secrets up, so that a changed one rolls the pods.
func (p *pass) podLabels() map[string]string {
	const prefix = "component.kamaji.clastix.io/"
	labels := copyMap(p.spec().ControlPlane.Deployment.PodAdditionalMetadata.Labels)
	labels[labelComponent], labels[labelName] = "deployment", p.tcp.Name
	labels[prefix+"datastore"] = p.store.name
	for label, suffix := range map[string]string{
		suffixAPIServer: suffixAPIServer, suffixKubeletClient: suffixKubeletClient, suffixCA: suffixCA,
		suffixController: suffixController, suffixFrontProxyCA: suffixFrontProxyCA,
		suffixFrontProxyClient: suffixFrontProxyClient, suffixScheduler: suffixScheduler,
		"service-account": suffixSA,
	} {
		labels[prefix+label] = sum(p.secrets[suffix].Data)
	}
	return labels
}

func (p *pass) podSpec() corev1.PodSpec {
	spec := p.spec().ControlPlane.Deployment
	return corev1.PodSpec{
		DNSPolicy:                     corev1.DNSClusterFirst,
		RestartPolicy:                 corev1.RestartPolicyAlways,
		SchedulerName:                 corev1.DefaultSchedulerName,
		SecurityContext:               &corev1.PodSecurityContext{},
		ServiceAccountName:            spec.ServiceAccountName,
		TerminationGracePeriodSeconds: ptr.To[int64](corev1.DefaultTerminationGracePeriodSeconds),
		NodeSelector:                  spec.NodeSelector,
		Tolerations:                   spec.Tolerations,
		Containers:                    []corev1.Container{p.apiServerContainer(), p.schedulerContainer(), p.controllerContainer()},
		Volumes:                       p.volumes(),
	}
}

func (p *pass) image(name string) string {
	registry := p.spec().ControlPlane.Deployment.RegistrySettings
	return registry.Registry + "/" + name + ":" + p.spec().Kubernetes.Version + registry.TagSuffix
}

func (p *pass) apiServerContainer() corev1.Container {
	container := corev1.Container{
		Name: containerAPIServer, Image: p.image(p.spec().ControlPlane.Deployment.RegistrySettings.APIServerImage),
		ImagePullPolicy: corev1.PullAlways,
		Command:         []string{"kube-apiserver"}, Args: p.apiServerArguments(),
		LivenessProbe: probe("/livez", p.port()), ReadinessProbe: probe("/readyz", p.port()), StartupProbe: probe("/livez", p.port()),
		VolumeMounts: pkiMounts(),
	}
	if resources := p.spec().ControlPlane.Deployment.Resources; resources != nil && resources.APIServer != nil {
		container.Resources = *resources.APIServer
	}
	return container
}

func (p *pass) schedulerContainer() corev1.Container {
	container := corev1.Container{
		Name: containerScheduler, Image: p.image(p.spec().ControlPlane.Deployment.RegistrySettings.SchedulerImage),
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{"kube-scheduler"}, Args: p.schedulerArguments(),
		LivenessProbe: probe("/healthz", schedulerPort), ReadinessProbe: probe("/healthz", schedulerPort), StartupProbe: probe("/healthz", schedulerPort),
		VolumeMounts: []corev1.VolumeMount{{Name: volumeScheduler, MountPath: "/etc/kubernetes", ReadOnly: true}},
	}
	if resources := p.spec().ControlPlane.Deployment.Resources; resources != nil && resources.Scheduler != nil {
		container.Resources = *resources.Scheduler
	}
	return container
}

func (p *pass) controllerContainer() corev1.Container {
	own := corev1.VolumeMount{Name: volumeController, MountPath: "/etc/kubernetes", ReadOnly: true}
	container := corev1.Container{
		Name: containerController, Image: p.image(p.spec().ControlPlane.Deployment.RegistrySettings.ControllerManagerImage),
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{"kube-controller-manager"}, Args: p.controllerManagerArguments(),
		LivenessProbe: probe("/healthz", controllerPort), ReadinessProbe: probe("/healthz", controllerPort), StartupProbe: probe("/healthz", controllerPort),
		VolumeMounts: append([]corev1.VolumeMount{own}, pkiMounts()...),
	}
	if resources := p.spec().ControlPlane.Deployment.Resources; resources != nil && resources.ControllerManager != nil {
		container.Resources = *resources.ControllerManager
	}
	return container
}

func probe(path string, port int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(port), Scheme: corev1.URISchemeHTTPS}},
		PeriodSeconds: 10, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3,
	}
}

func copyMap(m map[string]string) map[string]string {
	c := make(map[string]string, len(m))
	for key, value := range m {
		c[key] = value
	}
	return c
}
