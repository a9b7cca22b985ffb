// Package v1alpha1 holds Aether's infrastructure kinds, served as
// infrastructure.cluster.x-k8s.io/v1alpha1: AetherCluster (a tenant),
// AetherMachine and AetherMachineTemplate (what Cluster API core sees of a
// worker), and AetherVM (the durable record of one virtual machine).
//
// The kinds keep the Cluster API contract v1beta2
// (cluster-api, docs/book/src/developer/providers/contracts).
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.cluster.x-k8s.io
package v1alpha1
