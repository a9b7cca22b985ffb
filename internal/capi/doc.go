// Package capi is the shim between Cluster API core and Aether's workflows:
// reconcilers that start, cancel and read workflows, mirror what core needs to
// see, and approve the serving certificates of kubelets we made.
//
// It is level-triggered: what it does follows from the objects and the runs it
// finds, never from an event alone, so it may be restarted at any moment and
// Temporal may be away for a while. It never calls Proxmox, Talos or Kamaji.
package capi
