package workflows

import (
	"fmt"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"aether.internal/aether/activities"
	"aether.internal/aether/internal/domain"
)

// CreateTenantInput is the tenant as its AetherCluster's JSON: the same
// document that kubectl applies may be the input.
type CreateTenantInput = domain.TenantDocument

// CreateTenantResult is a cluster that can be used.
type CreateTenantResult struct {
	Tenant   string `json:"tenant"`
	Endpoint string `json:"endpoint"`
	// KubeconfigSecret is namespace/name of the published kubeconfig.
	KubeconfigSecret string `json:"kubeconfigSecret"`
	Nodes            int    `json:"nodes"`
	// Proven tells whether a node has proven the cluster. A tenant without
	// workers is ready, not yet proven by a node.
	Proven bool `json:"proven"`
}

// CreateTenant turns a tenant document into a usable cluster: plan and checks;
// objects written; the proxy's address leased; proxy VM and control plane side
// by side; Cilium with an explicit API address; pools; first workers; the
// kubeconfig published. It answers ProgressQuery and lives for one creation.
//
// A failure or cancellation undoes the infrastructure, and never objects the
// run did not create. The reason is a condition of the AetherCluster, and
// starting it again is the way to retry.
func CreateTenant(ctx workflow.Context, in CreateTenantInput) (*CreateTenantResult, error) {
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
	c := &createTenant{tenant: tenant, ref: activities.TenantRef{Tenant: tenant.Name}, progress: p}
	result, err := c.run(ctx)
	if err != nil {
		return nil, c.undo(ctx, err)
	}
	return result, nil
}

type createTenant struct {
	tenant   domain.Tenant
	ref      activities.TenantRef
	progress *progress

	planned activities.PlanTenantResult
	written activities.WriteTenantResult
	proxy   activities.LeaseProxyResult
	// touched is true once there may be something to undo.
	touched bool
}

func (c *createTenant) run(ctx workflow.Context) (*CreateTenantResult, error) {
	for _, part := range []struct {
		phase string
		run   func(workflow.Context) error
	}{
		{"Planning", c.prepare},
		{"Building", c.build},
		{"Connecting", c.connect},
		{"Populating", c.populate},
	} {
		if err := c.progress.phase(ctx, part.phase); err != nil {
			return nil, err
		}
		if err := part.run(ctx); err != nil {
			return nil, err
		}
	}
	return c.finish(ctx)
}

// prepare checks everything, then writes the desired state and takes the
// proxy's address: the API server's certificate needs it before it is born.
func (c *createTenant) prepare(ctx workflow.Context) error {
	err := c.progress.step(ctx, "plan", "the site to be looked at", func(ctx workflow.Context) error {
		in := activities.PlanTenantInput{Tenant: c.tenant}
		return workflow.ExecuteActivity(longTask(ctx, "Plan tenant "+c.tenant.Name), tenants.PlanTenant, in).Get(ctx, &c.planned)
	})
	if err != nil {
		return err
	}
	c.tenant, c.touched = c.planned.Tenant, true
	err = c.progress.step(ctx, "write objects", "the management API server", func(ctx workflow.Context) error {
		in := activities.WriteTenantInput{Tenant: c.tenant}
		return workflow.ExecuteActivity(quickCall(ctx, "Write Cluster and AetherCluster"), tenants.WriteTenant, in).Get(ctx, &c.written)
	})
	if err != nil {
		return err
	}
	return c.progress.step(ctx, "lease proxy address", "a free proxy address", func(ctx workflow.Context) error {
		in := activities.LeaseProxyInput{Tenant: c.tenant.Name, Network: c.tenant.Spec.Network, Host: c.planned.Plan.ProxyHost()}
		return workflow.ExecuteActivity(quickCall(ctx, "Lease the proxy's addresses"), tenants.LeaseProxy, in).Get(ctx, &c.proxy)
	})
}

// build makes the proxy VM and the control plane side by side.
func (c *createTenant) build(ctx workflow.Context) error {
	return parallel(ctx, c.buildProxy, c.buildControlPlane)
}

func (c *createTenant) buildProxy(ctx workflow.Context) error {
	ref := activities.MachineRef{MachineID: c.proxy.MachineID}
	medium := bootStep{name: "attach medium", waitsFor: "the medium with the enrolment token to be uploaded", summary: "Attach the proxy's medium", activity: envoy.AttachSeed}
	if _, err := bringUp(ctx, c.progress, c.proxy.MachineID, medium); err != nil {
		return err
	}
	err := c.progress.step(ctx, "proxy enrolled", "the proxy's agent to enrol", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(longTask(ctx, "Wait for the proxy to enrol"), envoy.WaitEnrolled, ref).Get(ctx, nil)
	})
	if err != nil {
		return err
	}
	return c.progress.step(ctx, "remove medium", "the medium to be deleted", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(longTask(ctx, "Delete the proxy's medium"), proxmox.RemoveSeed, ref).Get(ctx, nil)
	})
}

func (c *createTenant) buildControlPlane(ctx workflow.Context) error {
	err := c.progress.step(ctx, "control plane", "Kamaji's TenantControlPlane to be accepted", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(quickCall(ctx, "Apply the TenantControlPlane"), kamaji.ApplyControlPlane, c.ref).Get(ctx, nil)
	})
	if err != nil {
		return err
	}
	err = c.progress.step(ctx, "control plane ready", "API server, controllers, cluster-info and RBAC", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(longTask(ctx, "Wait for the control plane"), kamaji.WaitControlPlane, c.ref).Get(ctx, nil)
	})
	if err != nil {
		return err
	}
	return c.progress.step(ctx, "kubeconfigs", "the management API server", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(quickCall(ctx, "Write kubeconfigs for Cluster API core and the tenant"), kamaji.PublishControlPlane, c.ref).Get(ctx, nil)
	})
}

// connect proves the tenant's door and installs the network. No node exists
// yet, so nothing of Cilium is waited for.
func (c *createTenant) connect(ctx workflow.Context) error {
	err := c.progress.step(ctx, "proxy path", fmt.Sprintf("the API server to answer at %s:%d", c.proxy.Address, domain.APIServerPort), func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(longTask(ctx, "Wait for the API server behind the proxy"), envoy.WaitPath, c.ref).Get(ctx, nil)
	})
	if err != nil {
		return err
	}
	return c.progress.step(ctx, "cilium", "the Helm release to be written", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(longTask(ctx, "Install Cilium"), cilium.InstallCilium, c.ref).Get(ctx, nil)
	})
}

// populate makes the pools and waits for their first workers.
func (c *createTenant) populate(ctx workflow.Context) error {
	return applyPools(ctx, c.progress, c.ref)
}

// applyPools writes the MachineDeployments and waits until as many workers are
// usable as they want.
func applyPools(ctx workflow.Context, p *progress, ref activities.TenantRef) error {
	err := p.step(ctx, "pools", "the management API server", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(quickCall(ctx, "Apply the pools' MachineDeployments"), pools.ApplyPools, ref).Get(ctx, nil)
	})
	if err != nil {
		return err
	}
	return p.step(ctx, "workers", "the pools' workers to be usable", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(longTask(ctx, "Wait for the workers"), pools.WaitWorkers, ref).Get(ctx, nil)
	})
}

func (c *createTenant) finish(ctx workflow.Context) (*CreateTenantResult, error) {
	var done activities.CompleteTenantResult
	err := c.progress.step(ctx, "complete", "the management API server", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(quickCall(ctx, "Record that the tenant is ready"), tenants.CompleteTenant, c.ref).Get(ctx, &done)
	})
	if err != nil {
		return nil, err
	}
	// What was cancelled must not be found there, also when the last activity
	// was done already.
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := c.progress.phase(ctx, "Ready"); err != nil {
		return nil, err
	}
	return &CreateTenantResult{
		Tenant:           c.tenant.Name,
		Endpoint:         domain.EndpointURL(c.proxy.Address),
		KubeconfigSecret: done.KubeconfigSecret,
		Nodes:            done.Nodes,
		Proven:           done.Nodes > 0,
	}, nil
}

// undo takes the infrastructure down again. Objects stay, so that the reason
// can be read there, unless a person cancelled a run that created them.
func (c *createTenant) undo(ctx workflow.Context, cause error) error {
	dctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	cancelled := temporal.IsCanceledError(cause)
	if err := c.progress.phase(dctx, "Undoing"); err != nil {
		return err
	}
	if c.touched {
		if err := c.whose(dctx, cancelled); err != nil {
			return fmt.Errorf("undo after %q: %w", Reason(cause), err)
		}
		if err := c.undoInfrastructure(dctx, cancelled); err != nil {
			return fmt.Errorf("undo after %q: %w", Reason(cause), err)
		}
	}
	if !cancelled || !c.written.Created {
		report := activities.FailedTenant{Tenant: c.tenant.Name, Cancelled: cancelled, Refused: activities.IsRefused(cause), Message: Reason(cause)}
		err := workflow.ExecuteActivity(untilDone(dctx, "Record the reason on the AetherCluster"), tenants.ReportFailedTenant, report).Get(dctx, nil)
		if err != nil {
			return fmt.Errorf("record %q: %w", Reason(cause), err)
		}
	}
	if cancelled {
		return cause
	}
	if err := c.progress.phase(dctx, "Failed"); err != nil {
		return err
	}
	return ended(cause)
}

// whose asks whether the objects are the run's own, when the cancellation came
// before WriteTenant could tell.
func (c *createTenant) whose(ctx workflow.Context, cancelled bool) error {
	if !cancelled || c.written.Created {
		return nil
	}
	return workflow.ExecuteActivity(untilDone(ctx, "Look whose the tenant's objects are"), tenants.FindTenant, c.ref).Get(ctx, &c.written)
}

func (c *createTenant) undoInfrastructure(ctx workflow.Context, cancelled bool) error {
	if cancelled && c.written.Created {
		return dismantle(ctx, c.progress, c.ref)
	}
	err := c.progress.step(ctx, "remove pools", "the pools' workers to be gone", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(untilDone(ctx, "Remove the pools and wait for their workers to be gone"), pools.RemovePools, c.ref).Get(ctx, nil)
	})
	if err != nil {
		return err
	}
	return removeInfrastructure(ctx, c.progress, c.ref)
}
