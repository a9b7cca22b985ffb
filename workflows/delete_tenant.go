package workflows

import (
	"go.temporal.io/sdk/workflow"

	"aether.internal/aether/activities"
)

// DeleteTenantInput names the tenant to turn into nothing.
type DeleteTenantInput struct {
	Tenant string `json:"tenant"`
}

// DeleteTenantResult tells what a last sweep saw.
type DeleteTenantResult struct {
	// Swept is how many places were looked at, none of which held anything.
	Swept int `json:"swept"`
}

// DeleteTenant turns a tenant into nothing, in Cluster API core's order:
// Machines, control plane, infrastructure. It deletes the Cluster object first
// if nobody has, and each finalizer is released by the activity that saw the
// thing gone. It answers ProgressQuery and runs until it has succeeded;
// cancelling it stops it where it is, and starting it again goes on.
func DeleteTenant(ctx workflow.Context, in DeleteTenantInput) (*DeleteTenantResult, error) {
	p, err := newProgress(ctx, "tenant "+in.Tenant)
	if err != nil {
		return nil, err
	}
	if err := tag(ctx, in.Tenant, "", ""); err != nil {
		return nil, err
	}
	if err := p.phase(ctx, "Deleting"); err != nil {
		return nil, err
	}
	ref := activities.TenantRef{Tenant: in.Tenant}
	if err := dismantle(ctx, p, ref); err != nil {
		return nil, err
	}
	var swept activities.SweepResult
	err = p.step(ctx, "sweep", "every place to be looked at", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(untilDone(ctx, "Look for anything left of tenant "+in.Tenant), tenants.SweepTenant, ref).Get(ctx, &swept)
	})
	if err != nil {
		return nil, err
	}
	return &DeleteTenantResult{Swept: swept.Places}, p.phase(ctx, "Deleted")
}

// dismantle deletes the tenant's objects and what they stand for.
func dismantle(ctx workflow.Context, p *progress, ref activities.TenantRef) error {
	err := p.step(ctx, "delete cluster", "Cluster API core to begin", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(untilDone(ctx, "Delete the Cluster object"), tenants.DeleteCluster, ref).Get(ctx, nil)
	})
	if err != nil {
		return err
	}
	err = p.step(ctx, "machines gone", "core and RemoveWorker to remove all Machines", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(untilDone(ctx, "Wait for all Machines to be gone"), pools.WaitMachinesGone, ref).Get(ctx, nil)
	})
	if err != nil {
		return err
	}
	if err := removeInfrastructure(ctx, p, ref); err != nil {
		return err
	}
	return p.step(ctx, "objects gone", "finalizers to be released and the namespace to be gone", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(untilDone(ctx, "Release the finalizers and delete the namespace"), tenants.FinishDeletion, ref).Get(ctx, nil)
	})
}

// removeInfrastructure removes control plane, proxy and leases, and leaves the
// objects of the desired state alone.
func removeInfrastructure(ctx workflow.Context, p *progress, ref activities.TenantRef) error {
	err := p.step(ctx, "control plane gone", "the TenantControlPlane and its pods to be gone", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(untilDone(ctx, "Delete the control plane"), kamaji.DeleteControlPlane, ref).Get(ctx, nil)
	})
	if err != nil {
		return err
	}
	var left activities.TenantMachines
	err = workflow.ExecuteActivity(untilDone(ctx, "List the tenant's virtual machines"), machines.ListMachines, ref).Get(ctx, &left)
	if err != nil {
		return err
	}
	for _, id := range left.MachineIDs {
		if err := takeDown(ctx, p, id); err != nil {
			return err
		}
		err := workflow.ExecuteActivity(untilDone(ctx, "Delete the record of machine "+id), machines.ForgetMachine, activities.MachineRef{MachineID: id}).Get(ctx, nil)
		if err != nil {
			return err
		}
	}
	return p.step(ctx, "proxy identity gone", "the management API server", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(untilDone(ctx, "Revoke the proxy's identity"), envoy.RevokeProxy, ref).Get(ctx, nil)
	})
}
