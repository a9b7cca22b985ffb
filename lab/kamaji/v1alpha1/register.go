package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is Kamaji's API group.
const GroupName = "kamaji.clastix.io"

// GroupVersion returns the group and the only version it has.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}
}

// AddToScheme registers the types of this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(),
		&TenantControlPlane{}, &TenantControlPlaneList{}, &DataStore{}, &DataStoreList{})
	metav1.AddToGroupVersion(scheme, GroupVersion())
	return nil
}
