package scenario

import (
	"context"
	"fmt"
	"strings"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/workflows"
)

// journey is a tenant's life from creation to deletion while something goes
// wrong on the way.
type journey struct {
	t        *T
	name     string
	temporal client.Client
}

// begin starts a creation and returns while it runs.
func (t *T) begin(ctx context.Context, name string) (*journey, error) {
	j, err := t.newJourney(ctx, name)
	if err != nil {
		return nil, err
	}
	file, err := t.namedTenantFile(name)
	if err != nil {
		return nil, err
	}
	out, err := t.starter(ctx, "", "tenant", "create", "-f", file, "--detach")
	if err == nil && out.code != 0 {
		err = unexpected("starter tenant create ended with %d: %s%s", out.code, out.stdout, out.stderr)
	}
	return j, err
}

// newJourney connects to Temporal and sees to it that nothing stays.
func (t *T) newJourney(ctx context.Context, name string) (*journey, error) {
	c, err := t.connectTemporal(ctx)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func(ctx context.Context) error {
		defer c.Close()
		return t.ensureDeleted(ctx, name)
	})
	return &journey{t: t, name: name, temporal: c}, nil
}

func (j *journey) id() string { return workflows.TenantWorkflowID(j.name) }

// closed waits for the end of the latest run and returns how it ended.
func (j *journey) closed(ctx context.Context) (enumspb.WorkflowExecutionStatus, error) {
	var status enumspb.WorkflowExecutionStatus
	err := eventually(ctx, "the end of "+j.id(), func(ctx context.Context) error {
		seen, err := j.temporal.DescribeWorkflowExecution(ctx, j.id(), "")
		if err != nil {
			return fmt.Errorf("look at %s: %w", j.id(), err)
		}
		if status = seen.GetWorkflowExecutionInfo().GetStatus(); status == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
			return unexpected("it is running")
		}
		return nil
	})
	return status, err
}

// arrives waits for the creation, and looks whether all is there once.
func (j *journey) arrives(ctx context.Context) error {
	status, err := j.closed(ctx)
	if err != nil {
		return err
	}
	if status != enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED {
		return unexpected("the creation of %s ended as %s: %v", j.name, status, j.temporal.GetWorkflow(ctx, j.id(), "").Get(ctx, nil))
	}
	made, err := j.t.openTenant(ctx, j.name)
	if err != nil {
		return err
	}
	node, err := made.onlyNode(ctx)
	if err != nil {
		return err
	}
	if err := ready(node); err != nil {
		return err
	}
	if err := made.noTokens(ctx); err != nil {
		return err
	}
	return j.t.oneEach(ctx, j.name)
}

// ends deletes the tenant and looks for what is left.
func (j *journey) ends(ctx context.Context) error {
	if err := j.t.deleteTenant(ctx, j.name); err != nil {
		return err
	}
	return j.t.leftovers(ctx, j.name)
}

// complete is arrives and ends.
func (j *journey) complete(ctx context.Context) error {
	if err := j.arrives(ctx); err != nil {
		return err
	}
	return j.ends(ctx)
}

// oneEach is an error unless each machine of a tenant has exactly one VM, with
// the machine's UUID, and there is no other VM of the tenant.
func (t *T) oneEach(ctx context.Context, name string) error {
	list := &v1alpha1.AetherVMList{}
	if err := t.Kube.List(ctx, list, kubeclient.InNamespace(domain.SystemNamespace), kubeclient.MatchingLabels{domain.TenantLabel: name}); err != nil {
		return fmt.Errorf("list machines: %w", err)
	}
	machines := map[string]int{}
	for _, vm := range list.Items {
		machines[vm.Name] = 0
	}
	for _, vm := range t.World.Proxmox.VMs() {
		if !strings.HasPrefix(vm.Name, name+"-") {
			continue
		}
		if _, known := machines[vm.UUID]; !known {
			return unexpected("VM %d %s is of no machine", vm.VMID, vm.Name)
		}
		machines[vm.UUID]++
	}
	for id, count := range machines {
		if count != 1 {
			return unexpected("machine %s has %d VMs", id, count)
		}
	}
	if len(machines) != 2 {
		return unexpected("tenant %s has %d machines, not a proxy and a worker", name, len(machines))
	}
	return nil
}

// running waits until an activity of that type runs in a workflow whose ID has
// the prefix, and returns that ID.
func (j *journey) running(ctx context.Context, prefix, activity string) (string, error) {
	found := ""
	err := eventually(ctx, activity+" to run", func(ctx context.Context) error {
		runs, err := executions(ctx, j.temporal)
		if err != nil {
			return err
		}
		for _, run := range runs {
			id := run.GetExecution().GetWorkflowId()
			if run.GetStatus() != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING || !strings.HasPrefix(id, prefix) || !j.concerns(run.GetType().GetName(), id) {
				continue
			}
			seen, err := j.temporal.DescribeWorkflowExecution(ctx, id, run.GetExecution().GetRunId())
			if err != nil {
				return fmt.Errorf("look at %s: %w", id, err)
			}
			for _, p := range seen.GetPendingActivities() {
				if p.GetActivityType().GetName() == activity {
					found = id
					return nil
				}
			}
		}
		return unexpected("it does not")
	})
	return found, err
}

// concerns keeps a journey to its own tenant: other tenants' machines are at
// rest, so only the tenant's workflow has a name to look at.
func (j *journey) concerns(kind, id string) bool { return kind == "JoinWorker" || id == j.id() }
