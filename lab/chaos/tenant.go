package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/workflows"
)

const (
	pool      = "w"
	lookEvery = 100 * time.Millisecond
)

// errNotYet is what a look returns while it waits.
var errNotYet = errors.New("not yet")

// eventually looks until there is no error left, and tells the last one when
// the context ends first.
func eventually(ctx context.Context, what string, look func(ctx context.Context) error) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var last error
	for {
		err := look(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err // not the end of our own patience
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w (%w)", what, last, ctx.Err())
		case <-ticker.C:
		}
	}
}

// document is a tenant with a pool on both hosts and no worker.
func (l *Lab) document(name string) domain.TenantDocument {
	spec := v1alpha1.AetherClusterSpec{
		Version: l.Site.Spec.Defaults.Kubernetes,
		Pools:   []v1alpha1.Pool{{Name: pool, Class: "small", Replicas: new(int32(0)), MinSize: new(int32(0)), MaxSize: new(int32(8))}},
	}
	return domain.Tenant{Name: name, Spec: spec}.Document()
}

// StartCreate starts CreateTenant and returns the workflow's ID.
func (l *Lab) StartCreate(ctx context.Context, name string) (string, error) {
	id := workflows.TenantWorkflowID(name)
	_, err := l.processes.Start(ctx, temporalclient.Request{ID: id, Type: "CreateTenant", Input: l.document(name), Tenant: name})
	return id, err
}

// Create makes a tenant and waits until it is ready.
func (l *Lab) Create(ctx context.Context, name string) error {
	id, err := l.StartCreate(ctx, name)
	if err != nil {
		return err
	}
	return l.Completed(ctx, id)
}

// Delete removes a tenant by DeleteTenant.
func (l *Lab) Delete(ctx context.Context, name string) error {
	id := workflows.TenantWorkflowID(name)
	_, err := l.processes.Start(ctx, temporalclient.Request{ID: id, Type: "DeleteTenant", Input: workflows.DeleteTenantInput{Tenant: name}, Tenant: name})
	if err != nil {
		return err
	}
	return l.Completed(ctx, id)
}

// Completed waits for the end of the latest run and wants it to be a success.
func (l *Lab) Completed(ctx context.Context, id string) error {
	if err := l.Temporal.GetWorkflow(ctx, id, "").Get(ctx, nil); err != nil {
		return fmt.Errorf("workflow %s did not complete: %w", id, err)
	}
	return nil
}

// cancelled waits for the end of the latest run and wants it to be Canceled.
func (l *Lab) cancelled(ctx context.Context, run client.WorkflowRun) error {
	err := run.Get(ctx, nil)
	if temporal.IsCanceledError(err) {
		return nil
	}
	description, describeErr := l.Temporal.DescribeWorkflowExecution(ctx, run.GetID(), run.GetRunID())
	if describeErr != nil {
		return errors.Join(err, describeErr)
	}
	status := description.GetWorkflowExecutionInfo().GetStatus()
	return fmt.Errorf("workflow %s was cancelled and ended %s, want %s: %w", run.GetID(), status, enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED, err)
}

// deployment is the MachineDeployment of a tenant's pool on a host.
func deployment(tenant, host string) kubeclient.ObjectKey {
	return kubeclient.ObjectKey{Namespace: domain.TenantNamespace(tenant), Name: fmt.Sprintf("%s-%s-%s", tenant, pool, host)}
}

// Scale sets the number of a tenant's workers on a host, as a person does.
func (l *Lab) Scale(ctx context.Context, tenant, host string, replicas int32) error {
	object := &clusterv1.MachineDeployment{}
	if err := l.Kube.Get(ctx, deployment(tenant, host), object); err != nil {
		return fmt.Errorf("scale the workers of %s on %s: %w", tenant, host, err)
	}
	patch := kubeclient.MergeFrom(object.DeepCopy())
	object.Spec.Replicas = &replicas
	if err := l.Kube.Patch(ctx, object, patch); err != nil {
		return fmt.Errorf("scale the workers of %s on %s: %w", tenant, host, err)
	}
	return nil
}

// workers lists the records of a tenant's workers on a host.
func (l *Lab) workers(ctx context.Context, tenant, host string) ([]v1alpha1.AetherVM, error) {
	list := &v1alpha1.AetherVMList{}
	labels := kubeclient.MatchingLabels{domain.TenantLabel: tenant, domain.HostLabel: host, domain.RoleLabel: "worker"}
	if err := l.Kube.List(ctx, list, kubeclient.InNamespace(domain.SystemNamespace), labels); err != nil {
		return nil, fmt.Errorf("list AetherVMs: %w", err)
	}
	return list.Items, nil
}

// StartJoin asks for one worker on a host that has none, and returns the ID of
// its workflow once it runs.
func (l *Lab) StartJoin(ctx context.Context, tenant, host string) (string, error) {
	if err := l.Scale(ctx, tenant, host, 1); err != nil {
		return "", err
	}
	var id string
	err := eventually(ctx, "JoinWorker to be started", func(ctx context.Context) error {
		vms, err := l.workers(ctx, tenant, host)
		if err != nil {
			return err
		}
		if len(vms) == 0 {
			return fmt.Errorf("no AetherVM of %s on %s: %w", tenant, host, errNotYet)
		}
		id = workflows.MachineWorkflowID(vms[0].Name)
		_, found, err := l.processes.Latest(ctx, id)
		if err == nil && !found {
			err = fmt.Errorf("no workflow %s: %w", id, errNotYet)
		}
		return err
	})
	return id, err
}

// Join makes one worker on a host and waits until it is usable.
func (l *Lab) Join(ctx context.Context, tenant, host string) error {
	id, err := l.StartJoin(ctx, tenant, host)
	if err != nil {
		return err
	}
	return l.Completed(ctx, id)
}

// RemoveWorkers takes a tenant's workers on a host away, and waits until what
// there is equals base again.
func (l *Lab) RemoveWorkers(ctx context.Context, tenant, host string, base Inventory) error {
	if err := l.Scale(ctx, tenant, host, 0); err != nil {
		return err
	}
	return l.Equals(ctx, base)
}

// Open tells whether a workflow has not ended.
func (l *Lab) Open(ctx context.Context, id string) (bool, error) {
	run, found, err := l.processes.Latest(ctx, id)
	return found && run.Open(), err
}

// ProxyHost is the host of a tenant's proxy, or empty.
func (l *Lab) ProxyHost(tenant string) string {
	for _, vm := range l.World.Proxmox.VMs() {
		if vm.Name == domain.ProxyName(tenant, 1) {
			return vm.Node
		}
	}
	return ""
}
