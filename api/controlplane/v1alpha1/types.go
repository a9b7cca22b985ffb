package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "controlplane.cluster.x-k8s.io", Version: "v1alpha1"}

// Finalizer keeps an AetherControlPlane until its pods are seen gone.
const Finalizer = "aethercontrolplane.controlplane.cluster.x-k8s.io"

// AvailableCondition is True when the control plane's API server answers.
const AvailableCondition = "Available"

// AddToScheme registers the kinds of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &AetherControlPlane{}, &AetherControlPlaneList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// AetherControlPlaneSpec is the control plane that is wanted.
type AetherControlPlaneSpec struct {
	// version of Kubernetes, as v1.35.4.
	// +required
	// +kubebuilder:validation:Pattern=`^v[0-9]+\.[0-9]+\.[0-9]+$`
	// +kubebuilder:validation:MaxLength=32
	Version string `json:"version"`
}

// AetherControlPlaneStatus mirrors the TenantControlPlane behind it.
type AetherControlPlaneStatus struct {
	// initialization tells Cluster API core when the API server can be used.
	// +optional
	Initialization Initialization `json:"initialization,omitzero"`
	// externalManagedControlPlane is always true: no Machine runs it. Core then
	// drains and deletes Nodes although no control plane Machine exists.
	// +optional
	ExternalManagedControlPlane *bool `json:"externalManagedControlPlane,omitempty"`
	// version that runs. Core holds scale-ups back while it differs from spec.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Version string `json:"version,omitempty"`
	// conditions: Available.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Initialization is the part of the status that Cluster API core waits for.
type Initialization struct {
	// controlPlaneInitialized is true once the API server accepts requests.
	// +optional
	ControlPlaneInitialized *bool `json:"controlPlaneInitialized,omitempty"`
}

// AetherControlPlane is a control plane that runs as pods under Kamaji.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels=cluster.x-k8s.io/v1beta2=v1alpha1
// +kubebuilder:resource:path=aethercontrolplanes,scope=Namespaced,categories=cluster-api,shortName=acp
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.spec.version`
// +kubebuilder:printcolumn:name="Installed",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Available",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AetherControlPlane struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the control plane that is wanted.
	// +required
	Spec AetherControlPlaneSpec `json:"spec"`
	// status mirrors the TenantControlPlane behind it.
	// +optional
	Status AetherControlPlaneStatus `json:"status,omitzero"`
}

// AetherControlPlaneList is a list of AetherControlPlanes.
//
// +kubebuilder:object:root=true
type AetherControlPlaneList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AetherControlPlane `json:"items"`
}
