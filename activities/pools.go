package activities

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/plan"
)

// Pools turns a tenant's pools into Cluster API objects.
type Pools struct{ Platform }

// bootstrapSecret is the name core wants in every Machine and never reads: the
// real configuration is made per VM.
const bootstrapSecret = "aether-has-no-bootstrap-data"

// Annotations of the autoscaler: cluster-autoscaler, cloudprovider/clusterapi.
const (
	minSizeAnnotation = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size"
	maxSizeAnnotation = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"
)

// ApplyPools tells core that the infrastructure is there, then writes a
// template and a MachineDeployment for each pool and host, and deletes those
// of pools that are no more. Replicas are set when a MachineDeployment is new,
// and otherwise only moved into changed bounds. It is repeatable.
func (a *Pools) ApplyPools(ctx context.Context, in TenantRef) error {
	return classify(a.applyPools(ctx, in.Tenant))
}

func (a *Pools) applyPools(ctx context.Context, name string) error {
	tenant, err := a.tenant(ctx, name)
	if err != nil {
		return err
	}
	if err := a.markProvisioned(ctx, tenant); err != nil {
		return err
	}
	wanted := map[string]bool{}
	full := domain.Tenant{Name: name, Spec: tenant.Spec}.WithDefaults(a.Site)
	for _, pool := range full.Spec.Pools {
		for _, share := range plan.Shares(pool) {
			wanted[deploymentName(name, share)] = true
			tell(ctx, "the MachineDeployment of pool "+pool.Name+" on "+share.Host, "")
			if err := a.applyShare(ctx, full, pool, share); err != nil {
				return err
			}
		}
	}
	existing, err := a.deployments(ctx, name)
	if err != nil {
		return err
	}
	for i := range existing {
		if wanted[existing[i].Name] {
			continue
		}
		if err := a.Kube.Delete(ctx, &existing[i]); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete MachineDeployment %s: %w", existing[i].Name, err)
		}
	}
	return nil
}

func (a *Pools) markProvisioned(ctx context.Context, tenant *v1alpha1.AetherCluster) error {
	patch := client.MergeFrom(tenant.DeepCopy())
	tenant.Status.Initialization.Provisioned = new(true)
	tenant.Status.FailureDomains = nil
	for _, cluster := range a.Site.Spec.Proxmox {
		for _, host := range cluster.Hosts {
			tenant.Status.FailureDomains = append(tenant.Status.FailureDomains, v1alpha1.FailureDomain{Name: host.Name, ControlPlane: new(false)})
		}
	}
	if err := a.Kube.Status().Patch(ctx, tenant, patch); err != nil {
		return fmt.Errorf("record that tenant %s is provisioned: %w", tenant.Name, err)
	}
	return nil
}

// deployments lists the MachineDeployments that Aether made for the tenant.
func (a *Pools) deployments(ctx context.Context, tenant string) ([]clusterv1.MachineDeployment, error) {
	list := &clusterv1.MachineDeploymentList{}
	err := a.Kube.List(ctx, list, client.InNamespace(domain.TenantNamespace(tenant)), client.MatchingLabels{domain.TenantLabel: tenant, domain.CreatedByLabel: domain.FieldManager})
	if err != nil {
		return nil, fmt.Errorf("list MachineDeployments of tenant %s: %w", tenant, err)
	}
	return list.Items, nil
}

// deploymentName names the MachineDeployment of a pool on a host. It is a label
// value too, so a long one is cut and told apart by its digest.
func deploymentName(tenant string, share plan.Share) string {
	const most = 63
	name := fmt.Sprintf("%s-%s-%s", tenant, share.Pool, share.Host)
	if len(name) <= most {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	digest := hex.EncodeToString(sum[:4])
	return strings.TrimRight(name[:most-len(digest)-1], "-.") + "-" + digest
}

// applyShare writes the template and MachineDeployment of a pool on one host.
func (a *Pools) applyShare(ctx context.Context, tenant domain.Tenant, pool v1alpha1.Pool, share plan.Share) error {
	spec := v1alpha1.AetherMachineSpec{
		Pool: pool.Name, Class: pool.Class, Host: share.Host, Labels: domain.KubeletLabels(pool.Labels), Taints: pool.Taints,
	}
	template, err := a.applyTemplate(ctx, tenant, share, spec)
	if err != nil {
		return err
	}
	name := deploymentName(tenant.Name, share)
	current := &clusterv1.MachineDeployment{}
	err = a.Kube.Get(ctx, client.ObjectKey{Namespace: tenant.Namespace(), Name: name}, current)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return fmt.Errorf("read MachineDeployment %s: %w", name, err)
	}
	object := deploymentObject(tenant, pool, share, template)
	if missing {
		// The first apply carries the number, so that the object is whole when
		// core sees it.
		setReplicas(object, share.Replicas)
		if err := a.apply(ctx, object, domain.FieldManager, true); err != nil {
			return err
		}
		return a.keepReplicas(ctx, tenant, share, share.Replicas, false)
	}
	number, moved := share.Replicas, false
	if current.Spec.Replicas != nil {
		number = min(max(*current.Spec.Replicas, share.MinSize), share.MaxSize)
		moved = number != *current.Spec.Replicas
	}
	if err := a.keepReplicas(ctx, tenant, share, number, moved || current.Spec.Replicas == nil); err != nil {
		return err
	}
	return a.apply(ctx, object, domain.FieldManager, true)
}

// keepReplicas owns the number under a manager of its own, so that applying
// the rest without it does not drop it. Without force, a number that someone
// changed meanwhile is a conflict, and the next attempt reads it.
func (a *Pools) keepReplicas(ctx context.Context, tenant domain.Tenant, share plan.Share, number int32, force bool) error {
	object := map[string]any{
		"apiVersion": clusterv1.GroupVersion.String(), "kind": "MachineDeployment",
		"metadata": map[string]any{"name": deploymentName(tenant.Name, share), "namespace": tenant.Namespace()},
		"spec":     map[string]any{"clusterName": tenant.Name},
	}
	setReplicas(object, number)
	return a.apply(ctx, object, domain.ReplicasFieldManager, force)
}

func setReplicas(object map[string]any, number int32) {
	if spec, ok := object["spec"].(map[string]any); ok {
		spec["replicas"] = int64(number)
	}
}

// applyTemplate writes the template for a spec. Its name carries the spec's
// hash: a changed pool is a new template, and core rolls the workers.
func (a *Pools) applyTemplate(ctx context.Context, tenant domain.Tenant, share plan.Share, spec v1alpha1.AetherMachineSpec) (string, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("encode machine of pool %s: %w", share.Pool, err)
	}
	sum := sha256.Sum256(data)
	name := deploymentName(tenant.Name, share) + "-" + hex.EncodeToString(sum[:4])
	content, err := fields(spec)
	if err != nil {
		return "", err
	}
	return name, a.apply(ctx, map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "AetherMachineTemplate",
		"metadata": map[string]any{
			"name": name, "namespace": tenant.Namespace(),
			"labels": map[string]any{domain.TenantLabel: tenant.Name, domain.PoolLabel: share.Pool, clusterv1.ClusterNameLabel: tenant.Name},
		},
		"spec": map[string]any{"template": map[string]any{"spec": content}},
	}, domain.FieldManager, true)
}

// deploymentObject is the whole MachineDeployment but its replicas; core's
// defaulting webhooks may be absent.
func deploymentObject(tenant domain.Tenant, pool v1alpha1.Pool, share plan.Share, template string) map[string]any {
	name := deploymentName(tenant.Name, share)
	selector := map[string]any{clusterv1.ClusterNameLabel: tenant.Name, clusterv1.MachineDeploymentNameLabel: name}
	labels := maps.Clone(selector)
	labels[domain.TenantLabel], labels[domain.PoolLabel], labels[domain.HostLabel] = tenant.Name, pool.Name, share.Host
	labels[domain.NodePoolLabel] = pool.Name
	for _, key := range slices.Sorted(maps.Keys(pool.Labels)) {
		if domain.CoreLabel(key) {
			labels[key] = pool.Labels[key]
		}
	}
	return map[string]any{
		"apiVersion": clusterv1.GroupVersion.String(), "kind": "MachineDeployment",
		"metadata": map[string]any{
			"name": name, "namespace": tenant.Namespace(),
			"labels": map[string]any{
				clusterv1.ClusterNameLabel: tenant.Name, domain.TenantLabel: tenant.Name, domain.PoolLabel: pool.Name,
				domain.HostLabel: share.Host, domain.CreatedByLabel: domain.FieldManager,
			},
			"annotations": map[string]any{
				minSizeAnnotation: strconv.Itoa(int(share.MinSize)), maxSizeAnnotation: strconv.Itoa(int(share.MaxSize)),
			},
		},
		"spec": map[string]any{
			"clusterName": tenant.Name,
			"selector":    map[string]any{"matchLabels": selector},
			"rollout": map[string]any{"strategy": map[string]any{
				"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": int64(0), "maxUnavailable": int64(1)},
			}},
			"template": map[string]any{
				"metadata": map[string]any{"labels": labels},
				"spec": map[string]any{
					"clusterName":       tenant.Name,
					"version":           tenant.Spec.Version,
					"failureDomain":     share.Host,
					"bootstrap":         map[string]any{"dataSecretName": bootstrapSecret},
					"infrastructureRef": map[string]any{"apiGroup": v1alpha1.GroupVersion.Group, "kind": "AetherMachineTemplate", "name": template},
				},
			},
		},
	}
}

// WaitWorkers waits until as many workers are usable as the tenant's
// MachineDeployments want. It is repeatable. A worker whose join failed for
// good ends the wait with its reason.
func (a *Pools) WaitWorkers(ctx context.Context, in TenantRef) error {
	options := []client.ListOption{client.InNamespace(domain.TenantNamespace(in.Tenant))}
	return classify(until(ctx, a.Kube, &v1alpha1.AetherMachineList{}, options, func(ctx context.Context) (string, error) {
		return a.workersMissing(ctx, in.Tenant)
	}))
}

func (a *Pools) workersMissing(ctx context.Context, tenant string) (waitsFor string, err error) {
	deployments, err := a.deployments(ctx, tenant)
	if err != nil {
		return "", err
	}
	machines := &v1alpha1.AetherMachineList{}
	if err := a.Kube.List(ctx, machines, client.InNamespace(domain.TenantNamespace(tenant))); err != nil {
		return "", fmt.Errorf("list AetherMachines of tenant %s: %w", tenant, err)
	}
	usable, wanted, states := 0, 0, ""
	for i := range deployments {
		if deployments[i].Spec.Replicas != nil {
			wanted += int(*deployments[i].Spec.Replicas)
		}
	}
	for i := range machines.Items {
		machine := &machines.Items[i]
		ready := meta.FindStatusCondition(machine.Status.Conditions, v1alpha1.ReadyCondition)
		switch {
		case !machine.DeletionTimestamp.IsZero():
		case ready == nil:
			states += "; " + machine.Name + " is new"
		case ready.Status == metav1.ConditionTrue:
			usable++
		case ready.Reason == v1alpha1.ReasonFailed:
			return "", refused("worker %s cannot be joined: %s", machine.Name, ready.Message)
		default:
			states += "; " + machine.Name + ": " + ready.Message
		}
	}
	if usable >= wanted {
		return "", nil
	}
	return fmt.Sprintf("%d of %d workers to be usable%s", wanted-usable, wanted, states), nil
}

// RemovePools deletes the tenant's MachineDeployments and waits until all its
// machines are gone, without touching the Cluster. It is repeatable.
func (a *Pools) RemovePools(ctx context.Context, in TenantRef) error {
	deployments, err := a.deployments(ctx, in.Tenant)
	if err != nil {
		return classify(err)
	}
	for i := range deployments {
		if err := a.Kube.Delete(ctx, &deployments[i]); client.IgnoreNotFound(err) != nil {
			return classify(fmt.Errorf("delete MachineDeployment %s: %w", deployments[i].Name, err))
		}
	}
	return insist(a.waitMachinesGone(ctx, in.Tenant))
}

// WaitMachinesGone waits until core and RemoveWorker have removed all of the
// tenant's machines. It is repeatable.
func (a *Pools) WaitMachinesGone(ctx context.Context, in TenantRef) error {
	return insist(a.waitMachinesGone(ctx, in.Tenant))
}

func (a *Pools) waitMachinesGone(ctx context.Context, tenant string) error {
	namespace := client.InNamespace(domain.TenantNamespace(tenant))
	return until(ctx, a.Kube, &clusterv1.MachineList{}, []client.ListOption{namespace}, func(ctx context.Context) (string, error) {
		machines := &clusterv1.MachineList{}
		if err := a.Kube.List(ctx, machines, namespace); err != nil {
			return "", fmt.Errorf("list Machines of tenant %s: %w", tenant, err)
		}
		objects := &v1alpha1.AetherMachineList{}
		if err := a.Kube.List(ctx, objects, namespace); err != nil {
			return "", fmt.Errorf("list AetherMachines of tenant %s: %w", tenant, err)
		}
		deployments := &clusterv1.MachineDeploymentList{}
		if err := a.Kube.List(ctx, deployments, namespace); err != nil {
			return "", fmt.Errorf("list MachineDeployments of tenant %s: %w", tenant, err)
		}
		if len(machines.Items)+len(objects.Items)+len(deployments.Items) == 0 {
			return "", nil
		}
		waitsFor := fmt.Sprintf("%d MachineDeployments, %d Machines and %d AetherMachines to be gone", len(deployments.Items), len(machines.Items), len(objects.Items))
		for i := range machines.Items {
			waitsFor += "; " + blocker(&machines.Items[i])
		}
		return waitsFor, nil
	})
}

// blocker tells what core says about a Machine that is being deleted.
func blocker(machine *clusterv1.Machine) string {
	for _, condition := range machine.Status.Conditions {
		if condition.Type == clusterv1.MachineDeletingCondition && condition.Status == metav1.ConditionTrue {
			return machine.Name + ": " + condition.Reason + " " + condition.Message
		}
	}
	return machine.Name
}
