package workflows

import "go.temporal.io/sdk/workflow"

// Registry is what a worker, a test environment and a replayer have in common.
type Registry interface {
	RegisterWorkflowWithOptions(w any, options workflow.RegisterOptions)
}

// Register registers all workflows. Renaming one is a migration: open runs
// carry its name.
func Register(r Registry) {
	for name, w := range map[string]any{
		"CreateTenant": CreateTenant,
		"ApplyTenant":  ApplyTenant,
		"DeleteTenant": DeleteTenant,
		"JoinWorker":   JoinWorker,
		"RemoveWorker": RemoveWorker,
	} {
		r.RegisterWorkflowWithOptions(w, workflow.RegisterOptions{Name: name})
	}
}
