package workflows

import (
	"go.temporal.io/sdk/workflow"

	"aether.internal/aether/activities"
)

// RemoveWorkerInput names the AetherVM to turn into nothing.
type RemoveWorkerInput struct {
	MachineID string `json:"machineID"`
	Tenant    string `json:"tenant"`
	Pool      string `json:"pool,omitempty"`
}

// RemoveWorkerResult is empty: the machine is gone.
type RemoveWorkerResult struct{}

// RemoveWorker turns an AetherVM into nothing: VM, leases and token gone, then
// the finalizer of the AetherMachine released and the record deleted. The Node
// is Cluster API core's to delete, after. It answers ProgressQuery and runs
// until it has succeeded; cancelling it stops it where it is, and starting it
// again goes on.
func RemoveWorker(ctx workflow.Context, in RemoveWorkerInput) (*RemoveWorkerResult, error) {
	p, err := newProgress(ctx, "machine "+in.MachineID+" of tenant "+in.Tenant)
	if err != nil {
		return nil, err
	}
	if err := tag(ctx, in.Tenant, in.Pool, in.MachineID); err != nil {
		return nil, err
	}
	if err := p.phase(ctx, "Removing"); err != nil {
		return nil, err
	}
	if err := takeDown(ctx, p, in.MachineID); err != nil {
		return nil, err
	}
	err = p.step(ctx, "forget", "the management API server", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(untilDone(ctx, "Release the finalizer of the AetherMachine"), machines.ForgetMachine, activities.MachineRef{MachineID: in.MachineID}).Get(ctx, nil)
	})
	if err != nil {
		return nil, err
	}
	return &RemoveWorkerResult{}, p.phase(ctx, "Removed")
}
