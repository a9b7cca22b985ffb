package kamaji

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

// ensureVersionStatus copies the Deployment's status and sums it up in a word.
func (p *pass) ensureVersionStatus(ctx context.Context) (bool, error) {
	return p.setStatus(ctx, func(s *status) {
		word, installed := summarise(p.deployment, p.spec(), s.Kubernetes.Version.Version)
		s.Kubernetes.Version = v1alpha1.VersionStatus{Status: word, Version: installed}
		told := deploymentStatus(p.deployment, labelName+"="+p.tcp.Name)
		told.LastUpdate = s.Kubernetes.Deployment.LastUpdate
		if !equality.Semantic.DeepEqual(told, s.Kubernetes.Deployment) {
			told.LastUpdate = now()
			s.Kubernetes.Deployment = told
		}
	})
}

// summarise returns the status word and the installed version; the first rule
// that matches wins.
func summarise(deployment *appsv1.Deployment, spec *v1alpha1.TenantControlPlaneSpec, installed string) (v1alpha1.KubernetesVersionStatus, string) {
	wanted := spec.Kubernetes.Version
	switch {
	case ptr.Deref(spec.ControlPlane.Deployment.Replicas, 1) == 0:
		return v1alpha1.VersionSleeping, wanted
	case deployment.Status.ReadyReplicas == 0:
		return v1alpha1.VersionNotReady, installed
	case spec.WritePermissions.Any():
		return v1alpha1.VersionWriteLimited, installed
	case rolledOut(deployment):
		return v1alpha1.VersionReady, wanted
	case installed != "" && installed != wanted:
		return v1alpha1.VersionUpgrading, installed
	case installed == "":
		return v1alpha1.VersionProvisioning, installed
	default:
		return v1alpha1.VersionUnknown, installed
	}
}

func rolledOut(deployment *appsv1.Deployment) bool {
	s, wanted := deployment.Status, ptr.Deref(deployment.Spec.Replicas, 1)
	return s.ObservedGeneration == deployment.Generation && s.UnavailableReplicas == 0 &&
		s.UpdatedReplicas == wanted && s.ReadyReplicas == wanted && s.Replicas == wanted
}

// deploymentStatus copies a Deployment's status. Times lose what is below a
// second, as they do in the API: the copy can then be compared.
func deploymentStatus(deployment *appsv1.Deployment, selector string) v1alpha1.DeploymentStatus {
	s := deployment.Status.DeepCopy()
	for i := range s.Conditions {
		s.Conditions[i].LastUpdateTime = s.Conditions[i].LastUpdateTime.Rfc3339Copy()
		s.Conditions[i].LastTransitionTime = s.Conditions[i].LastTransitionTime.Rfc3339Copy()
	}
	return v1alpha1.DeploymentStatus{
		ObservedGeneration: s.ObservedGeneration, Replicas: s.Replicas, UpdatedReplicas: s.UpdatedReplicas,
		ReadyReplicas: s.ReadyReplicas, AvailableReplicas: s.AvailableReplicas, UnavailableReplicas: s.UnavailableReplicas,
		TerminatingReplicas: s.TerminatingReplicas, Conditions: s.Conditions, CollisionCount: s.CollisionCount,
		Name: deployment.Name, Namespace: deployment.Namespace, Selector: selector,
	}
}
