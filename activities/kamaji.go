package activities

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	controlplanev1 "aether.internal/aether/api/controlplane/v1alpha1"
	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/kamaji"
)

// Kamaji makes and removes hosted control planes.
type Kamaji struct {
	Platform
	ControlPlanes *kamaji.Client
}

// controlPlaneRef names the tenant's TenantControlPlane.
func controlPlaneRef(tenant string) kamaji.Ref {
	return kamaji.Ref{Namespace: domain.TenantNamespace(tenant), Name: tenant}
}

// controlPlaneSpec is the control plane that a tenant wants.
func (a *Kamaji) controlPlaneSpec(tenant *v1alpha1.AetherCluster) (kamaji.Spec, error) {
	proxy, err := netip.ParseAddr(tenant.Spec.ControlPlaneEndpoint.Host)
	if err != nil {
		return kamaji.Spec{}, fmt.Errorf("the proxy address of tenant %s is not leased yet: %w", tenant.Name, errWaiting)
	}
	pods, err := netip.ParsePrefix(tenant.Spec.ClusterNetwork.PodCIDR)
	if err != nil {
		return kamaji.Spec{}, refused("spec.clusterNetwork.podCIDR: %v", err)
	}
	services, err := netip.ParsePrefix(tenant.Spec.ClusterNetwork.ServiceCIDR)
	if err != nil {
		return kamaji.Spec{}, refused("spec.clusterNetwork.serviceCIDR: %v", err)
	}
	s := a.Site.Spec
	return kamaji.Spec{
		Ref:          controlPlaneRef(tenant.Name),
		Labels:       map[string]string{domain.TenantLabel: tenant.Name, domain.CreatedByLabel: domain.FieldManager},
		Version:      tenant.Spec.Version,
		Replicas:     domain.Tenant{Name: tenant.Name, Spec: tenant.Spec}.Replicas(),
		DataStore:    s.Defaults.DataStore,
		ProxyAddress: proxy,
		ServiceCIDR:  services,
		PodCIDR:      pods,
		DNSDomain:    tenant.Spec.ClusterNetwork.DNSDomain,
		Registry:     s.Images.ControlPlane,
		CoreDNS:      kamaji.Image{Repository: s.Images.CoreDNS, Tag: s.Versions.CoreDNS},
		Konnectivity: kamaji.Konnectivity{ServerRepository: s.Images.KonnectivityServer, AgentRepository: s.Images.KonnectivityAgent, Version: s.Versions.Konnectivity},
	}, nil
}

// ApplyControlPlane writes the tenant's TenantControlPlane. It is repeatable.
// What Kamaji refuses is final.
func (a *Kamaji) ApplyControlPlane(ctx context.Context, in TenantRef) error {
	tenant, err := a.tenant(ctx, in.Tenant)
	if err != nil {
		return classify(err)
	}
	spec, err := a.controlPlaneSpec(tenant)
	if err != nil {
		return classify(err)
	}
	return classify(a.ControlPlanes.Apply(ctx, spec))
}

// checkPause is the pause between two looks at a control plane. Its parts are
// spread over two clusters, so there is no one thing to watch.
const checkPause = 500 * time.Millisecond

// WaitControlPlane waits until everything a usable control plane needs is seen:
// Kamaji's own word comes seconds too early and tells no failure. It is
// repeatable.
func (a *Kamaji) WaitControlPlane(ctx context.Context, in TenantRef) error {
	tenant, err := a.tenant(ctx, in.Tenant)
	if err != nil {
		return classify(err)
	}
	spec, err := a.controlPlaneSpec(tenant)
	if err != nil {
		return classify(err)
	}
	for {
		report, err := a.ControlPlanes.Check(ctx, spec.Ref, kamaji.WantOf(spec))
		switch {
		case err == nil && report.Ready():
			return nil
		case err == nil:
			tell(ctx, "the control plane: "+report.String(), "")
		case errors.Is(err, kamaji.ErrUnavailable) && ctx.Err() == nil:
			tell(ctx, "the management API server", err.Error())
		default:
			return classify(err)
		}
		if err := pause(ctx, checkPause); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// PublishedKubeconfigSecret is the Secret in the tenant's namespace with the
// kubeconfig for the tenant's people.
func PublishedKubeconfigSecret(tenant string) string { return tenant + "-user-kubeconfig" }

// PublishControlPlane writes both kubeconfig Secrets, records the management
// endpoint, and tells Cluster API core that the control plane is there. It is
// repeatable.
func (a *Kamaji) PublishControlPlane(ctx context.Context, in TenantRef) error {
	return classify(a.publishControlPlane(ctx, in.Tenant))
}

func (a *Kamaji) publishControlPlane(ctx context.Context, name string) error {
	tenant, err := a.tenant(ctx, name)
	if err != nil {
		return err
	}
	spec, err := a.controlPlaneSpec(tenant)
	if err != nil {
		return err
	}
	files, err := a.ControlPlanes.Kubeconfigs(ctx, spec.Ref, kamaji.WantOf(spec))
	if err != nil {
		return err
	}
	status, err := a.ControlPlanes.Status(ctx, spec.Ref)
	if err != nil {
		return err
	}
	for secretName, content := range map[string]kamaji.Kubeconfig{
		ManagementKubeconfigSecret(name): files.Management,
		PublishedKubeconfigSecret(name):  files.Published,
	} {
		if err := a.writeKubeconfig(ctx, tenant, secretName, content); err != nil {
			return err
		}
	}
	if err := a.reportControlPlane(ctx, name, status.Installed); err != nil {
		return err
	}
	patch := client.MergeFrom(tenant.DeepCopy())
	tenant.Status.ManagementEndpoint = v1alpha1.APIEndpoint{Host: status.Address, Port: domain.APIServerPort}
	tenant.Status.KubeconfigSecret = PublishedKubeconfigSecret(name)
	if err := a.Kube.Status().Patch(ctx, tenant, patch); err != nil {
		return fmt.Errorf("record the management endpoint of tenant %s: %w", name, err)
	}
	return nil
}

// writeKubeconfig writes one Secret. The label with the cluster's name is what
// lets core find it.
func (a *Kamaji) writeKubeconfig(ctx context.Context, tenant *v1alpha1.AetherCluster, name string, content kamaji.Kubeconfig) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: tenant.Namespace}}
	_, err := controllerutil.CreateOrPatch(ctx, a.Kube, secret, func() error {
		secret.Labels = map[string]string{domain.TenantLabel: tenant.Name, clusterv1.ClusterNameLabel: tenant.Name}
		if secret.CreationTimestamp.IsZero() {
			secret.Type = clusterv1.ClusterSecretType
		}
		secret.Data = map[string][]byte{KubeconfigKey: content}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write Secret %s: %w", name, err)
	}
	return nil
}

// reportControlPlane mirrors the control plane into the AetherControlPlane.
func (a *Kamaji) reportControlPlane(ctx context.Context, tenant, version string) error {
	object := &controlplanev1.AetherControlPlane{}
	err := a.Kube.Get(ctx, client.ObjectKey{Namespace: domain.TenantNamespace(tenant), Name: tenant}, object)
	if err != nil {
		return fmt.Errorf("read AetherControlPlane %s: %w", tenant, err)
	}
	patch := client.MergeFrom(object.DeepCopy())
	object.Status.ExternalManagedControlPlane = new(true)
	object.Status.Initialization.ControlPlaneInitialized = new(true)
	if !strings.HasPrefix(version, "v") {
		version = "v" + version
	}
	object.Status.Version = version
	meta.SetStatusCondition(&object.Status.Conditions, metav1.Condition{
		Type: controlplanev1.AvailableCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady,
		Message: "The API server answers and its controllers work", ObservedGeneration: object.Generation,
	})
	if err := a.Kube.Status().Patch(ctx, object, patch); err != nil {
		return fmt.Errorf("write status of AetherControlPlane %s: %w", tenant, err)
	}
	return nil
}

// DeleteControlPlane deletes the tenant's TenantControlPlane and its
// kubeconfigs and returns once its pods are gone. It is repeatable. It never
// strips a finalizer; what holds the object is told in the heartbeats.
func (a *Kamaji) DeleteControlPlane(ctx context.Context, in TenantRef) error {
	return insist(a.deleteControlPlane(ctx, in.Tenant))
}

func (a *Kamaji) deleteControlPlane(ctx context.Context, tenant string) error {
	ref := controlPlaneRef(tenant)
	if err := a.ControlPlanes.Delete(ctx, ref); err != nil {
		return err
	}
	err := a.ControlPlanes.WaitGone(ctx, ref, func(left []kamaji.Remainder) {
		texts := make([]string, 0, len(left))
		for _, one := range left {
			texts = append(texts, one.String())
		}
		tell(ctx, "the control plane to be gone", strings.Join(texts, "; "))
	})
	if err != nil {
		return err
	}
	for _, name := range []string{ManagementKubeconfigSecret(tenant), PublishedKubeconfigSecret(tenant), talosCASecret(tenant)} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: ref.Namespace}}
		if err := a.Kube.Delete(ctx, secret); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete Secret %s: %w", name, err)
		}
	}
	return nil
}
