package capi

import (
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// paused tells whether the Cluster or the object asks not to be touched.
func paused(cluster *clusterv1.Cluster, object client.Object) bool {
	if cluster != nil && cluster.Spec.Paused != nil && *cluster.Spec.Paused {
		return true
	}
	_, annotated := object.GetAnnotations()[clusterv1.PausedAnnotation]
	return annotated
}

// isManagedByOthers tells whether another controller provides the object.
func isManagedByOthers(object client.Object) bool {
	_, labelled := object.GetLabels()[clusterv1.ManagedByAnnotation]
	if labelled {
		return true
	}
	_, annotated := object.GetAnnotations()[clusterv1.ManagedByAnnotation]
	return annotated
}
