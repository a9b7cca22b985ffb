// Package v1alpha1 holds the Go types of Kamaji's API group
// kamaji.clastix.io/v1alpha1 as far as the lab's stand-in serves it: field
// names, defaults and validation as observed on the real one. The CRDs in
// lab/kamaji/crds and the deep-copy code are generated from them:
//
//	controller-gen object crd:allowDangerousTypes=true paths=./lab/kamaji/v1alpha1 output:crd:dir=lab/kamaji/crds
//
// The product does not import this package: it has types of its own, so that a
// field the stand-in forgot is seen by the API server's strict decoding.
//
// +kubebuilder:object:generate=true
// +groupName=kamaji.clastix.io
package v1alpha1
