// Package machine is the border between the hypervisor and what runs in its
// virtual machines: the hardware that lab/proxmox powers on, and the guest
// systems (lab/talos, lab/envoyvm) that live in it. It holds types only, so
// that neither side imports the other.
package machine
