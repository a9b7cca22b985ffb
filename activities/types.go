package activities

import (
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/plan"
)

// MachineRef names an AetherVM.
type MachineRef struct {
	MachineID string `json:"machineID"`
}

// LeasedMachine is a machine whose VMID, addresses and memory are held.
type LeasedMachine struct {
	Name       string `json:"name"`
	VMID       int32  `json:"vmid"`
	Host       string `json:"host"`
	Address    string `json:"address"` // on the tenant's network, without prefix length
	ProviderID string `json:"providerID"`
	// FlushNeighbours is true when the hosts can be told to forget the MACs
	// that the addresses may have had before: the site has an SSH door.
	FlushNeighbours bool `json:"flushNeighbours,omitempty"`
}

// FailedMachine says why a join ended.
type FailedMachine struct {
	MachineID string `json:"machineID"`
	Cancelled bool   `json:"cancelled,omitempty"`
	Message   string `json:"message"`
}

// NodeResult names a Node.
type NodeResult struct {
	NodeName string `json:"nodeName"`
}

// TenantRef names a tenant.
type TenantRef struct {
	Tenant string `json:"tenant"`
}

// TenantMachines lists machine IDs, sorted.
type TenantMachines struct {
	MachineIDs []string `json:"machineIDs"`
}

// PlanTenantInput is a tenant to plan for.
type PlanTenantInput struct {
	Tenant domain.Tenant `json:"tenant"`
	// Change tells that the tenant exists and shall become like this.
	Change bool `json:"change,omitempty"`
}

// PlanTenantResult is an accepted plan.
type PlanTenantResult struct {
	// Tenant with the site's defaults filled in.
	Tenant domain.Tenant `json:"tenant"`
	Plan   plan.Plan     `json:"plan"`
}

// WriteTenantInput is a tenant to write as objects.
type WriteTenantInput struct {
	Tenant domain.Tenant `json:"tenant"`
}

// WriteTenantResult tells whether the objects are this run's own.
type WriteTenantResult struct {
	Created bool `json:"created"`
}

// LeaseProxyInput says where a tenant's proxy shall be.
type LeaseProxyInput struct {
	Tenant  string `json:"tenant"`
	Network string `json:"network"`
	Host    string `json:"host"`
}

// LeaseProxyResult is the proxy's identity and address.
type LeaseProxyResult struct {
	MachineID  string `json:"machineID"`
	Address    string `json:"address"`
	Generation int64  `json:"generation"`
}

// CompleteTenantResult is a tenant that is ready.
type CompleteTenantResult struct {
	KubeconfigSecret string `json:"kubeconfigSecret"`
	Nodes            int    `json:"nodes"`
}

// FailedTenant says why a tenant workflow ended.
type FailedTenant struct {
	Tenant    string `json:"tenant"`
	Change    bool   `json:"change,omitempty"`
	Cancelled bool   `json:"cancelled,omitempty"`
	Refused   bool   `json:"refused,omitempty"`
	Message   string `json:"message"`
}

// SweepResult tells how many places were looked at.
type SweepResult struct {
	Places int `json:"places"`
}
