package v1alpha1

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TenantControlPlane is one tenant's control plane, run as pods.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=kamaji,shortName=tcp
// +kubebuilder:printcolumn:name="Version",type="string",JSONPath=".spec.kubernetes.version"
// +kubebuilder:printcolumn:name="Installed Version",type="string",JSONPath=".status.kubernetesResources.version.version"
// +kubebuilder:printcolumn:name="Status",type="string",JSONPath=".status.kubernetesResources.version.status"
// +kubebuilder:printcolumn:name="Control-Plane endpoint",type="string",JSONPath=".status.controlPlaneEndpoint"
// +kubebuilder:printcolumn:name="Kubeconfig",type="string",JSONPath=".status.kubeconfig.admin.secretName"
// +kubebuilder:printcolumn:name="Datastore",type="string",JSONPath=".status.storage.dataStoreName"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type TenantControlPlane struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   TenantControlPlaneSpec   `json:"spec,omitempty"`
	Status TenantControlPlaneStatus `json:"status,omitempty"`
}

// TenantControlPlaneList is a list of them.
//
// +kubebuilder:object:root=true
type TenantControlPlaneList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []TenantControlPlane `json:"items"`
}

// TenantControlPlaneSpec is what is wanted.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.dataStore) || has(self.dataStore)",message="unsetting the dataStore is not supported"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.dataStoreSchema) || has(self.dataStoreSchema)",message="unsetting the dataStoreSchema is not supported"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.dataStoreUsername) || has(self.dataStoreUsername)",message="unsetting the dataStoreUsername is not supported"
// +kubebuilder:validation:XValidation:rule="!has(self.networkProfile.loadBalancerSourceRanges) || size(self.networkProfile.loadBalancerSourceRanges) == 0 || self.controlPlane.service.serviceType == 'LoadBalancer'",message="LoadBalancer source ranges are supported only with LoadBalancer service type"
// +kubebuilder:validation:XValidation:rule="!has(self.networkProfile.loadBalancerClass) || self.controlPlane.service.serviceType == 'LoadBalancer'",message="LoadBalancerClass is supported only with LoadBalancer service type"
type TenantControlPlaneSpec struct {
	// +optional
	WritePermissions Permissions `json:"writePermissions,omitempty"`
	// +optional
	DataStore string `json:"dataStore,omitempty"`
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="changing the dataStoreSchema is not supported"
	DataStoreSchema string `json:"dataStoreSchema,omitempty"`
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="changing the dataStoreUsername is not supported"
	DataStoreUsername string         `json:"dataStoreUsername,omitempty"`
	ControlPlane      ControlPlane   `json:"controlPlane"`
	Kubernetes        KubernetesSpec `json:"kubernetes"`
	// +optional
	NetworkProfile NetworkProfileSpec `json:"networkProfile,omitempty"`
	// +optional
	Addons AddonsSpec `json:"addons,omitempty"`
}

// Permissions block writes in the tenant.
type Permissions struct {
	BlockCreation bool `json:"blockCreation,omitempty"`
	BlockUpdate   bool `json:"blockUpdate,omitempty"`
	BlockDeletion bool `json:"blockDeletion,omitempty"`
}

// Any tells whether anything is blocked.
func (p Permissions) Any() bool { return p.BlockCreation || p.BlockUpdate || p.BlockDeletion }

// AdditionalMetadata is put on an object.
type AdditionalMetadata struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ControlPlane says how the pods run and are reached.
type ControlPlane struct {
	// +optional
	Deployment DeploymentSpec `json:"deployment,omitempty"`
	Service    ServiceSpec    `json:"service"`
	// GatewayRoute needs the Gateway API, which the lab's cluster lacks.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Gateway *GatewaySpec `json:"gateway,omitempty"`
}

// GatewaySpec is a part of the API that is always refused here.
type GatewaySpec struct {
	Hostname string `json:"hostname,omitempty"`
}

// DeploymentSpec shapes the Deployment.
type DeploymentSpec struct {
	// +kubebuilder:default=2
	Replicas *int32 `json:"replicas,omitempty"`
	// +kubebuilder:default={registry:"registry.k8s.io",apiServerImage:"kube-apiserver",controllerManagerImage:"kube-controller-manager",schedulerImage:"kube-scheduler"}
	RegistrySettings RegistrySettings `json:"registrySettings,omitempty"`
	// +kubebuilder:default={type:"RollingUpdate",rollingUpdate:{maxUnavailable:0,maxSurge:"100%"}}
	Strategy appsv1.DeploymentStrategy `json:"strategy,omitempty"`
	// +kubebuilder:default="default"
	ServiceAccountName string              `json:"serviceAccountName,omitempty"`
	NodeSelector       map[string]string   `json:"nodeSelector,omitempty"`
	Tolerations        []corev1.Toleration `json:"tolerations,omitempty"`
	Resources          *ComponentResources `json:"resources,omitempty"`
	ExtraArgs          *ExtraArgs          `json:"extraArgs,omitempty"`
	// +optional
	AdditionalMetadata AdditionalMetadata `json:"additionalMetadata,omitempty"`
	// +optional
	PodAdditionalMetadata AdditionalMetadata `json:"podAdditionalMetadata,omitempty"`
}

// RegistrySettings say where images come from.
type RegistrySettings struct {
	// +kubebuilder:default="registry.k8s.io"
	Registry  string `json:"registry,omitempty"`
	TagSuffix string `json:"tagSuffix,omitempty"`
	// +kubebuilder:default="kube-apiserver"
	APIServerImage string `json:"apiServerImage,omitempty"`
	// +kubebuilder:default="kube-controller-manager"
	ControllerManagerImage string `json:"controllerManagerImage,omitempty"`
	// +kubebuilder:default="kube-scheduler"
	SchedulerImage string `json:"schedulerImage,omitempty"`
}

// ComponentResources are the containers' requests and limits.
type ComponentResources struct {
	APIServer         *corev1.ResourceRequirements `json:"apiServer,omitempty"`
	ControllerManager *corev1.ResourceRequirements `json:"controllerManager,omitempty"`
	Scheduler         *corev1.ResourceRequirements `json:"scheduler,omitempty"`
}

// ExtraArgs are added to the containers' arguments.
type ExtraArgs struct {
	APIServer         []string `json:"apiServer,omitempty"`
	ControllerManager []string `json:"controllerManager,omitempty"`
	Scheduler         []string `json:"scheduler,omitempty"`
}

// ServiceType is how the API server is exposed.
//
// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
type ServiceType string

// ServiceSpec shapes the Service.
type ServiceSpec struct {
	// +optional
	AdditionalMetadata AdditionalMetadata `json:"additionalMetadata,omitempty"`
	ServiceType        ServiceType        `json:"serviceType"`
}

// AdmissionController is the name of an admission plug-in of the API server.
//
// +kubebuilder:validation:Enum=AlwaysAdmit;AlwaysDeny;AlwaysPullImages;CertificateApproval;CertificateSigning;CertificateSubjectRestriction;DefaultIngressClass;DefaultStorageClass;DefaultTolerationSeconds;DenyEscalatingExec;DenyExecOnPrivileged;DenyServiceExternalIPs;EventRateLimit;ExtendedResourceToleration;ImagePolicyWebhook;LimitPodHardAntiAffinityTopology;LimitRanger;MutatingAdmissionWebhook;NamespaceAutoProvision;NamespaceExists;NamespaceLifecycle;NodeRestriction;OwnerReferencesPermissionEnforcement;PersistentVolumeClaimResize;PersistentVolumeLabel;PodNodeSelector;PodSecurity;PodSecurityPolicy;PodTolerationRestriction;Priority;ResourceQuota;RuntimeClass;SecurityContextDeny;ServiceAccount;StorageObjectInUseProtection;TaintNodesByCondition;ValidatingAdmissionWebhook
type AdmissionController string

// KubernetesSpec is the tenant's Kubernetes.
type KubernetesSpec struct {
	Version string      `json:"version"`
	Kubelet KubeletSpec `json:"kubelet"`
	// +kubebuilder:default=CertificateApproval;CertificateSigning;CertificateSubjectRestriction;DefaultIngressClass;DefaultStorageClass;DefaultTolerationSeconds;LimitRanger;MutatingAdmissionWebhook;NamespaceLifecycle;PersistentVolumeClaimResize;Priority;ResourceQuota;RuntimeClass;ServiceAccount;StorageObjectInUseProtection;TaintNodesByCondition;ValidatingAdmissionWebhook
	AdmissionControllers []AdmissionController `json:"admissionControllers,omitempty"`
}

// KubeletSpec is what kubelet-config says.
type KubeletSpec struct {
	// +kubebuilder:default={InternalIP,ExternalIP,Hostname}
	PreferredAddressTypes []string `json:"preferredAddressTypes,omitempty"`
	// +kubebuilder:validation:Enum=systemd;cgroupfs
	CGroupFS string `json:"cgroupfs,omitempty"`
}

// NetworkProfileSpec is the tenant's addresses.
type NetworkProfileSpec struct {
	// +kubebuilder:validation:items:Schemaless
	LoadBalancerSourceRanges []string `json:"loadBalancerSourceRanges,omitempty"`
	LoadBalancerClass        *string  `json:"loadBalancerClass,omitempty"`
	Address                  string   `json:"address,omitempty"`
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self)",message="advertiseAddress must be a valid IP address"
	// +kubebuilder:validation:MaxLength=64
	AdvertiseAddress string `json:"advertiseAddress,omitempty"`
	// +kubebuilder:default=6443
	Port     int32    `json:"port,omitempty"`
	CertSANs []string `json:"certSANs,omitempty"`
	// +kubebuilder:default="10.96.0.0/16"
	ServiceCIDR  string   `json:"serviceCidr,omitempty"`
	ServiceCIDRs []string `json:"serviceCidrs,omitempty"`
	// +kubebuilder:default="10.244.0.0/16"
	// +kubebuilder:validation:XValidation:rule="self == '' || isCIDR(self)",message="podCidr must be empty or a valid CIDR"
	// +kubebuilder:validation:MaxLength=64
	PodCIDR string `json:"podCidr,omitempty"`
	// +kubebuilder:validation:XValidation:rule="self.all(c, isCIDR(c))",message="all podCidrs entries must be valid CIDRs"
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	PodCIDRs      []string `json:"podCidrs,omitempty"`
	DNSServiceIPs []string `json:"dnsServiceIPs,omitempty"`
	// +kubebuilder:default="cluster.local"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="changing the cluster domain is not supported"
	ClusterDomain string `json:"clusterDomain,omitempty"`
}

// AddonsSpec switches parts of the tenant side on.
type AddonsSpec struct {
	CoreDNS      *AddonSpec        `json:"coreDNS,omitempty"`
	Konnectivity *KonnectivitySpec `json:"konnectivity,omitempty"`
	KubeProxy    *AddonSpec        `json:"kubeProxy,omitempty"`
}

// AddonSpec is an addon with an image.
type AddonSpec struct {
	ImageRepository string `json:"imageRepository,omitempty"`
	ImageTag        string `json:"imageTag,omitempty"`
}

// KonnectivitySpec is the tunnel from the API server to the nodes.
type KonnectivitySpec struct {
	// +kubebuilder:default={image:"registry.k8s.io/kas-network-proxy/proxy-server",port:8132}
	KonnectivityServerSpec KonnectivityServerSpec `json:"server,omitempty"`
	// +kubebuilder:default={image:"registry.k8s.io/kas-network-proxy/proxy-agent",mode:"DaemonSet",hostNetwork:false}
	KonnectivityAgentSpec KonnectivityAgentSpec `json:"agent,omitempty"`
}

// KonnectivityServerSpec is the container beside the API server.
type KonnectivityServerSpec struct {
	// +kubebuilder:default=8132
	Port    int32  `json:"port,omitempty"`
	Version string `json:"version,omitempty"`
	// +kubebuilder:default="registry.k8s.io/kas-network-proxy/proxy-server"
	Image     string                       `json:"image,omitempty"`
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`
	ExtraArgs []string                     `json:"extraArgs,omitempty"`
}

// KonnectivityAgentSpec is the agent on the nodes.
type KonnectivityAgentSpec struct {
	// +kubebuilder:default="registry.k8s.io/kas-network-proxy/proxy-agent"
	Image   string `json:"image,omitempty"`
	Version string `json:"version,omitempty"`
	// +kubebuilder:default={{key:"CriticalAddonsOnly",operator:"Exists"}}
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	ExtraArgs   []string            `json:"extraArgs,omitempty"`
	// +kubebuilder:default=false
	HostNetwork bool `json:"hostNetwork"`
	// +kubebuilder:default="DaemonSet"
	// +kubebuilder:validation:Enum=DaemonSet;Deployment
	Mode     string `json:"mode,omitempty"`
	Replicas *int32 `json:"replicas,omitempty"`
}
