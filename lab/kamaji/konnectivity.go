package kamaji

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

const (
	containerTunnel = "konnectivity-server"

	volumeUDS            = "konnectivity-uds"
	volumeEgress         = "egress-selector-configuration"
	volumeTunnelConfig   = "konnectivity-server-kubeconfig"
	tunnelSocket         = "/run/konnectivity/konnectivity-server.socket"
	tunnelKubeconfig     = "konnectivity-server.conf"
	tunnelUser           = "system:konnectivity-server"
	egressFile           = "egress-selector-configuration.yaml"
	egressFolder         = "/etc/kubernetes/konnectivity/configurations"
	egressFlag           = "--egress-selector-config-file=" + egressFolder + "/" + egressFile
	tunnelAdminPort      = 8133
	tunnelHealthPort     = 8134
	tunnelProbeDelay     = 30
	tunnelProbeTimeout   = 60
	egressConfiguration  = "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n- name: cluster\n  connection:\n    proxyProtocol: GRPC\n    transport:\n      uds:\n        udsName: " + tunnelSocket + "\n"
	konnectivityVersions = "v0.%s.0"
)

func (p *pass) tunnel() *v1alpha1.KonnectivitySpec { return p.spec().Addons.Konnectivity }

// ensureKonnectivity makes what the tunnel's server needs, or removes it.
func (p *pass) ensureKonnectivity(ctx context.Context) (bool, error) {
	if p.tunnel() == nil {
		return p.dropKonnectivity(ctx)
	}
	wrote, err := p.ensureConfigMap(ctx, suffixKonnConfig, map[string]string{egressFile: egressConfiguration})
	if err != nil {
		return false, err
	}
	if _, err = p.setStatus(ctx, func(s *status) {
		s.Addons.Konnectivity.ConfigMap = v1alpha1.KonnectivityConfigMap{
			Name: p.name(suffixKonnConfig), Checksum: sumStrings(map[string]string{egressFile: egressConfiguration}),
		}
	}); err != nil {
		return false, err
	}
	cert, err := p.ensureTunnelCertificate(ctx)
	if err != nil {
		return false, err
	}
	config, err := p.ensureTunnelKubeconfig(ctx)
	return wrote || cert || config, err
}

func (p *pass) ensureTunnelCertificate(ctx context.Context) (bool, error) {
	return p.ensureSecret(ctx, secretRule{
		suffix: suffixKonnCert, lifecycle: lifecycleX509, kind: corev1.SecretTypeTLS,
		// Not judged by the authority: after a new CA it stays stale.
		good: func(secret *corev1.Secret) bool {
			_, err := secretPair(secret, corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
			return err == nil
		},
		make: func(*corev1.Secret) (map[string][]byte, error) {
			pair, err := p.ca.issue(tenYearLeaf(tunnelUser))
			if err != nil {
				return nil, err
			}
			return map[string][]byte{corev1.TLSCertKey: pair.certPEM, corev1.TLSPrivateKeyKey: pair.keyPEM}, nil
		},
		status: func(s *status) *objectStatus { return &s.Addons.Konnectivity.Certificate },
	})
}

func (p *pass) ensureTunnelKubeconfig(ctx context.Context) (bool, error) {
	return p.ensureSecret(ctx, secretRule{
		suffix: suffixKonnKubeconfig, lifecycle: lifecycleKubeconfig,
		good: func(secret *corev1.Secret) bool { return len(secret.Data[tunnelKubeconfig]) > 0 },
		make: func(secret *corev1.Secret) (map[string][]byte, error) {
			pair, err := secretPair(p.secrets[suffixKonnCert], corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
			if err != nil {
				return nil, err
			}
			metav1.SetMetaDataAnnotation(&secret.ObjectMeta, annotationRotate, metav1.Now().Format("2006-01-02T15:04:05Z07:00"))
			file, err := kubeconfig("kubernetes", tunnelUser, serverURL("localhost", p.port()), p.ca.certPEM, pair)
			return map[string][]byte{tunnelKubeconfig: file}, err
		},
		status: func(s *status) *objectStatus { return &s.Addons.Konnectivity.Kubeconfig },
	})
}

// dropKonnectivity deletes the three objects. The Service port and the
// tenant's side stay, as observed.
func (p *pass) dropKonnectivity(ctx context.Context) (bool, error) {
	if !p.tcp.Status.Addons.Konnectivity.Enabled {
		return false, nil
	}
	meta := func(suffix string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: p.tcp.Namespace, Name: p.name(suffix)}
	}
	for _, object := range []client.Object{
		&corev1.ConfigMap{ObjectMeta: meta(suffixKonnConfig)},
		&corev1.Secret{ObjectMeta: meta(suffixKonnCert)}, &corev1.Secret{ObjectMeta: meta(suffixKonnKubeconfig)},
	} {
		if err := p.api.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("delete %s: %w", object.GetName(), err)
		}
	}
	return p.setStatus(ctx, func(s *status) { s.Addons.Konnectivity = v1alpha1.KonnectivityStatus{} })
}

// keepTunnel puts into a wanted pod what of the tunnel the Deployment already
// has. When the tunnel was turned off, the volume of its kubeconfig stays and
// points to a Secret that is gone: the new pod never starts. That is the real
// one's behaviour.
func (p *pass) keepTunnel(pod *corev1.PodSpec) {
	if p.deployment == nil {
		return
	}
	present := p.deployment.Spec.Template.Spec
	running := slices.ContainsFunc(present.Containers, func(c corev1.Container) bool { return c.Name == containerTunnel })
	left := slices.ContainsFunc(present.Volumes, func(v corev1.Volume) bool { return v.Name == volumeTunnelConfig })
	switch {
	case p.tunnel() != nil && running:
		p.addTunnel(pod)
		slices.Sort(pod.Containers[0].Args)
	case left:
		pod.Volumes = append(pod.Volumes, p.secretVolume(volumeTunnelConfig, suffixKonnKubeconfig))
	}
}

// ensureTunnel adds the tunnel to a Deployment without it: a rollout of its
// own. The next pass sorts the API server's arguments: one more.
func (p *pass) ensureTunnel(ctx context.Context) (bool, error) {
	if p.tunnel() == nil {
		return false, nil
	}
	running := slices.ContainsFunc(p.deployment.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == containerTunnel })
	if !running {
		wanted := p.buildDeployment()
		p.addTunnel(&wanted.Spec.Template.Spec)
		if _, err := p.writeDeployment(ctx, wanted); err != nil {
			return false, err
		}
		p.again = p.cfg.Clock.Scale(retryAfter)
	}
	port := p.tunnel().KonnectivityServerSpec.Port
	wrote, err := p.writeService(ctx, func(service *corev1.Service) { p.setServicePort(service, portKonnectivity, port) })
	if err != nil {
		return false, err
	}
	told, err := p.setStatus(ctx, func(s *status) {
		s.Addons.Konnectivity.Enabled = true
		s.Addons.Konnectivity.Service = v1alpha1.ServiceStatus{
			ServiceStatus: *p.service.Status.DeepCopy(), Name: p.service.Name, Namespace: p.service.Namespace, Port: port,
		}
	})
	return !running || wrote || told, err
}

// addTunnel adds container, volumes and flag; the flag comes last.
func (p *pass) addTunnel(pod *corev1.PodSpec) {
	api := &pod.Containers[0]
	api.Args = append(slices.Clone(api.Args), egressFlag)
	api.VolumeMounts = append(api.VolumeMounts,
		corev1.VolumeMount{Name: volumeUDS, MountPath: "/run/konnectivity"},
		corev1.VolumeMount{Name: volumeEgress, MountPath: egressFolder, ReadOnly: true})
	pod.Containers = append(pod.Containers, p.tunnelContainer())
	pod.Volumes = append(pod.Volumes,
		corev1.Volume{Name: volumeUDS, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
		corev1.Volume{Name: volumeEgress, VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: p.name(suffixKonnConfig)}, DefaultMode: ptr.To(fileMode),
		}}},
		p.secretVolume(volumeTunnelConfig, suffixKonnKubeconfig))
}

func (p *pass) tunnelContainer() corev1.Container {
	server := p.tunnel().KonnectivityServerSpec
	replicas := ptr.Deref(p.spec().ControlPlane.Deployment.Replicas, 1)
	args := arguments(nil, server.ExtraArgs, map[string]string{
		"--admin-port": fmt.Sprint(tunnelAdminPort), "--agent-namespace": "kube-system", "--agent-port": fmt.Sprint(server.Port),
		"--agent-service-account": "konnectivity-agent", "--authentication-audience": tunnelUser,
		"--cluster-cert": pki + "apiserver.crt", "--cluster-key": pki + "apiserver.key", "--health-port": fmt.Sprint(tunnelHealthPort),
		"--kubeconfig": "/etc/kubernetes/" + tunnelKubeconfig, "--mode": "grpc", "--server-count": fmt.Sprint(replicas),
		"--server-port": "0", "--uds-name": tunnelSocket,
	})
	container := corev1.Container{
		Name: containerTunnel, Image: server.Image + ":" + p.tunnelVersion(server.Version), ImagePullPolicy: corev1.PullAlways,
		Command: []string{"/proxy-server"}, Args: args,
		Ports: []corev1.ContainerPort{
			{Name: "agentport", ContainerPort: server.Port, Protocol: corev1.ProtocolTCP},
			{Name: "adminport", ContainerPort: tunnelAdminPort, Protocol: corev1.ProtocolTCP},
			{Name: "healthport", ContainerPort: tunnelHealthPort, Protocol: corev1.ProtocolTCP},
		},
		LivenessProbe: &corev1.Probe{
			ProbeHandler:        corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(tunnelHealthPort), Scheme: corev1.URISchemeHTTP}},
			InitialDelaySeconds: tunnelProbeDelay, TimeoutSeconds: tunnelProbeTimeout, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3,
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: volumePKI, MountPath: "/etc/kubernetes/pki", ReadOnly: true},
			{Name: volumeTunnelConfig, MountPath: "/etc/kubernetes/" + tunnelKubeconfig, SubPath: tunnelKubeconfig, ReadOnly: true},
			{Name: volumeUDS, MountPath: "/run/konnectivity"},
		},
	}
	if server.Resources != nil {
		container.Resources = *server.Resources
	}
	return container
}

// tunnelVersion follows the tenant's minor version unless one is pinned.
func (p *pass) tunnelVersion(pinned string) string {
	if pinned != "" {
		return pinned
	}
	parts := strings.Split(strings.TrimPrefix(p.spec().Kubernetes.Version, "v"), ".")
	if len(parts) < 2 {
		return "v0.0.0"
	}
	return fmt.Sprintf(konnectivityVersions, parts[1])
}
