package workflows

import (
	"fmt"
	"strings"

	"go.temporal.io/sdk/temporal"
)

// TaskQueue is the one queue of workflows and activities. Tenants share it by
// fairness key.
const TaskQueue = "aether"

// ProgressQuery is the query every workflow answers with a Progress.
const ProgressQuery = "progress"

// Search attributes of all workflows. They must exist in the namespace.
var (
	TenantAttribute  = temporal.NewSearchAttributeKeyKeyword("AetherTenant")
	PoolAttribute    = temporal.NewSearchAttributeKeyKeyword("AetherPool")
	MachineAttribute = temporal.NewSearchAttributeKeyKeyword("AetherMachine")
	PhaseAttribute   = temporal.NewSearchAttributeKeyKeyword("AetherPhase")
)

// SearchAttributeNames lists the search attributes, all of type Keyword.
func SearchAttributeNames() []string {
	return []string{TenantAttribute.GetName(), PoolAttribute.GetName(), MachineAttribute.GetName(), PhaseAttribute.GetName()}
}

const (
	tenantPrefix  = "tenant/"
	machinePrefix = "machine/"
)

// TenantWorkflowID is the ID of every operation on a tenant: at most one is
// open at a time.
func TenantWorkflowID(tenant string) string { return tenantPrefix + tenant }

// MachineWorkflowID is the ID of every operation on a machine.
func MachineWorkflowID(machineID string) string { return machinePrefix + machineID }

// TenantOfWorkflowID is the inverse of TenantWorkflowID.
func TenantOfWorkflowID(id string) (string, error) { return cutID(id, tenantPrefix) }

// MachineOfWorkflowID is the inverse of MachineWorkflowID.
func MachineOfWorkflowID(id string) (string, error) { return cutID(id, machinePrefix) }

func cutID(id, prefix string) (string, error) {
	name, ok := strings.CutPrefix(id, prefix)
	if !ok || name == "" {
		return "", fmt.Errorf("workflow ID: %q is not of the form %s<name>", id, prefix)
	}
	return name, nil
}
