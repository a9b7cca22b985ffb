package activities

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "aether.internal/aether/api/controlplane/v1alpha1"
	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/lease"
)

// Tenants keeps the objects of a tenant's desired state.
type Tenants struct {
	Platform
	Leases *lease.Store
	Images ImageChecker
}

// ImageChecker asks the site's mirrors whether they serve an image, as a node
// would. The result is empty, or says what is wrong.
type ImageChecker interface {
	Check(ctx context.Context, reference string) (problem string)
}

// WriteTenant writes the tenant's Namespace, AetherCluster, AetherControlPlane
// and Cluster by server-side apply, and tells whether the AetherCluster is a
// workflow's own. It is repeatable. What the AetherCluster says already becomes
// what the run was started with; what it says more, in lists that others write
// too, stays.
func (a *Tenants) WriteTenant(ctx context.Context, in WriteTenantInput) (*WriteTenantResult, error) {
	result, err := a.writeTenant(ctx, in.Tenant)
	return result, classify(err)
}

func (a *Tenants) writeTenant(ctx context.Context, tenant domain.Tenant) (*WriteTenantResult, error) {
	namespace := &corev1.Namespace{}
	err := a.Kube.Get(ctx, client.ObjectKey{Name: tenant.Namespace()}, namespace)
	if apierrors.IsNotFound(err) {
		namespace = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name:   tenant.Namespace(),
			Labels: map[string]string{domain.TenantLabel: tenant.Name, domain.CreatedByLabel: domain.FieldManager},
		}}
		err = client.IgnoreAlreadyExists(a.Kube.Create(ctx, namespace))
	}
	if err != nil {
		return nil, fmt.Errorf("write Namespace %s: %w", tenant.Namespace(), err)
	}
	if !namespace.DeletionTimestamp.IsZero() {
		return nil, fmt.Errorf("namespace %s of an earlier tenant is still being deleted: %w", namespace.Name, errWaiting)
	}
	created, err := a.writeCluster(ctx, tenant)
	if err != nil {
		return nil, err
	}
	for _, object := range []map[string]any{controlPlaneObject(tenant), clusterObject(tenant)} {
		if err := a.apply(ctx, object, domain.DoorFieldManager, true); err != nil {
			return nil, err
		}
	}
	return &WriteTenantResult{Created: created}, nil
}

// ownAnnotation marks an AetherCluster that a workflow made, with the workflow
// run's tenant as value, so that a repeated attempt knows its own work.
const ownAnnotation = "aether.internal/written-by-workflow"

// writeCluster applies the AetherCluster and tells whether it was ours to make.
func (a *Tenants) writeCluster(ctx context.Context, tenant domain.Tenant) (created bool, err error) {
	existing := &v1alpha1.AetherCluster{}
	err = a.Kube.Get(ctx, client.ObjectKey{Namespace: tenant.Namespace(), Name: tenant.Name}, existing)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("read AetherCluster %s: %w", tenant.Name, err)
	}
	missing := apierrors.IsNotFound(err)
	spec, err := fields(tenant.Spec)
	if err != nil {
		return false, err
	}
	// Only Aether writes the endpoint, and it does so when it is leased.
	delete(spec, "controlPlaneEndpoint")
	metadata := map[string]any{
		"name": tenant.Name, "namespace": tenant.Namespace(),
		"labels": map[string]any{domain.TenantLabel: tenant.Name, clusterv1.ClusterNameLabel: tenant.Name},
	}
	_, ours := existing.Annotations[ownAnnotation]
	digest, err := specDigest(tenant.Spec)
	if err != nil {
		return false, err
	}
	annotations := map[string]any{appliedAnnotation: digest}
	if missing || ours {
		annotations[ownAnnotation] = tenant.Name
	}
	metadata["annotations"] = annotations
	object := map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": domain.AetherClusterKind, "metadata": metadata, "spec": spec,
	}
	return missing || ours, a.apply(ctx, object, domain.DoorFieldManager, true)
}

// appliedAnnotation has the digest of the spec that the last workflow worked
// with. A spec that was changed while the workflow ran has another.
const appliedAnnotation = "aether.internal/applied-spec"

// specDigest is a digest of what a person may wish for.
func specDigest(spec v1alpha1.AetherClusterSpec) (string, error) {
	spec.ControlPlaneEndpoint = v1alpha1.APIEndpoint{}
	data, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("encode a tenant's spec: %w", err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8]), nil
}

// observedGeneration is the generation of the tenant that a completed workflow
// may call done: the one before, when someone changed the spec meanwhile, so
// that the shim starts again.
func observedGeneration(tenant *v1alpha1.AetherCluster) (int64, error) {
	digest, err := specDigest(tenant.Spec)
	if err != nil {
		return 0, err
	}
	applied, written := tenant.Annotations[appliedAnnotation]
	if written && applied != digest {
		return tenant.Generation - 1, nil
	}
	return tenant.Generation, nil
}

func controlPlaneObject(tenant domain.Tenant) map[string]any {
	return map[string]any{
		"apiVersion": controlplanev1.GroupVersion.String(), "kind": "AetherControlPlane",
		"metadata": map[string]any{
			"name": tenant.Name, "namespace": tenant.Namespace(),
			"labels":     map[string]any{domain.TenantLabel: tenant.Name, clusterv1.ClusterNameLabel: tenant.Name},
			"finalizers": []any{controlplanev1.Finalizer},
		},
		"spec": map[string]any{"version": tenant.Spec.Version},
	}
}

func clusterObject(tenant domain.Tenant) map[string]any {
	ranges := tenant.Spec.ClusterNetwork
	return map[string]any{
		"apiVersion": clusterv1.GroupVersion.String(), "kind": "Cluster",
		"metadata": map[string]any{
			"name": tenant.Name, "namespace": tenant.Namespace(), "labels": map[string]any{domain.TenantLabel: tenant.Name},
		},
		"spec": map[string]any{
			"clusterNetwork": map[string]any{
				"pods":          map[string]any{"cidrBlocks": []any{ranges.PodCIDR}},
				"services":      map[string]any{"cidrBlocks": []any{ranges.ServiceCIDR}},
				"serviceDomain": ranges.DNSDomain,
			},
			"infrastructureRef": map[string]any{"apiGroup": v1alpha1.GroupVersion.Group, "kind": domain.AetherClusterKind, "name": tenant.Name},
			"controlPlaneRef":   map[string]any{"apiGroup": controlplanev1.GroupVersion.Group, "kind": "AetherControlPlane", "name": tenant.Name},
		},
	}
}

// apply writes an object by server-side apply.
func (p *Platform) apply(ctx context.Context, object map[string]any, manager string, force bool) error {
	u := &unstructured.Unstructured{Object: object}
	options := []client.ApplyOption{client.FieldOwner(manager)}
	if force {
		options = append(options, client.ForceOwnership)
	}
	if err := p.Kube.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), options...); err != nil {
		return fmt.Errorf("apply %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return nil
}

// FindTenant tells whether the tenant's objects are a workflow's own, as
// WriteTenant does, for a run that was cancelled before it heard that. A
// namespace that Aether made and nothing was written to yet is its own too.
func (a *Tenants) FindTenant(ctx context.Context, in TenantRef) (*WriteTenantResult, error) {
	tenant := &v1alpha1.AetherCluster{}
	err := a.Kube.Get(ctx, client.ObjectKey{Namespace: domain.TenantNamespace(in.Tenant), Name: in.Tenant}, tenant)
	if err == nil {
		_, ours := tenant.Annotations[ownAnnotation]
		return &WriteTenantResult{Created: ours}, nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, classify(fmt.Errorf("read AetherCluster %s: %w", in.Tenant, err))
	}
	namespace := &corev1.Namespace{}
	if err := a.Kube.Get(ctx, client.ObjectKey{Name: domain.TenantNamespace(in.Tenant)}, namespace); client.IgnoreNotFound(err) != nil {
		return nil, classify(fmt.Errorf("read Namespace %s: %w", domain.TenantNamespace(in.Tenant), err))
	}
	return &WriteTenantResult{Created: namespace.Labels[domain.CreatedByLabel] == domain.FieldManager}, nil
}

// LeaseProxy leases the tenant's own proxy address, writes it into the
// AetherCluster as endpoint, and writes down the proxy's VM. It is repeatable:
// address and VM are found again.
func (a *Tenants) LeaseProxy(ctx context.Context, in LeaseProxyInput) (*LeaseProxyResult, error) {
	result, err := a.leaseProxy(ctx, in)
	return result, classify(err)
}

// addressHolder holds a tenant's proxy address: the address belongs to the
// tenant and outlives its proxies.
func addressHolder(tenant string) lease.Holder {
	return lease.Holder{ID: "tenant." + tenant, Tenant: tenant, Purpose: "proxy address"}
}

func (a *Tenants) leaseProxy(ctx context.Context, in LeaseProxyInput) (*LeaseProxyResult, error) {
	tenant, err := a.tenant(ctx, in.Tenant)
	if err != nil {
		return nil, err
	}
	network, ok := networkOf(a.Site, in.Network)
	if !ok {
		return nil, refused("network %s is not in the site", in.Network)
	}
	address, err := a.Leases.Address(ctx, network.Name, ranges(network.Ranges.Proxies), addressHolder(in.Tenant), nil)
	if err != nil {
		return nil, err
	}
	if err := a.writeEndpoint(ctx, tenant, address); err != nil {
		return nil, err
	}
	vm, err := a.proxyVM(ctx, tenant, in.Host)
	if err != nil {
		return nil, err
	}
	patch := client.MergeFrom(tenant.DeepCopy())
	tenant.Status.Proxy.Address = address.String()
	tenant.Status.Proxy.Generation = vm.Spec.Generation
	tenant.Status.Proxy.Machine = vm.Name
	if err := a.Kube.Status().Patch(ctx, tenant, patch); err != nil {
		return nil, fmt.Errorf("record the proxy of tenant %s: %w", in.Tenant, err)
	}
	return &LeaseProxyResult{MachineID: vm.Name, Address: address.String(), Generation: vm.Spec.Generation}, nil
}

func (a *Tenants) writeEndpoint(ctx context.Context, tenant *v1alpha1.AetherCluster, address netip.Addr) error {
	if has := tenant.Spec.ControlPlaneEndpoint.Host; has != "" && has != address.String() {
		return refused("tenant %s has the endpoint %s, but the lease says %s; the endpoint cannot be changed: delete the tenant or restore its lease", tenant.Name, has, address)
	}
	return a.apply(ctx, map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": domain.AetherClusterKind,
		"metadata": map[string]any{"name": tenant.Name, "namespace": tenant.Namespace},
		"spec": map[string]any{
			"version":              tenant.Spec.Version,
			"controlPlaneEndpoint": map[string]any{"host": address.String(), "port": int64(domain.APIServerPort)},
		},
	}, domain.FieldManager, false)
}

// proxyVM returns the tenant's proxy that there is, or writes down a new one
// of the next generation.
func (a *Tenants) proxyVM(ctx context.Context, tenant *v1alpha1.AetherCluster, host string) (*v1alpha1.AetherVM, error) {
	existing, err := a.machinesOf(ctx, tenant.Name, v1alpha1.RoleProxy)
	if err != nil {
		return nil, err
	}
	if len(existing) > 0 {
		return &existing[len(existing)-1], nil
	}
	if a.clusterOfHost(host) == "" {
		return nil, refused("the proxy of tenant %s has no host: found %q, which is not a host of the site; plan the tenant again", tenant.Name, host)
	}
	class := a.Site.Spec.ProxyClass
	generation := tenant.Status.Proxy.Generation + 1
	vm := &v1alpha1.AetherVM{
		ObjectMeta: metav1.ObjectMeta{
			Name: string(domain.NewMachineID()), Namespace: domain.SystemNamespace,
			Labels: map[string]string{domain.TenantLabel: tenant.Name, domain.HostLabel: host, domain.RoleLabel: "proxy"},
		},
		Spec: v1alpha1.AetherVMSpec{
			Tenant: tenant.Name, Role: v1alpha1.RoleProxy, Generation: generation,
			ProxmoxCluster: a.clusterOfHost(host), Host: host, VMName: domain.ProxyName(tenant.Name, generation),
			Cores: int32(class.Cores), MemoryMiB: int32(class.MemoryMiB), //nolint:gosec // bounded by the site's validation
		},
	}
	if err := a.Kube.Create(ctx, vm); err != nil {
		return nil, fmt.Errorf("write AetherVM of the proxy of tenant %s: %w", tenant.Name, err)
	}
	return vm, nil
}

func (p *Platform) clusterOfHost(host string) string {
	for _, cluster := range p.Site.Spec.Proxmox {
		for _, h := range cluster.Hosts {
			if h.Name == host {
				return cluster.Name
			}
		}
	}
	return ""
}

// stands tells whether the tenant was built and not undone: core was told that
// it is provisioned, and its proxy is there.
func (p *Platform) stands(ctx context.Context, tenant *v1alpha1.AetherCluster) (bool, error) {
	if provisioned := tenant.Status.Initialization.Provisioned; provisioned == nil || !*provisioned {
		return false, nil
	}
	proxies, err := p.machinesOf(ctx, tenant.Name, v1alpha1.RoleProxy)
	return len(proxies) > 0, err
}

// CompleteTenant records that the tenant is ready: proven by its nodes, or not
// yet proven when it has none. It is repeatable.
func (a *Tenants) CompleteTenant(ctx context.Context, in TenantRef) (*CompleteTenantResult, error) {
	tenant, err := a.tenant(ctx, in.Tenant)
	if err != nil {
		return nil, classify(err)
	}
	workers, err := a.machinesOf(ctx, in.Tenant, v1alpha1.RoleWorker)
	if err != nil {
		return nil, classify(err)
	}
	nodes := 0
	for _, vm := range workers {
		if vm.Status.Phase == phaseUsable {
			nodes++
		}
	}
	ready := metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, Message: fmt.Sprintf("%d workers are usable", nodes)}
	if nodes == 0 {
		ready.Reason, ready.Message = v1alpha1.ReasonUnproven, "The control plane is ready; no worker has proven it yet"
	}
	generation, err := observedGeneration(tenant)
	if err != nil {
		return nil, classify(err)
	}
	patch := client.MergeFrom(tenant.DeepCopy())
	ready.ObservedGeneration = generation
	meta.SetStatusCondition(&tenant.Status.Conditions, ready)
	for _, kind := range []string{v1alpha1.PlanAcceptedCondition, v1alpha1.ProxyReadyCondition, v1alpha1.ControlPlaneReadyCondition, v1alpha1.NetworkReadyCondition} {
		meta.SetStatusCondition(&tenant.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, ObservedGeneration: generation})
	}
	tenant.Status.ObservedGeneration = generation
	if err := a.Kube.Status().Patch(ctx, tenant, patch); err != nil {
		return nil, classify(fmt.Errorf("record that tenant %s is ready: %w", in.Tenant, err))
	}
	return &CompleteTenantResult{KubeconfigSecret: tenant.Namespace + "/" + tenant.Status.KubeconfigSecret, Nodes: nodes}, nil
}

// ReportFailedTenant records why a tenant workflow ended. It is repeatable; an
// AetherCluster that is gone is fine. A creation that was refused because the
// tenant stands already leaves the tenant's word as it is.
func (a *Tenants) ReportFailedTenant(ctx context.Context, in FailedTenant) error {
	tenant := &v1alpha1.AetherCluster{}
	err := a.Kube.Get(ctx, client.ObjectKey{Namespace: domain.TenantNamespace(in.Tenant), Name: in.Tenant}, tenant)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return classify(fmt.Errorf("read AetherCluster %s: %w", in.Tenant, err))
	}
	stands, err := a.stands(ctx, tenant)
	if err != nil {
		return classify(err)
	}
	if stands && !in.Change {
		return nil
	}
	reason, again := v1alpha1.ReasonFailed, "create"
	switch {
	case in.Refused:
		reason = v1alpha1.ReasonRefused
	case in.Cancelled:
		reason = v1alpha1.ReasonCancelled
	}
	if in.Change {
		again = "apply"
	}
	patch := client.MergeFrom(tenant.DeepCopy())
	message := fmt.Sprintf("%s; correct the cause, then run `aether tenant %s` again or set a new value of the annotation %s", in.Message, again, domain.RetryAnnotation)
	condition := metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: reason, Message: cut(message), ObservedGeneration: tenant.Generation}
	meta.SetStatusCondition(&tenant.Status.Conditions, condition)
	if in.Refused {
		condition.Type = v1alpha1.PlanAcceptedCondition
		meta.SetStatusCondition(&tenant.Status.Conditions, condition)
	}
	if !in.Change {
		tenant.Status.Initialization.Provisioned = new(false)
		tenant.Status.ManagementEndpoint = v1alpha1.APIEndpoint{}
	}
	if err := a.Kube.Status().Patch(ctx, tenant, patch); client.IgnoreNotFound(err) != nil {
		return classify(fmt.Errorf("record the failure of tenant %s: %w", in.Tenant, err))
	}
	return nil
}
