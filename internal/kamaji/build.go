package kamaji

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.internal/aether/internal/domain"
)

// nodeRestriction keeps a node's credentials to that node. Without it one
// node's certificate can make and change other Nodes.
const nodeRestriction = "NodeRestriction"

// admissionControllers are Kamaji's default list and NodeRestriction. The
// field replaces the list, so all of it is said.
func admissionControllers() []string {
	return []string{
		"CertificateApproval", "CertificateSigning", "CertificateSubjectRestriction",
		"DefaultIngressClass", "DefaultStorageClass", "DefaultTolerationSeconds", "LimitRanger",
		"MutatingAdmissionWebhook", "NamespaceLifecycle", nodeRestriction, "PersistentVolumeClaimResize",
		"Priority", "ResourceQuota", "RuntimeClass", "ServiceAccount", "StorageObjectInUseProtection",
		"TaintNodesByCondition", "ValidatingAdmissionWebhook",
	}
}

// Build returns the TenantControlPlane for a spec. It depends on nothing else.
func Build(s Spec) (*TenantControlPlane, error) {
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("control plane %s: %w: %w", s.Ref, ErrInvalid, err)
	}
	return &TenantControlPlane{
		TypeMeta: metav1.TypeMeta{APIVersion: groupVersion().String(), Kind: kindTCP},
		Metadata: Metadata{Namespace: s.Namespace, Name: s.Name, Labels: s.Labels},
		Spec: TenantControlPlaneSpec{
			DataStore: s.DataStore,
			ControlPlane: controlPlane{
				Deployment: deployment{Replicas: s.Replicas, RegistrySettings: registrySettings{Registry: s.Registry}},
				// A node port would have to be the API port itself, and 6443 is in
				// no node port range.
				Service: service{
					ServiceType:        string(corev1.ServiceTypeLoadBalancer),
					AdditionalMetadata: additionalMetadata{Annotations: s.ServiceAnnotations},
				},
			},
			Kubernetes: kubernetesSpec{
				Version:              s.Version,
				Kubelet:              kubelet{CGroupFS: "systemd", PreferredAddressTypes: []string{"InternalIP", "ExternalIP", "Hostname"}},
				AdmissionControllers: admissionControllers(),
			},
			NetworkProfile: buildNetwork(s),
			Addons:         buildAddons(s),
		},
	}, nil
}

// buildNetwork says every range twice: Kamaji's lists win over the scalars,
// and are what it fills in when they are missing.
func buildNetwork(s Spec) networkProfile {
	services, pods := s.ServiceCIDR.String(), s.PodCIDR.String()
	return networkProfile{
		AdvertiseAddress: s.ProxyAddress.String(),
		Port:             domain.APIServerPort,
		CertSANs:         s.certificateNames(),
		ServiceCIDR:      services, ServiceCIDRs: []string{services},
		PodCIDR: pods, PodCIDRs: []string{pods},
		DNSServiceIPs: []string{s.DNSAddress().String()},
		ClusterDomain: s.DNSDomain,
	}
}

// buildAddons leaves kube-proxy out, which Cilium replaces.
func buildAddons(s Spec) addons {
	return addons{
		// Kamaji ignores the tag unless a repository is given.
		CoreDNS: coreDNS{ImageRepository: s.CoreDNS.Repository, ImageTag: s.CoreDNS.Tag},
		Konnectivity: konnectivity{
			Server: konnectivityServer{Image: s.Konnectivity.ServerRepository, Version: s.Konnectivity.Version, Port: domain.KonnectivityPort},
			// On the host's network and tolerating everything, so that logs and exec
			// work while the tenant's own network does not.
			Agent: konnectivityAgent{
				Image: s.Konnectivity.AgentRepository, Version: s.Konnectivity.Version, Mode: "DaemonSet", HostNetwork: true,
				Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			},
		},
	}
}
