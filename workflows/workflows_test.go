package workflows_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"aether.internal/aether/activities"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/plan"
	"aether.internal/aether/workflows"
)

const machineID = "6f1e0c52-8e0f-4a36-9a0e-0f6f2a3c4d5e"

// journal stands in for the outside world: it notes which activities ran, in
// order, and fails or cancels where a test says.
type journal struct {
	mu   sync.Mutex
	ran  []string
	fail map[string]error
	hook map[string]func()
}

func (j *journal) do(name string) error {
	j.mu.Lock()
	j.ran = append(j.ran, name)
	err, hook := j.fail[name], j.hook[name]
	j.mu.Unlock()
	if hook != nil {
		hook()
	}
	return err
}

func (j *journal) list() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.ran)
}

// environment returns a test environment whose activities are the journal's.
func environment(t *testing.T, j *journal) *testsuite.TestWorkflowEnvironment {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	workflows.Register(env)
	plain := func(name string) {
		env.RegisterActivityWithOptions(func(context.Context, map[string]any) error { return j.do(name) }, activity.RegisterOptions{Name: name})
	}
	for _, name := range []string{
		"CloneVM", "ConfigureVM", "FlushNeighbours", "StartVM", "DestroyVM", "RemoveSeed", "ReleaseMachine", "ForgetMachine",
		"ReportProvisioned", "ReportUsable", "ReportFailed", "WaitMaintenance", "PushMachineConfig", "DeleteBootstrapToken", "ProveNode",
		"AttachSeed", "WaitEnrolled", "WaitPath", "RevokeProxy", "ApplyControlPlane", "WaitControlPlane", "PublishControlPlane",
		"DeleteControlPlane", "InstallCilium", "ApplyPools", "WaitWorkers", "RemovePools", "WaitMachinesGone", "DeleteCluster",
		"FinishDeletion", "ReportFailedTenant",
	} {
		plain(name)
	}
	register(env, j, "LeaseMachine", activities.LeasedMachine{Name: "demo-workers-6f1e0c52", VMID: 1001, Host: "pv1-1", Address: "10.1.1.50", ProviderID: "aether://demo/" + machineID, FlushNeighbours: true})
	register(env, j, "WaitNodeReady", activities.NodeResult{NodeName: "demo-workers-6f1e0c52"})
	register(env, j, "PlanTenant", activities.PlanTenantResult{Tenant: domain.Tenant{Name: "demo"}, Plan: plan.Plan{VMs: []plan.VM{{Role: "proxy", Host: "pv1-1"}}}})
	register(env, j, "WriteTenant", activities.WriteTenantResult{Created: true})
	register(env, j, "FindTenant", activities.WriteTenantResult{Created: true})
	register(env, j, "LeaseProxy", activities.LeaseProxyResult{MachineID: machineID, Address: "10.1.1.10", Generation: 1})
	register(env, j, "CompleteTenant", activities.CompleteTenantResult{KubeconfigSecret: "tenant-demo/demo-user-kubeconfig", Nodes: 2})
	register(env, j, "ListMachines", activities.TenantMachines{MachineIDs: []string{machineID}})
	register(env, j, "SweepTenant", activities.SweepResult{Places: 7})
	return env
}

func register[T any](env *testsuite.TestWorkflowEnvironment, j *journal, name string, result T) {
	env.RegisterActivityWithOptions(func(context.Context, map[string]any) (T, error) { return result, j.do(name) }, activity.RegisterOptions{Name: name})
}

func joinInput() workflows.JoinWorkerInput {
	return workflows.JoinWorkerInput{MachineID: machineID, Tenant: "demo", Pool: "workers"}
}

func TestJoinWorkerRunsItsStepsInOrder(t *testing.T) {
	j := &journal{}
	env := environment(t, j)
	env.ExecuteWorkflow("JoinWorker", joinInput())
	if err := env.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"LeaseMachine", "CloneVM", "ConfigureVM", "FlushNeighbours", "StartVM", "WaitMaintenance", "PushMachineConfig",
		"ReportProvisioned", "WaitNodeReady", "DeleteBootstrapToken", "ProveNode", "ReportUsable",
	}
	if got := j.list(); !slices.Equal(got, want) {
		t.Errorf("ran %v, want %v", got, want)
	}
	var result workflows.JoinWorkerResult
	if err := env.GetWorkflowResult(&result); err != nil {
		t.Fatal(err)
	}
	if result.NodeName != "demo-workers-6f1e0c52" || result.VMID != 1001 {
		t.Errorf("result %+v", result)
	}
}

func TestJoinWorkerUndoesWhateverStepFails(t *testing.T) {
	steps := []string{"LeaseMachine", "CloneVM", "ConfigureVM", "FlushNeighbours", "StartVM", "WaitMaintenance", "PushMachineConfig", "ReportProvisioned", "WaitNodeReady", "DeleteBootstrapToken", "ProveNode", "ReportUsable"}
	undo := []string{"DestroyVM", "DeleteBootstrapToken", "ReleaseMachine", "ReportFailed"}
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			j := &journal{}
			j.fail = map[string]error{step: temporal.NewNonRetryableApplicationError("the reason", activities.InvalidType, nil)}
			if step == "DeleteBootstrapToken" {
				// It is part of the undo too: fail it once.
				once := sync.OnceValue(func() error { return j.fail[step] })
				j.hook = map[string]func(){step: func() { _ = once(); j.mu.Lock(); delete(j.fail, step); j.mu.Unlock() }}
			}
			env := environment(t, j)
			env.ExecuteWorkflow("JoinWorker", joinInput())
			err := env.GetWorkflowError()
			if err == nil || workflows.Reason(err) != "the reason" {
				t.Errorf("ended with %v, want the step's reason first", err)
			}
			if got := j.list(); !slices.Equal(got[len(got)-len(undo):], undo) {
				t.Errorf("ran %v, want it to end with %v", got, undo)
			}
		})
	}
}

func TestJoinWorkerCancelledAtEachStep(t *testing.T) {
	for _, step := range []string{"LeaseMachine", "CloneVM", "StartVM", "WaitMaintenance", "PushMachineConfig", "WaitNodeReady", "ProveNode", "ReportUsable"} {
		t.Run(step, func(t *testing.T) {
			j := &journal{}
			env := environment(t, j)
			j.hook = map[string]func(){step: env.CancelWorkflow}
			env.ExecuteWorkflow("JoinWorker", joinInput())
			if err := env.GetWorkflowError(); !temporal.IsCanceledError(errors.Unwrap(err)) && !temporal.IsCanceledError(err) {
				t.Errorf("ended with %v, want cancelled", err)
			}
			got := j.list()
			for _, want := range []string{"DestroyVM", "ReleaseMachine", "ReportFailed"} {
				if !slices.Contains(got, want) {
					t.Errorf("ran %v, want %s in it", got, want)
				}
			}
		})
	}
}

func TestCreateTenantBuildsSideBySide(t *testing.T) {
	j := &journal{}
	env := environment(t, j)
	env.ExecuteWorkflow("CreateTenant", domain.Tenant{Name: "demo"}.Document())
	if err := env.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
	var result workflows.CreateTenantResult
	if err := env.GetWorkflowResult(&result); err != nil {
		t.Fatal(err)
	}
	if result.Endpoint != "https://10.1.1.10:6443" || !result.Proven {
		t.Errorf("result %+v", result)
	}
	got := j.list()
	before := func(first, second string) {
		t.Helper()
		if i, k := slices.Index(got, first), slices.Index(got, second); i < 0 || k < 0 || i > k {
			t.Errorf("%s must come before %s in %v", first, second, got)
		}
	}
	before("LeaseProxy", "ApplyControlPlane") // the certificate needs the address
	before("LeaseProxy", "CloneVM")
	before("AttachSeed", "StartVM")
	before("WaitEnrolled", "RemoveSeed")
	before("PublishControlPlane", "WaitPath")
	before("WaitPath", "InstallCilium")
	before("InstallCilium", "ApplyPools")
	before("WaitWorkers", "CompleteTenant")
}

func TestCreateTenantRefusedMakesNothing(t *testing.T) {
	j := &journal{fail: map[string]error{"PlanTenant": temporal.NewNonRetryableApplicationError("no memory", activities.RefusedType, nil)}}
	env := environment(t, j)
	env.ExecuteWorkflow("CreateTenant", domain.Tenant{Name: "demo"}.Document())
	if err := env.GetWorkflowError(); err == nil || workflows.Reason(err) != "no memory" {
		t.Errorf("ended with %v", err)
	}
	if got, want := j.list(), []string{"PlanTenant", "ReportFailedTenant"}; !slices.Equal(got, want) {
		t.Errorf("ran %v, want %v", got, want)
	}
}

func TestCreateTenantFailureKeepsObjects(t *testing.T) {
	j := &journal{fail: map[string]error{"InstallCilium": temporal.NewNonRetryableApplicationError("bad chart", activities.InvalidType, nil)}}
	env := environment(t, j)
	env.ExecuteWorkflow("CreateTenant", domain.Tenant{Name: "demo"}.Document())
	if err := env.GetWorkflowError(); err == nil {
		t.Fatal("completed")
	}
	got := j.list()
	for _, want := range []string{"RemovePools", "DeleteControlPlane", "DestroyVM", "ReleaseMachine", "RevokeProxy", "ReportFailedTenant"} {
		if !slices.Contains(got, want) {
			t.Errorf("ran %v, want %s in it", got, want)
		}
	}
	if slices.Contains(got, "DeleteCluster") {
		t.Errorf("ran %v: a failure must not delete the objects that tell its reason", got)
	}
}

func TestCreateTenantCancelledDeletesItsOwnObjects(t *testing.T) {
	for _, step := range []string{"WriteTenant", "WaitWorkers", "CompleteTenant"} {
		t.Run(step, func(t *testing.T) {
			j := &journal{}
			env := environment(t, j)
			j.hook = map[string]func(){step: env.CancelWorkflow}
			env.ExecuteWorkflow("CreateTenant", domain.Tenant{Name: "demo"}.Document())
			if err := env.GetWorkflowError(); err == nil {
				t.Fatal("completed")
			}
			got := j.list()
			for _, want := range []string{"DeleteCluster", "WaitMachinesGone", "DeleteControlPlane", "DestroyVM", "FinishDeletion"} {
				if !slices.Contains(got, want) {
					t.Errorf("ran %v, want %s in it", got, want)
				}
			}
		})
	}
}

func TestCreateTenantRefusesABadDocument(t *testing.T) {
	j := &journal{}
	env := environment(t, j)
	env.ExecuteWorkflow("CreateTenant", domain.TenantDocument{Kind: "Pod", Metadata: domain.DocumentMetadata{Name: "demo"}})
	err := env.GetWorkflowError()
	if err == nil || !strings.Contains(workflows.Reason(err), `kind: found "Pod"`) {
		t.Errorf("ended with %v", err)
	}
	if got := j.list(); len(got) > 0 {
		t.Errorf("ran %v", got)
	}
}

func TestDeleteTenantGoesInCoresOrder(t *testing.T) {
	j := &journal{}
	env := environment(t, j)
	env.ExecuteWorkflow("DeleteTenant", workflows.DeleteTenantInput{Tenant: "demo"})
	if err := env.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"DeleteCluster", "WaitMachinesGone", "DeleteControlPlane", "ListMachines", "DestroyVM", "DeleteBootstrapToken",
		"ReleaseMachine", "ForgetMachine", "RevokeProxy", "FinishDeletion", "SweepTenant",
	}
	if got := j.list(); !slices.Equal(got, want) {
		t.Errorf("ran %v, want %v", got, want)
	}
}

func TestRemoveWorkerForgetsLast(t *testing.T) {
	j := &journal{}
	env := environment(t, j)
	env.ExecuteWorkflow("RemoveWorker", workflows.RemoveWorkerInput{MachineID: machineID, Tenant: "demo"})
	if err := env.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
	want := []string{"DestroyVM", "DeleteBootstrapToken", "ReleaseMachine", "ForgetMachine"}
	if got := j.list(); !slices.Equal(got, want) {
		t.Errorf("ran %v, want %v", got, want)
	}
}

func TestProgressTellsWhatIsWaitedFor(t *testing.T) {
	j := &journal{}
	env := environment(t, j)
	var seen workflows.Progress
	j.hook = map[string]func(){"CloneVM": func() {
		answer, err := env.QueryWorkflow(workflows.ProgressQuery)
		if err == nil {
			err = answer.Get(&seen)
		}
		if err != nil {
			t.Error(err)
		}
	}}
	env.ExecuteWorkflow("JoinWorker", joinInput())
	if len(seen.Steps) != 2 || seen.Steps[1].Name != "clone" || seen.Steps[1].State != workflows.StepRunning || !strings.Contains(seen.Steps[1].WaitsFor, "VM 1001") {
		t.Errorf("progress during the clone: %+v", seen)
	}
}

func TestRegisteredNames(t *testing.T) {
	for id, parse := range map[string]func(string) (string, error){
		workflows.TenantWorkflowID("a"):  workflows.TenantOfWorkflowID,
		workflows.MachineWorkflowID("a"): workflows.MachineOfWorkflowID,
	} {
		if name, err := parse(id); err != nil || name != "a" {
			t.Errorf("%s: %q, %v", id, name, err)
		}
		if _, err := parse("other/a"); err == nil {
			t.Error("a strange ID was accepted")
		}
	}
}
