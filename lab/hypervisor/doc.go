// Package hypervisor runs virtual machines as goroutines: it powers on the
// hardware that lab/proxmox describes, with a network stack of its own per
// machine, and boots the guest [System] that is on its disk.
//
// A machine's network namespace lives from power-on to power-off and outlives
// a guest's reboot, as network cards do; addresses and routes do not outlive
// it. Power-off leaves no process and no interface of the machine behind.
//
// The package knows nothing of Proxmox nor of what guests do.
package hypervisor
