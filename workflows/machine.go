package workflows

import (
	"fmt"

	"go.temporal.io/sdk/workflow"

	"aether.internal/aether/activities"
)

// Activity structs, only ever used to name methods.
var (
	machines *activities.Machines
	proxmox  *activities.Proxmox
	talos    *activities.Talos
	nodes    *activities.Nodes
	tenants  *activities.Tenants
	pools    *activities.Pools
	kamaji   *activities.Kamaji
	envoy    *activities.Envoy
	cilium   *activities.Cilium
)

// bootStep is one activity on the way to a running virtual machine.
type bootStep struct {
	name, waitsFor, summary string
	activity                any
}

// bringUp turns an AetherVM into a running virtual machine: leases, clone,
// configuration, what else must be done before it starts, neighbour flush,
// start. It serves workers and proxies.
func bringUp(ctx workflow.Context, p *progress, machineID string, beforeStart ...bootStep) (*activities.LeasedMachine, error) {
	ref := activities.MachineRef{MachineID: machineID}
	var leased activities.LeasedMachine
	err := p.step(ctx, "lease", "a VMID, addresses and memory on the host", func(ctx workflow.Context) error {
		return workflow.ExecuteActivity(longTask(ctx, "Lease VMID, addresses and memory"), machines.LeaseMachine, ref).Get(ctx, &leased)
	})
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("VM %d (%s) on %s", leased.VMID, leased.Name, leased.Host)
	steps := []bootStep{
		{name: "clone", waitsFor: "a clone slot and the clone task of " + name, summary: "Clone " + name, activity: proxmox.CloneVM},
		{name: "configure", waitsFor: "the configuration task of " + name, summary: "Configure " + name, activity: proxmox.ConfigureVM},
	}
	steps = append(steps, beforeStart...)
	if leased.FlushNeighbours {
		steps = append(steps, bootStep{name: "flush neighbours", waitsFor: "the hosts to forget the address's old MAC", summary: "Flush stale neighbour entries for " + leased.Name, activity: proxmox.FlushNeighbours})
	}
	steps = append(steps, bootStep{name: "start", waitsFor: "the start task of " + name, summary: "Start " + name, activity: proxmox.StartVM})
	for _, s := range steps {
		err := p.step(ctx, s.name, s.waitsFor, func(ctx workflow.Context) error {
			return workflow.ExecuteActivity(longTask(ctx, s.summary), s.activity, ref).Get(ctx, nil)
		})
		if err != nil {
			return nil, err
		}
	}
	return &leased, nil
}

// takeDown turns a machine into nothing: the VM stopped and destroyed, its
// token deleted, its leases released. Each activity reads before it writes, so
// it may run on anything that was half made.
func takeDown(ctx workflow.Context, p *progress, machineID string) error {
	ref := activities.MachineRef{MachineID: machineID}
	for _, s := range []struct {
		name, waitsFor, summary string
		activity                any
	}{
		{"destroy VM", "the VM to be stopped and destroyed", "Destroy the VM of machine " + machineID, proxmox.DestroyVM},
		{"delete token", "the bootstrap token to be gone", "Delete the bootstrap token of machine " + machineID, nodes.DeleteBootstrapToken},
		{"release", "leases and memory to be released", "Release the leases of machine " + machineID, machines.ReleaseMachine},
	} {
		err := p.step(ctx, s.name, s.waitsFor, func(ctx workflow.Context) error {
			return workflow.ExecuteActivity(untilDone(ctx, s.summary), s.activity, ref).Get(ctx, nil)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
