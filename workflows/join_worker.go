package workflows

import (
	"fmt"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"aether.internal/aether/activities"
)

// JoinWorkerInput names the AetherVM to turn into a worker.
type JoinWorkerInput struct {
	MachineID string `json:"machineID"`
	Tenant    string `json:"tenant"`
	Pool      string `json:"pool,omitempty"`
}

// JoinWorkerResult is the usable Node.
type JoinWorkerResult struct {
	NodeName   string `json:"nodeName"`
	VMID       int32  `json:"vmid"`
	Host       string `json:"host"`
	Address    string `json:"address"`
	ProviderID string `json:"providerID"`
}

// JoinWorker turns an AetherVM, claimed by an AetherMachine, into a usable
// Node: VM made and started, Talos configured in maintenance mode, Node Ready,
// without start-up taint, at the right address, and with a pod on it that
// answers exec. It answers ProgressQuery and lives for one join. When it fails
// for good or is cancelled it takes down all it made and says why on the
// object; the machine is then replaced, not repaired.
func JoinWorker(ctx workflow.Context, in JoinWorkerInput) (*JoinWorkerResult, error) {
	p, err := newProgress(ctx, "machine "+in.MachineID+" of tenant "+in.Tenant)
	if err != nil {
		return nil, err
	}
	if err := tag(ctx, in.Tenant, in.Pool, in.MachineID); err != nil {
		return nil, err
	}
	j := &joinWorker{in: in, ref: activities.MachineRef{MachineID: in.MachineID}, progress: p}
	result, err := j.run(ctx)
	if err != nil {
		return nil, j.undo(ctx, err)
	}
	return result, nil
}

type joinWorker struct {
	in       JoinWorkerInput
	ref      activities.MachineRef
	progress *progress
}

func (j *joinWorker) run(ctx workflow.Context) (*JoinWorkerResult, error) {
	if err := j.progress.phase(ctx, "Building"); err != nil {
		return nil, err
	}
	leased, err := bringUp(ctx, j.progress, j.in.MachineID)
	if err != nil {
		return nil, err
	}
	if err := j.progress.phase(ctx, "Joining"); err != nil {
		return nil, err
	}
	if err := j.configure(ctx, leased); err != nil {
		return nil, err
	}
	if err := j.report(ctx, "report provisioned", machines.ReportProvisioned); err != nil {
		return nil, err
	}
	node, err := j.prove(ctx, leased)
	if err != nil {
		return nil, err
	}
	if err := j.report(ctx, "report usable", machines.ReportUsable); err != nil {
		return nil, err
	}
	// A machine whose join was cancelled must not stay, also when the last
	// activity was done already.
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := j.progress.phase(ctx, "Usable"); err != nil {
		return nil, err
	}
	return &JoinWorkerResult{NodeName: node.NodeName, VMID: leased.VMID, Host: leased.Host, Address: leased.Address, ProviderID: leased.ProviderID}, nil
}

// configure waits for Talos in maintenance mode and gives it its configuration.
func (j *joinWorker) configure(ctx workflow.Context, leased *activities.LeasedMachine) error {
	err := j.progress.step(ctx, "boot", fmt.Sprintf("Talos in maintenance mode at %s:50000", leased.Address), func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(longTask(ctx, "Wait for Talos on "+leased.Name), talos.WaitMaintenance, j.ref).Get(ctx, nil)
	})
	if err != nil {
		return err
	}
	return j.progress.step(ctx, "push configuration", "Talos to accept the machine configuration", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(longTask(ctx, "Push the Talos configuration to "+leased.Name), talos.PushMachineConfig, j.ref).Get(ctx, nil)
	})
}

// prove waits until the Node can be used, and takes the token away.
func (j *joinWorker) prove(ctx workflow.Context, leased *activities.LeasedMachine) (*activities.NodeResult, error) {
	var node activities.NodeResult
	err := j.progress.step(ctx, "node ready", "Node "+leased.Name+" to register and be Ready", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(longTask(ctx, "Wait for Node "+leased.Name), nodes.WaitNodeReady, j.ref).Get(ctx, &node)
	})
	if err != nil {
		return nil, err
	}
	err = j.progress.step(ctx, "delete token", "the bootstrap token to be gone", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(quickCall(ctx, "Delete the bootstrap token of "+leased.Name), nodes.DeleteBootstrapToken, j.ref).Get(ctx, nil)
	})
	if err != nil {
		return nil, err
	}
	err = j.progress.step(ctx, "prove node", "a pod on "+leased.Name+" that answers logs and exec", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(longTask(ctx, "Prove that "+leased.Name+" is usable"), nodes.ProveNode, j.ref).Get(ctx, nil)
	})
	return &node, err
}

func (j *joinWorker) report(ctx workflow.Context, name string, activity any) error {
	return j.progress.step(ctx, name, "the management API server", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(quickCall(ctx, "Record it on the AetherMachine"), activity, j.ref).Get(ctx, nil)
	})
}

// undo takes down what was made, on a context that a cancellation of the
// workflow does not reach, and returns the error that ends the run.
func (j *joinWorker) undo(ctx workflow.Context, cause error) error {
	dctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	cancelled := temporal.IsCanceledError(cause)
	phase := "Undoing"
	if err := j.progress.phase(dctx, phase); err != nil {
		return err
	}
	if err := takeDown(dctx, j.progress, j.in.MachineID); err != nil {
		return fmt.Errorf("undo after %q: %w", Reason(cause), err)
	}
	failed := activities.FailedMachine{MachineID: j.in.MachineID, Cancelled: cancelled, Message: Reason(cause)}
	err := workflow.ExecuteActivity(untilDone(dctx, "Record the reason on the AetherMachine"), machines.ReportFailed, failed).Get(dctx, nil)
	if err != nil {
		return fmt.Errorf("record %q: %w", Reason(cause), err)
	}
	if cancelled {
		return cause
	}
	if err := j.progress.phase(dctx, "Failed"); err != nil {
		return err
	}
	return ended(cause)
}
