package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MachineFinalizer keeps an AetherMachine until its virtual machine and leases
// are seen gone.
const MachineFinalizer = "aethermachine.infrastructure.cluster.x-k8s.io"

// AetherMachineSpec is a worker as its pool wants it.
type AetherMachineSpec struct {
	// providerID is aether://<tenant>/<machine ID>. Aether sets it, and the
	// kubelet registers its Node with the same one.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`

	// pool of the tenant the worker belongs to.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Pool string `json:"pool"`

	// class of the machine in the site.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Class string `json:"class"`

	// host is the Proxmox host that runs the worker.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Host string `json:"host"`

	// labels the kubelet registers its Node with.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	Labels map[string]string `json:"labels,omitempty"`

	// taints the kubelet registers its Node with.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Taints []corev1.Taint `json:"taints,omitempty"`
}

// AetherMachineStatus is the worker as it is.
type AetherMachineStatus struct {
	// initialization tells Cluster API core when the machine is there.
	// +optional
	Initialization Initialization `json:"initialization,omitzero"`

	// conditions of the machine; see the Condition constants.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// addresses of the machine.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Addresses []MachineAddress `json:"addresses,omitempty"`

	// failureDomain is the Proxmox host that runs the machine.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	FailureDomain string `json:"failureDomain,omitempty"`

	// machineID names the AetherVM that this machine has claimed.
	// +optional
	// +kubebuilder:validation:MaxLength=36
	MachineID string `json:"machineID,omitempty"`
}

// MachineAddress is one address of a machine.
type MachineAddress struct {
	// type is Hostname, InternalIP, ExternalIP, InternalDNS or ExternalDNS.
	// +required
	// +kubebuilder:validation:Enum=Hostname;ExternalIP;InternalIP;ExternalDNS;InternalDNS
	Type string `json:"type"`
	// address is the address itself.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Address string `json:"address"`
}

// AetherMachine is what Cluster API core sees of one worker.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels=cluster.x-k8s.io/v1beta2=v1alpha1
// +kubebuilder:resource:path=aethermachines,scope=Namespaced,categories=cluster-api,shortName=am
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.spec.host`
// +kubebuilder:printcolumn:name="Provisioned",type=boolean,JSONPath=`.status.initialization.provisioned`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="ProviderID",type=string,priority=1,JSONPath=`.spec.providerID`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AetherMachine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the worker as its pool wants it.
	// +required
	Spec AetherMachineSpec `json:"spec"`
	// status is the worker as it is.
	// +optional
	Status AetherMachineStatus `json:"status,omitzero"`
}

// AetherMachineList is a list of AetherMachines.
//
// +kubebuilder:object:root=true
type AetherMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AetherMachine `json:"items"`
}

// GetConditions returns the conditions.
func (m *AetherMachine) GetConditions() []metav1.Condition { return m.Status.Conditions }

// SetConditions replaces the conditions.
func (m *AetherMachine) SetConditions(conditions []metav1.Condition) {
	m.Status.Conditions = conditions
}

// AetherMachineTemplateSpec holds the machine that core copies.
type AetherMachineTemplateSpec struct {
	// template is the machine that core copies for each Machine.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="an AetherMachineTemplate cannot be changed: change the pool in the AetherCluster, and Aether makes a new template and rolls the workers"
	Template AetherMachineTemplateResource `json:"template"`
}

// AetherMachineTemplateResource is a machine to be copied.
type AetherMachineTemplateResource struct {
	// metadata that core copies to each AetherMachine.
	// +optional
	Metadata TemplateMetadata `json:"metadata,omitzero"`
	// spec that core copies to each AetherMachine.
	// +required
	Spec AetherMachineSpec `json:"spec"`
}

// TemplateMetadata has labels and annotations to be copied.
type TemplateMetadata struct {
	// labels to be copied.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// annotations to be copied.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// AetherMachineTemplateStatus tells the autoscaler what a machine would offer.
type AetherMachineTemplateStatus struct {
	// capacity that pods can use on a Node made from this template.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// nodeInfo of a Node made from this template.
	// +optional
	NodeInfo NodeInfo `json:"nodeInfo,omitzero"`
}

// NodeInfo describes the system of a Node.
type NodeInfo struct {
	// architecture as in the label kubernetes.io/arch.
	// +optional
	// +kubebuilder:validation:Enum=amd64;arm64
	Architecture string `json:"architecture,omitempty"`
	// operatingSystem as in the label kubernetes.io/os.
	// +optional
	// +kubebuilder:validation:Enum=linux
	OperatingSystem string `json:"operatingSystem,omitempty"`
}

// AetherMachineTemplate is what core makes AetherMachines from.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels=cluster.x-k8s.io/v1beta2=v1alpha1
// +kubebuilder:resource:path=aethermachinetemplates,scope=Namespaced,categories=cluster-api,shortName=amt
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.template.spec.pool`
// +kubebuilder:printcolumn:name="Class",type=string,JSONPath=`.spec.template.spec.class`
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.spec.template.spec.host`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AetherMachineTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec holds the machine that core copies.
	// +required
	Spec AetherMachineTemplateSpec `json:"spec"`
	// status tells the autoscaler what such a machine would offer.
	// +optional
	Status AetherMachineTemplateStatus `json:"status,omitzero"`
}

// AetherMachineTemplateList is a list of AetherMachineTemplates.
//
// +kubebuilder:object:root=true
type AetherMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AetherMachineTemplate `json:"items"`
}
