package kamaji

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

// ensureVersionStatus copies the Deployment's status and sums it up in a word.
func (p *pass) ensureVersionStatus(ctx context.Context) (bool, error) {
	return p.setStatus(ctx, func(s *status) {
		word, installed := summarise(p.deployment, p.spec(), s.Kubernetes.Version.Version)
		s.Kubernetes.Version = v1alpha1.VersionStatus{Status: word, Version: installed}
		told := v1alpha1.DeploymentStatus{
			DeploymentStatus: *p.deployment.Status.DeepCopy(),
			Name:             p.deployment.Name, Namespace: p.deployment.Namespace,
			Selector: labelName + "=" + p.tcp.Name, LastUpdate: s.Kubernetes.Deployment.LastUpdate,
		}
		if !sameDeploymentStatus(told, s.Kubernetes.Deployment) {
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

func sameDeploymentStatus(a, b v1alpha1.DeploymentStatus) bool {
	if a.Name != b.Name || a.Selector != b.Selector || a.Namespace != b.Namespace {
		return false
	}
	return deploymentStatusEqual(a.DeploymentStatus, b.DeploymentStatus)
}

// deploymentStatusEqual compares through whole seconds, which is all that the
// status keeps of times.
func deploymentStatusEqual(a, b appsv1.DeploymentStatus) bool {
	a, b = *a.DeepCopy(), *b.DeepCopy()
	for _, list := range [][]appsv1.DeploymentCondition{a.Conditions, b.Conditions} {
		for i := range list {
			list[i].LastUpdateTime.Time = list[i].LastUpdateTime.Truncate(time.Second).UTC()
			list[i].LastTransitionTime.Time = list[i].LastTransitionTime.Truncate(time.Second).UTC()
		}
	}
	return semanticEqual(a, b)
}
