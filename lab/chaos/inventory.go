package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/activities"
	controlplanev1 "aether.internal/aether/api/controlplane/v1alpha1"
	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/lab/proxmox"
)

// Inventory is everything that a workflow makes, each as one line.
type Inventory map[string]bool

// Since returns the lines that were not there before, and those that were and
// are not now, marked with a minus.
func (i Inventory) Since(before Inventory) []string {
	var lines []string
	for line := range i {
		if !before[line] {
			lines = append(lines, line)
		}
	}
	for line := range before {
		if !i[line] {
			lines = append(lines, "-"+line)
		}
	}
	slices.Sort(lines)
	return lines
}

// machineSecretLabel marks bootstrap tokens of machines.
const machineSecretLabel = "aether.internal/machine"

// Take lists what there is: VMs, volumes, leases that are held, reservations,
// records, objects, and the tokens, releases and nodes of each tenant.
func (l *Lab) Take(ctx context.Context) (Inventory, error) {
	i := Inventory{}
	for _, vm := range l.World.Proxmox.VMs() {
		i[fmt.Sprintf("VM %s %s on %s", vm.Name, vm.UUID, vm.Node)] = true
	}
	for _, cluster := range l.Site.Spec.Proxmox {
		for _, host := range cluster.Hosts {
			for _, volume := range l.World.Proxmox.Volumes(host.Name) {
				i["volume "+volume+" on "+host.Name] = true
			}
			book, err := l.Leases.Ledger(ctx, lease.Host{Cluster: cluster.Name, Name: host.Name})
			if err != nil {
				return nil, err
			}
			for _, r := range book {
				i[fmt.Sprintf("reservation of %s for %s on %s", r.Tenant, r.Machine, host.Name)] = true
			}
		}
	}
	if err := l.takeLeases(ctx, i); err != nil {
		return nil, err
	}
	if err := l.takeObjects(ctx, i); err != nil {
		return nil, err
	}
	return i, l.takeTenants(ctx, i)
}

// takeLeases adds the leases that someone holds, turns and waits among them.
func (l *Lab) takeLeases(ctx context.Context, i Inventory) error {
	list := &coordinationv1.LeaseList{}
	if err := l.Kube.List(ctx, list, kubeclient.InNamespace(lease.Namespace), kubeclient.HasLabels{lease.LabelHolder}); err != nil {
		return fmt.Errorf("list Leases: %w", err)
	}
	for _, o := range list.Items {
		i[fmt.Sprintf("lease %s of %s", o.Name, o.Labels[lease.LabelHolder])] = true
	}
	return nil
}

// takeObjects adds the objects of the management cluster.
func (l *Lab) takeObjects(ctx context.Context, i Inventory) error {
	controlPlanes := &unstructured.UnstructuredList{}
	controlPlanes.SetGroupVersionKind(schema.GroupVersionKind{Group: "kamaji.clastix.io", Version: "v1alpha1", Kind: "TenantControlPlaneList"})
	for _, list := range []kubeclient.ObjectList{
		&v1alpha1.AetherVMList{}, &v1alpha1.AetherMachineList{}, &v1alpha1.AetherMachineTemplateList{}, &v1alpha1.AetherClusterList{},
		&controlplanev1.AetherControlPlaneList{}, &clusterv1.ClusterList{}, &clusterv1.MachineList{},
		&clusterv1.MachineDeploymentList{}, &corev1.NamespaceList{}, controlPlanes,
		&corev1.SecretList{}, &corev1.ConfigMapList{},
	} {
		if err := l.Kube.List(ctx, list); err != nil {
			return fmt.Errorf("list %T: %w", list, err)
		}
		if err := each(list, func(kind string, o kubeclient.Object) {
			namespace := o.GetNamespace()
			switch o.(type) {
			case *corev1.Secret, *corev1.ConfigMap:
				if namespace != domain.SystemNamespace && !strings.HasPrefix(namespace, "tenant-") {
					return // others' own
				}
				if strings.HasPrefix(o.GetName(), "ledger.") {
					return // what is in it counts
				}
			}
			i[strings.TrimSpace(fmt.Sprintf("%s %s/%s", kind, namespace, o.GetName()))] = true
		}); err != nil {
			return err
		}
	}
	return nil
}

// takeTenants adds what is in the tenants' clusters.
func (l *Lab) takeTenants(ctx context.Context, i Inventory) error {
	list := &v1alpha1.AetherClusterList{}
	if err := l.Kube.List(ctx, list); err != nil {
		return fmt.Errorf("list AetherClusters: %w", err)
	}
	for _, tenant := range list.Items {
		if ready := tenant.Status.Initialization.Provisioned; ready == nil || !*ready {
			continue
		}
		if err := l.takeTenant(ctx, tenant.Name, i); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) takeTenant(ctx context.Context, tenant string, i Inventory) error {
	api, err := l.tenantClient(ctx, tenant)
	if err != nil {
		return err
	}
	secrets, nodes := &corev1.SecretList{}, &corev1.NodeList{}
	if err := errors.Join(api.List(ctx, secrets), api.List(ctx, nodes)); err != nil {
		return fmt.Errorf("look into tenant %s: %w", tenant, err)
	}
	for _, s := range secrets.Items {
		switch {
		case s.Labels[machineSecretLabel] != "":
			i[fmt.Sprintf("token for %s in %s", s.Labels[machineSecretLabel], tenant)] = true
		case s.Type == "helm.sh/release.v1" && s.Labels["status"] != "superseded":
			i[fmt.Sprintf("release %s of %s in %s", s.Labels["status"], s.Labels["name"], tenant)] = true
		}
	}
	for _, n := range nodes.Items {
		i[fmt.Sprintf("Node %s in %s", n.Name, tenant)] = true
	}
	pods := &corev1.PodList{}
	if err := api.List(ctx, pods, kubeclient.HasLabels{machineSecretLabel}); err != nil {
		return fmt.Errorf("look into tenant %s: %w", tenant, err)
	}
	for _, p := range pods.Items {
		i[fmt.Sprintf("proof %s in %s", p.Name, tenant)] = true
	}
	return nil
}

func (l *Lab) tenantClient(ctx context.Context, tenant string) (kubeclient.Client, error) {
	access, err := (&activities.TenantClients{Kube: l.Kube}).Open(ctx, tenant)
	if err != nil {
		return nil, err
	}
	return access.Kube, nil
}

// LeftError says what is there that should not be.
type LeftError struct{ Lines []string }

func (e *LeftError) Error() string {
	return "left over (or, with a minus, lost):\n  " + strings.Join(e.Lines, "\n  ")
}

// Equals waits until what there is equals what there was.
func (l *Lab) Equals(ctx context.Context, base Inventory) error {
	return eventually(ctx, "nothing to be left", func(ctx context.Context) error {
		now, err := l.Take(ctx)
		if err != nil {
			return err
		}
		if lines := now.Since(base); len(lines) > 0 {
			return &LeftError{Lines: lines}
		}
		return nil
	})
}

// vmOf returns the VMs of a machine.
func (l *Lab) vmOf(id string) []proxmox.MachineInfo {
	return slices.DeleteFunc(l.World.Proxmox.VMs(), func(vm proxmox.MachineInfo) bool { return vm.Template || vm.UUID != id })
}
