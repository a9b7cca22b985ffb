package kamaji

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	kindTCP       = "TenantControlPlane"
	kindDataStore = "DataStore"

	// labelTenant is on everything that Kamaji makes for a control plane.
	labelTenant = "kamaji.clastix.io/name"
)

func groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "kamaji.clastix.io", Version: "v1alpha1"}
}

// TenantControlPlane is the part of Kamaji's kind that Aether writes.
type TenantControlPlane struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        Metadata               `json:"metadata"`
	Spec            TenantControlPlaneSpec `json:"spec"`
}

// Metadata is the part of an object's metadata that Aether writes.
type Metadata struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// TenantControlPlaneSpec is Kamaji's spec.
type TenantControlPlaneSpec struct {
	DataStore      string         `json:"dataStore"`
	ControlPlane   controlPlane   `json:"controlPlane"`
	Kubernetes     kubernetesSpec `json:"kubernetes"`
	NetworkProfile networkProfile `json:"networkProfile"`
	Addons         addons         `json:"addons"`
}

type controlPlane struct {
	Deployment deployment `json:"deployment"`
	Service    service    `json:"service"`
}

type deployment struct {
	Replicas         int32            `json:"replicas"`
	RegistrySettings registrySettings `json:"registrySettings"`
}

type registrySettings struct {
	Registry string `json:"registry"`
}

type service struct {
	ServiceType        string             `json:"serviceType"`
	AdditionalMetadata additionalMetadata `json:"additionalMetadata"`
}

type additionalMetadata struct {
	Annotations map[string]string `json:"annotations,omitempty"`
}

type kubernetesSpec struct {
	Version              string   `json:"version"`
	Kubelet              kubelet  `json:"kubelet"`
	AdmissionControllers []string `json:"admissionControllers"`
}

type kubelet struct {
	CGroupFS              string   `json:"cgroupfs"`
	PreferredAddressTypes []string `json:"preferredAddressTypes"`
}

type networkProfile struct {
	AdvertiseAddress string   `json:"advertiseAddress"`
	Port             int32    `json:"port"`
	CertSANs         []string `json:"certSANs"`
	ServiceCIDR      string   `json:"serviceCidr"`
	ServiceCIDRs     []string `json:"serviceCidrs"`
	PodCIDR          string   `json:"podCidr"`
	PodCIDRs         []string `json:"podCidrs"`
	DNSServiceIPs    []string `json:"dnsServiceIPs"`
	ClusterDomain    string   `json:"clusterDomain"`
}

type addons struct {
	CoreDNS      coreDNS      `json:"coreDNS"`
	Konnectivity konnectivity `json:"konnectivity"`
}

type coreDNS struct {
	ImageRepository string `json:"imageRepository"`
	ImageTag        string `json:"imageTag"`
}

type konnectivity struct {
	Server konnectivityServer `json:"server"`
	Agent  konnectivityAgent  `json:"agent"`
}

type konnectivityServer struct {
	Image   string `json:"image"`
	Version string `json:"version"`
	Port    int32  `json:"port"`
}

type konnectivityAgent struct {
	Image       string              `json:"image"`
	Version     string              `json:"version"`
	Mode        string              `json:"mode"`
	HostNetwork bool                `json:"hostNetwork"`
	Tolerations []corev1.Toleration `json:"tolerations"`
}

// observed is the part of the kind that Aether reads.
type observed struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		DataStore  string `json:"dataStore"`
		Kubernetes struct {
			Version              string   `json:"version"`
			AdmissionControllers []string `json:"admissionControllers"`
		} `json:"kubernetes"`
		NetworkProfile struct {
			AdvertiseAddress string `json:"advertiseAddress"`
			Port             int32  `json:"port"`
		} `json:"networkProfile"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration   int64  `json:"observedGeneration"`
		ControlPlaneEndpoint string `json:"controlPlaneEndpoint"`
		Kubernetes           struct {
			Version struct {
				Version string `json:"version"`
				Status  string `json:"status"`
			} `json:"version"`
		} `json:"kubernetesResources"`
		Storage struct {
			DataStoreName string `json:"dataStoreName"`
		} `json:"storage"`
		Addons struct {
			Konnectivity struct {
				Enabled bool `json:"enabled"`
			} `json:"konnectivity"`
		} `json:"addons"`
	} `json:"status"`
}

// observedStore is the part of a DataStore that Aether reads.
type observedStore struct {
	Status struct {
		Ready      bool               `json:"ready"`
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}
