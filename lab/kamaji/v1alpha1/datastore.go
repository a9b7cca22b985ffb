package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DriverEtcd is the only driver the stand-in can talk to.
const DriverEtcd = "etcd"

// DataStore is a store that tenants share.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=kamaji
// +kubebuilder:printcolumn:name="Driver",type="string",JSONPath=".spec.driver"
// +kubebuilder:printcolumn:name="Ready",type="boolean",JSONPath=".status.ready"
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp"
type DataStore struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   DataStoreSpec   `json:"spec,omitempty"`
	Status DataStoreStatus `json:"status,omitempty"`
}

// DataStoreList is a list of them.
//
// +kubebuilder:object:root=true
type DataStoreList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DataStore `json:"items"`
}

// DataStoreSpec says how the store is reached.
//
// +kubebuilder:validation:XValidation:rule="self.driver != 'etcd' || (has(self.tlsConfig.certificateAuthority.privateKey) && (has(self.tlsConfig.certificateAuthority.privateKey.secretReference) || has(self.tlsConfig.certificateAuthority.privateKey.content)))",message="certificateAuthority privateKey must have secretReference or content when driver is etcd"
// +kubebuilder:validation:XValidation:rule="self.driver != 'etcd' || (has(self.tlsConfig.clientCertificate) && (has(self.tlsConfig.clientCertificate.privateKey.secretReference) || has(self.tlsConfig.clientCertificate.privateKey.content)))",message="clientCertificate privateKey must have secretReference or content when driver is etcd"
// +kubebuilder:validation:XValidation:rule="self.driver == 'etcd' || has(self.tlsConfig) || has(self.basicAuth)",message="When driver is not etcd, either tlsConfig or basicAuth must be provided"
type DataStoreSpec struct {
	// +kubebuilder:validation:Enum=etcd;MySQL;PostgreSQL;NATS
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="Datastore driver is immutable"
	Driver string `json:"driver"`
	// Endpoints are host:port, without a scheme.
	//
	// +kubebuilder:validation:MinItems=1
	Endpoints []string   `json:"endpoints"`
	BasicAuth *BasicAuth `json:"basicAuth,omitempty"`
	TLSConfig *TLSConfig `json:"tlsConfig,omitempty"`
}

// BasicAuth is for stores other than etcd.
type BasicAuth struct {
	Username ContentRef `json:"username"`
	Password ContentRef `json:"password"`
}

// TLSConfig holds the store's CA and a client certificate of its root user.
type TLSConfig struct {
	CertificateAuthority CertKeyPair        `json:"certificateAuthority"`
	ClientCertificate    *ClientCertificate `json:"clientCertificate,omitempty"`
}

// ClientCertificate is a certificate with its key.
type ClientCertificate struct {
	Certificate ContentRef `json:"certificate"`
	PrivateKey  ContentRef `json:"privateKey"`
}

// CertKeyPair is a certificate and, perhaps, its key.
type CertKeyPair struct {
	Certificate ContentRef  `json:"certificate"`
	PrivateKey  *ContentRef `json:"privateKey,omitempty"`
}

// ContentRef is content in place or in a Secret.
type ContentRef struct {
	Content         []byte           `json:"content,omitempty"`
	SecretReference *SecretReference `json:"secretReference,omitempty"`
}

// SecretReference names a key of a Secret.
type SecretReference struct {
	corev1.SecretReference `json:",inline"`
	// +kubebuilder:validation:MinLength=1
	KeyPath string `json:"keyPath"`
}

// DataStoreStatus is what Kamaji found.
type DataStoreStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Ready              bool               `json:"ready"`
	UsedBy             []string           `json:"usedBy,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}
