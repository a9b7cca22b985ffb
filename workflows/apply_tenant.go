package workflows

import (
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"aether.internal/aether/activities"
	"aether.internal/aether/internal/domain"
)

// ApplyTenantInput is the changed tenant as its AetherCluster's JSON.
type ApplyTenantInput = domain.TenantDocument

// ApplyTenantResult tells what the tenant has now.
type ApplyTenantResult struct {
	Tenant string `json:"tenant"`
	Nodes  int    `json:"nodes"`
}

// ApplyTenant turns a changed tenant document into the same cluster: pools
// added and removed, their bounds, labels and taints. What cannot change is
// refused with the reason before anything is done. Replicas are moved only
// into a pool's bounds. It answers ProgressQuery and lives for one change; a
// failure leaves what was reached, and starting it again goes on.
func ApplyTenant(ctx workflow.Context, in ApplyTenantInput) (*ApplyTenantResult, error) {
	tenant, err := in.Tenant()
	if err != nil {
		return nil, temporal.NewNonRetryableApplicationError(err.Error(), activities.RefusedType, nil)
	}
	p, err := newProgress(ctx, "tenant "+tenant.Name)
	if err != nil {
		return nil, err
	}
	if err := tag(ctx, tenant.Name, "", ""); err != nil {
		return nil, err
	}
	a := &applyTenant{tenant: tenant, ref: activities.TenantRef{Tenant: tenant.Name}, progress: p}
	result, err := a.run(ctx)
	if err != nil {
		return nil, a.report(ctx, err)
	}
	return result, nil
}

type applyTenant struct {
	tenant   domain.Tenant
	ref      activities.TenantRef
	progress *progress
}

func (a *applyTenant) run(ctx workflow.Context) (*ApplyTenantResult, error) {
	if err := a.progress.phase(ctx, "Planning"); err != nil {
		return nil, err
	}
	var planned activities.PlanTenantResult
	err := a.progress.step(ctx, "plan", "the site to be looked at", func(ctx workflow.Context) error {
		in := activities.PlanTenantInput{Tenant: a.tenant, Change: true}
		return workflow.ExecuteActivity(longTask(ctx, "Plan the change of tenant "+a.tenant.Name), tenants.PlanTenant, in).Get(ctx, &planned)
	})
	if err != nil {
		return nil, err
	}
	err = a.progress.step(ctx, "write objects", "the management API server", func(ctx workflow.Context) error {
		in := activities.WriteTenantInput{Tenant: planned.Tenant}
		return workflow.ExecuteActivity(quickCall(ctx, "Write Cluster and AetherCluster"), tenants.WriteTenant, in).Get(ctx, nil)
	})
	if err != nil {
		return nil, err
	}
	if err := a.progress.phase(ctx, "Populating"); err != nil {
		return nil, err
	}
	if err := applyPools(ctx, a.progress, a.ref); err != nil {
		return nil, err
	}
	var done activities.CompleteTenantResult
	err = a.progress.step(ctx, "complete", "the management API server", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(quickCall(ctx, "Record that the tenant is ready"), tenants.CompleteTenant, a.ref).Get(ctx, &done)
	})
	if err != nil {
		return nil, err
	}
	return &ApplyTenantResult{Tenant: a.tenant.Name, Nodes: done.Nodes}, a.progress.phase(ctx, "Ready")
}

// report records why the change ended, and leaves what was reached.
func (a *applyTenant) report(ctx workflow.Context, cause error) error {
	dctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	cancelled := temporal.IsCanceledError(cause)
	report := activities.FailedTenant{Tenant: a.tenant.Name, Change: true, Cancelled: cancelled, Refused: activities.IsRefused(cause), Message: Reason(cause)}
	err := workflow.ExecuteActivity(untilDone(dctx, "Record the reason on the AetherCluster"), tenants.ReportFailedTenant, report).Get(dctx, nil)
	if err != nil {
		return err
	}
	if cancelled {
		return cause
	}
	if err := a.progress.phase(dctx, "Failed"); err != nil {
		return err
	}
	return ended(cause)
}
