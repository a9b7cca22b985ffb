package v1alpha1

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KubernetesVersionStatus is the one word that sums a control plane up.
//
// +kubebuilder:validation:Enum=Unknown;Provisioning;CertificateAuthorityRotating;Upgrading;Migrating;Ready;NotReady;Sleeping;WriteLimited
// +kubebuilder:default=Provisioning
type KubernetesVersionStatus string

// The words.
const (
	VersionUnknown      KubernetesVersionStatus = "Unknown"
	VersionProvisioning KubernetesVersionStatus = "Provisioning"
	VersionCARotating   KubernetesVersionStatus = "CertificateAuthorityRotating"
	VersionUpgrading    KubernetesVersionStatus = "Upgrading"
	VersionReady        KubernetesVersionStatus = "Ready"
	VersionNotReady     KubernetesVersionStatus = "NotReady"
	VersionSleeping     KubernetesVersionStatus = "Sleeping"
	VersionWriteLimited KubernetesVersionStatus = "WriteLimited"
)

// TenantControlPlaneStatus is what Kamaji tells: no conditions.
type TenantControlPlaneStatus struct {
	ObservedGeneration   int64               `json:"observedGeneration,omitempty"`
	Storage              StorageStatus       `json:"storage,omitempty"`
	Certificates         CertificatesStatus  `json:"certificates,omitempty"`
	KubeConfig           KubeconfigsStatus   `json:"kubeconfig,omitempty"`
	Kubernetes           KubernetesStatus    `json:"kubernetesResources,omitempty"`
	KubeadmConfig        KubeadmConfigStatus `json:"kubeadmconfig,omitempty"`
	KubeadmPhase         KubeadmPhaseStatus  `json:"kubeadmPhase,omitempty"`
	ControlPlaneEndpoint string              `json:"controlPlaneEndpoint,omitempty"`
	Addons               AddonsStatus        `json:"addons,omitempty"`
}

// StorageStatus is the tenant's place in the DataStore.
type StorageStatus struct {
	Driver        string        `json:"driver,omitempty"`
	DataStoreName string        `json:"dataStoreName,omitempty"`
	Config        StorageConfig `json:"config,omitempty"`
	Setup         StorageSetup  `json:"setup,omitempty"`
	Certificate   ObjectStatus  `json:"certificate,omitempty"`
}

// StorageConfig names the Secret with the schema and the user.
type StorageConfig struct {
	SecretName string `json:"secretName,omitempty"`
	Checksum   string `json:"checksum,omitempty"`
}

// StorageSetup says what was made in the DataStore.
type StorageSetup struct {
	Schema     string       `json:"schema,omitempty"`
	User       string       `json:"user,omitempty"`
	LastUpdate *metav1.Time `json:"lastUpdate,omitempty"`
	Checksum   string       `json:"checksum,omitempty"`
}

// ObjectStatus names a Secret and sums its content up.
type ObjectStatus struct {
	SecretName string       `json:"secretName,omitempty"`
	LastUpdate *metav1.Time `json:"lastUpdate,omitempty"`
	Checksum   string       `json:"checksum,omitempty"`
}

// CertificatesStatus has one entry for each Secret with a certificate.
type CertificatesStatus struct {
	CA                     ObjectStatus `json:"ca,omitempty"`
	APIServer              ObjectStatus `json:"apiServer,omitempty"`
	APIServerKubeletClient ObjectStatus `json:"apiServerKubeletClient,omitempty"`
	FrontProxyCA           ObjectStatus `json:"frontProxyCA,omitempty"`
	FrontProxyClient       ObjectStatus `json:"frontProxyClient,omitempty"`
	SA                     ObjectStatus `json:"sa,omitempty"`
}

// KubeconfigsStatus has one entry for each Secret with a kubeconfig.
type KubeconfigsStatus struct {
	Admin             ObjectStatus `json:"admin,omitempty"`
	ControllerManager ObjectStatus `json:"controllerManager,omitempty"`
	Scheduler         ObjectStatus `json:"scheduler,omitempty"`
}

// KubernetesStatus is the Deployment, the Service and the version.
type KubernetesStatus struct {
	Version    VersionStatus    `json:"version,omitempty"`
	Deployment DeploymentStatus `json:"deployment,omitempty"`
	Service    ServiceStatus    `json:"service,omitempty"`
}

// VersionStatus is the version that runs.
type VersionStatus struct {
	Version string                  `json:"version,omitempty"`
	Status  KubernetesVersionStatus `json:"status,omitempty"`
}

// DeploymentStatus is the Deployment's own status and where it is. The fields
// are repeated here because the embedded type's list key is optional, which a
// CRD may not have.
type DeploymentStatus struct {
	ObservedGeneration  int64                        `json:"observedGeneration,omitempty"`
	Replicas            int32                        `json:"replicas,omitempty"`
	UpdatedReplicas     int32                        `json:"updatedReplicas,omitempty"`
	ReadyReplicas       int32                        `json:"readyReplicas,omitempty"`
	AvailableReplicas   int32                        `json:"availableReplicas,omitempty"`
	UnavailableReplicas int32                        `json:"unavailableReplicas,omitempty"`
	TerminatingReplicas *int32                       `json:"terminatingReplicas,omitempty"`
	Conditions          []appsv1.DeploymentCondition `json:"conditions,omitempty"`
	CollisionCount      *int32                       `json:"collisionCount,omitempty"`

	Selector   string       `json:"selector"`
	Name       string       `json:"name"`
	Namespace  string       `json:"namespace"`
	LastUpdate *metav1.Time `json:"lastUpdate,omitempty"`
}

// ServiceStatus is the Service's own status and where it is.
type ServiceStatus struct {
	corev1.ServiceStatus `json:",inline"`
	Name                 string `json:"name"`
	Namespace            string `json:"namespace"`
	Port                 int32  `json:"port"`
}

// KubeadmConfigStatus names the ConfigMap.
type KubeadmConfigStatus struct {
	ConfigmapName string       `json:"configmapName,omitempty"`
	LastUpdate    *metav1.Time `json:"lastUpdate,omitempty"`
	Checksum      string       `json:"checksum,omitempty"`
}

// KubeadmPhaseStatus is the state of kubeadm's phases.
type KubeadmPhaseStatus struct {
	BootstrapToken PhaseStatus `json:"bootstrapToken,omitempty"`
}

// PhaseStatus is one phase.
type PhaseStatus struct {
	Checksum   string       `json:"checksum,omitempty"`
	LastUpdate *metav1.Time `json:"lastUpdate,omitempty"`
}

// AddonsStatus is the state of the addons.
type AddonsStatus struct {
	CoreDNS      AddonStatus        `json:"coreDNS,omitempty"`
	KubeProxy    AddonStatus        `json:"kubeProxy,omitempty"`
	Konnectivity KonnectivityStatus `json:"konnectivity,omitempty"`
}

// AddonStatus is one addon.
type AddonStatus struct {
	Enabled    bool         `json:"enabled"`
	LastUpdate *metav1.Time `json:"lastUpdate,omitempty"`
}

// KonnectivityStatus is the state of the tunnel.
type KonnectivityStatus struct {
	Enabled            bool                    `json:"enabled"`
	ConfigMap          KonnectivityConfigMap   `json:"configMap,omitempty"`
	Certificate        ObjectStatus            `json:"certificate,omitempty"`
	Kubeconfig         ObjectStatus            `json:"kubeconfig,omitempty"`
	ServiceAccount     ObjectReference         `json:"sa,omitempty"`
	ClusterRoleBinding ObjectReference         `json:"clusterrolebinding,omitempty"`
	Agent              KonnectivityAgentStatus `json:"agent,omitempty"`
	Service            ServiceStatus           `json:"service,omitempty"`
}

// KonnectivityConfigMap names the egress selection.
type KonnectivityConfigMap struct {
	Name     string `json:"name,omitempty"`
	Checksum string `json:"checksum,omitempty"`
}

// ObjectReference names an object in the tenant.
type ObjectReference struct {
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// KonnectivityAgentStatus names the agent in the tenant.
type KonnectivityAgentStatus struct {
	Name       string       `json:"name,omitempty"`
	Namespace  string       `json:"namespace,omitempty"`
	Mode       string       `json:"mode,omitempty"`
	LastUpdate *metav1.Time `json:"lastUpdate,omitempty"`
}
