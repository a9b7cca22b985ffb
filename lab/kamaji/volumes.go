package kamaji

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// The whole CA Secret is mounted three more times, key included, as the real
// one does.
func caMounts() []struct{ volume, path string } {
	return []struct{ volume, path string }{
		{"etc-ca-certificates", "/etc/ca-certificates"},
		{"usr-share-ca-certificates", "/usr/share/ca-certificates"},
		{"usr-local-share-ca-certificates", "/usr/local/share/ca-certificates"},
	}
}

func pkiMounts() []corev1.VolumeMount {
	mounts := []corev1.VolumeMount{{Name: volumePKI, MountPath: "/etc/kubernetes/pki", ReadOnly: true}}
	for _, mount := range caMounts() {
		mounts = append(mounts, corev1.VolumeMount{Name: mount.volume, MountPath: mount.path, ReadOnly: true})
	}
	return mounts
}

func (p *pass) volumes() []corev1.Volume {
	volumes := []corev1.Volume{{Name: volumePKI, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To(fileMode),
		Sources: []corev1.VolumeProjection{
			p.projection(suffixAPIServer, "apiserver.crt", "apiserver.key"),
			p.projection(suffixCA, "ca.crt", "ca.key"),
			p.projection(suffixKubeletClient, "apiserver-kubelet-client.crt", "apiserver-kubelet-client.key"),
			p.projection(suffixFrontProxyCA, "front-proxy-ca.crt", "front-proxy-ca.key"),
			p.projection(suffixFrontProxyClient, "front-proxy-client.crt", "front-proxy-client.key"),
			p.projection(suffixSA, "sa.pub", "sa.key"),
			p.etcdProjection(),
		},
	}}}}
	for _, mount := range caMounts() {
		volumes = append(volumes, p.secretVolume(mount.volume, suffixCA))
	}
	return append(volumes, p.secretVolume(volumeScheduler, suffixScheduler), p.secretVolume(volumeController, suffixController))
}

func (p *pass) projection(suffix string, keys ...string) corev1.VolumeProjection {
	items := make([]corev1.KeyToPath, 0, len(keys))
	for _, key := range keys {
		items = append(items, corev1.KeyToPath{Key: key, Path: key})
	}
	return corev1.VolumeProjection{Secret: &corev1.SecretProjection{
		LocalObjectReference: corev1.LocalObjectReference{Name: p.name(suffix)}, Items: items,
	}}
}

func (p *pass) etcdProjection() corev1.VolumeProjection {
	projection := p.projection(suffixStoreCert, "ca.crt", "server.crt", "server.key")
	for i := range projection.Secret.Items {
		projection.Secret.Items[i].Path = "etcd/" + projection.Secret.Items[i].Key
	}
	return projection
}

func (p *pass) secretVolume(volume, suffix string) corev1.Volume {
	return corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: p.name(suffix), DefaultMode: ptr.To(fileMode)},
	}}
}
