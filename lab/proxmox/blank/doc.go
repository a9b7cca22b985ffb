// Package blank is a hypervisor without guests, for a Proxmox simulator that
// runs alone and for its tests: machines have states, discs and cables, but
// nothing lives in them.
package blank
