package workflows

import (
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"
)

// FailedType is the type of the error that ends a failed workflow.
const FailedType = "Failed"

// ended makes the error that ends a run: what a person should read comes
// first, the chain of causes stays below it.
func ended(cause error) error {
	return temporal.NewApplicationErrorWithOptions(Reason(cause), FailedType, temporal.ApplicationErrorOptions{NonRetryable: true, Cause: cause})
}

// tag sets the search attributes that say what a run is about.
func tag(ctx workflow.Context, tenant, pool, machineID string) error {
	updates := []temporal.SearchAttributeUpdate{TenantAttribute.ValueSet(tenant)}
	if pool != "" {
		updates = append(updates, PoolAttribute.ValueSet(pool))
	}
	if machineID != "" {
		updates = append(updates, MachineAttribute.ValueSet(machineID))
	}
	return workflow.UpsertTypedSearchAttributes(ctx, updates...)
}
