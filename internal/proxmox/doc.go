// Package proxmox is Aether's client of a Proxmox VE cluster.
//
// A [Client] speaks for one cluster and fails over between its API
// endpoints. It takes and returns types of this package only, and every error
// is of one of the kinds in errors.go, so no caller reads error text.
//
// Three rules run through it:
//
//   - An unknown outcome is not a failure. [ErrUnreachable] on a write means
//     that it may have happened; each operation looks at the state first and
//     so can be repeated.
//   - What cannot be asked is not absent. [ErrNotFound] is only ever said when
//     Proxmox itself answered that the VM does not exist.
//   - Nothing is written but VMs that carry the expected [Mark], never below
//     VMID 1000, never a template.
//
// The package does not decide what VMs there shall be: that is
// internal/plan's, and who may have which VMID is internal/lease's.
package proxmox
