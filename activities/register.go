package activities

import "go.temporal.io/sdk/activity"

// Registry is what a worker and a test environment have in common.
type Registry interface {
	RegisterActivityWithOptions(a any, options activity.RegisterOptions)
}

// Set has one of each activity struct.
type Set struct {
	Machines *Machines
	Proxmox  *Proxmox
	Talos    *Talos
	Nodes    *Nodes
	Tenants  *Tenants
	Pools    *Pools
	Kamaji   *Kamaji
	Envoy    *Envoy
	Cilium   *Cilium
}

// Register registers the methods of all structs under their own names, which
// are unique over all of them.
func (s Set) Register(r Registry) {
	for _, a := range []any{s.Machines, s.Proxmox, s.Talos, s.Nodes, s.Tenants, s.Pools, s.Kamaji, s.Envoy, s.Cilium} {
		r.RegisterActivityWithOptions(a, activity.RegisterOptions{})
	}
}
