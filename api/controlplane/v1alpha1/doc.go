// Package v1alpha1 holds AetherControlPlane, served as
// controlplane.cluster.x-k8s.io/v1alpha1: what Cluster API core needs to see
// of a control plane that runs as pods, so that it drains workers, deletes
// their Nodes and holds scale-ups back while the version is not stable.
//
// +kubebuilder:object:generate=true
// +groupName=controlplane.cluster.x-k8s.io
package v1alpha1
