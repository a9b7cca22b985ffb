package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterFinalizer keeps an AetherCluster until its virtual machines, leases
// and secrets are seen gone.
const ClusterFinalizer = "aethercluster.infrastructure.cluster.x-k8s.io"

// AetherClusterSpec is what a tenant asks for.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.network) || (has(self.network) && self.network == oldSelf.network)",message="network cannot be changed once set: the addresses of the proxy and of all workers come from it; make a new tenant instead"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.clusterNetwork) || (has(self.clusterNetwork) && self.clusterNetwork == oldSelf.clusterNetwork)",message="clusterNetwork cannot be changed once set: certificates, kubelets and Cilium were built with it; make a new tenant instead"
type AetherClusterSpec struct {
	// version of Kubernetes for the control plane and the kubelets, one that
	// the site supports.
	// +required
	// +kubebuilder:validation:Pattern=`^v[0-9]+\.[0-9]+\.[0-9]+$`
	// +kubebuilder:validation:MaxLength=32
	Version string `json:"version"`

	// network is the name of the site's network that the proxy and the workers
	// are on. Empty means the site's only tenant network.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Network string `json:"network,omitempty"`

	// clusterNetwork has the tenant's own address ranges. Empty fields take the
	// site's defaults.
	// +optional
	ClusterNetwork ClusterNetwork `json:"clusterNetwork,omitzero"`

	// controlPlane sizes the hosted control plane.
	// +optional
	ControlPlane ControlPlaneSize `json:"controlPlane,omitzero"`

	// controlPlaneEndpoint is the proxy address that workers and people dial.
	// Aether sets it; it never changes afterwards.
	// +optional
	// +kubebuilder:validation:XValidation:rule="oldSelf.host == '' || self == oldSelf",message="controlPlaneEndpoint is set by Aether and cannot be changed: certificates and kubeconfigs carry it"
	ControlPlaneEndpoint APIEndpoint `json:"controlPlaneEndpoint,omitzero"`

	// pools are the groups of equal workers. A tenant without pools gets a
	// control plane that no node has proven yet.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=20
	Pools []Pool `json:"pools,omitempty"`
}

// ClusterNetwork has a tenant's pod and service ranges.
type ClusterNetwork struct {
	// podCIDR is the IPv4 range of the pods, as 10.244.0.0/16.
	// +optional
	// +kubebuilder:validation:MaxLength=18
	PodCIDR string `json:"podCIDR,omitempty"`
	// serviceCIDR is the IPv4 range of the services, as 10.96.0.0/16.
	// +optional
	// +kubebuilder:validation:MaxLength=18
	ServiceCIDR string `json:"serviceCIDR,omitempty"`
	// dnsDomain is the domain of the services, as cluster.local.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	DNSDomain string `json:"dnsDomain,omitempty"`
}

// ControlPlaneSize sizes the hosted control plane.
type ControlPlaneSize struct {
	// replicas of the control plane pods.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5
	Replicas *int32 `json:"replicas,omitempty"`
}

// APIEndpoint is a host and port of an API server.
type APIEndpoint struct {
	// host is an IP address or name.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host,omitempty"`
	// port of the API server.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

// Pool is a group of equal workers.
//
// +kubebuilder:validation:XValidation:rule="!has(self.maxSize) || !has(self.minSize) || self.minSize <= self.maxSize",message="minSize must not be greater than maxSize"
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || !has(self.maxSize) || self.replicas <= self.maxSize",message="replicas must not be greater than maxSize"
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || !has(self.minSize) || self.replicas >= self.minSize",message="replicas must not be less than minSize"
type Pool struct {
	// name of the pool, unique in the tenant.
	// +required
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=20
	Name string `json:"name"`

	// class is the name of a machine class of the site: cores, memory, disk.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Class string `json:"class"`

	// replicas the pool starts with, over all hosts. Afterwards only a person
	// (pool scale) or the autoscaler changes the number.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`

	// minSize is the least number of workers, over all hosts.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MinSize *int32 `json:"minSize,omitempty"`

	// maxSize is the greatest number of workers, over all hosts.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	MaxSize *int32 `json:"maxSize,omitempty"`

	// hosts are the Proxmox hosts that may run the pool's workers. Empty means
	// all hosts of the site that have a worker template.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	Hosts []string `json:"hosts,omitempty"`

	// labels for the pool's Nodes. A kubelet may set only some labels by
	// itself; the others are written by Cluster API core.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	Labels map[string]string `json:"labels,omitempty"`

	// taints the pool's Nodes register with.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Taints []corev1.Taint `json:"taints,omitempty"`
}

// AetherClusterStatus is what Aether made of the spec.
type AetherClusterStatus struct {
	// initialization tells Cluster API core when the infrastructure is there.
	// +optional
	Initialization Initialization `json:"initialization,omitzero"`

	// conditions of the tenant; see the Condition constants.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// failureDomains are the Proxmox hosts that may run workers.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	FailureDomains []FailureDomain `json:"failureDomains,omitempty"`

	// observedGeneration is the generation the last completed workflow applied.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// proxy is the tenant's Envoy VM.
	// +optional
	Proxy ProxyStatus `json:"proxy,omitzero"`

	// managementEndpoint is the API server's address on the management network,
	// for Cluster API core, the autoscaler and Aether itself.
	// +optional
	ManagementEndpoint APIEndpoint `json:"managementEndpoint,omitzero"`

	// kubeconfigSecret names the Secret with the published kubeconfig.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	KubeconfigSecret string `json:"kubeconfigSecret,omitempty"`
}

// Initialization is the part of a status that Cluster API core waits for.
type Initialization struct {
	// provisioned is true once the infrastructure is ready to be used.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// FailureDomain is one place where machines can fail together.
type FailureDomain struct {
	// name of the Proxmox host.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name"`
	// controlPlane tells whether control plane machines may run here: never,
	// since control planes are pods.
	// +optional
	ControlPlane *bool `json:"controlPlane,omitempty"`
}

// ProxyStatus is the tenant's proxy as it is now.
type ProxyStatus struct {
	// address of the proxy on the tenant's network.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	Address string `json:"address,omitempty"`
	// generation of the proxy VM that owns the address; a replacement counts up.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// machine is the machine ID of the proxy VM.
	// +optional
	// +kubebuilder:validation:MaxLength=36
	Machine string `json:"machine,omitempty"`
	// configVersion is the last configuration the proxy acknowledged.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	ConfigVersion string `json:"configVersion,omitempty"`
}

// AetherCluster is a tenant: a managed Kubernetes cluster and everything
// beneath it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels=cluster.x-k8s.io/v1beta2=v1alpha1
// +kubebuilder:resource:path=aetherclusters,scope=Namespaced,categories=cluster-api,shortName=actl
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.spec.version`
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.spec.controlPlaneEndpoint.host`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 32 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="the name of a tenant must be a DNS label that starts with a letter and has at most 32 characters: it is part of VM, Node and Cilium cluster names"
type AetherCluster struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the tenant asks for.
	// +required
	Spec AetherClusterSpec `json:"spec"`
	// status is what Aether made of it.
	// +optional
	Status AetherClusterStatus `json:"status,omitzero"`
}

// AetherClusterList is a list of AetherClusters.
//
// +kubebuilder:object:root=true
type AetherClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AetherCluster `json:"items"`
}

// GetConditions returns the conditions.
func (c *AetherCluster) GetConditions() []metav1.Condition { return c.Status.Conditions }

// SetConditions replaces the conditions.
func (c *AetherCluster) SetConditions(conditions []metav1.Condition) {
	c.Status.Conditions = conditions
}
