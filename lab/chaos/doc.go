// Package chaos kills and cancels Aether's workflows at every point where that
// could hurt, and looks at what is left.
//
// A point is a call of the worker that changed something: at Proxmox, at the
// management API server, at a tenant's API server, at Talos, or the report of
// an activity's result to Temporal. The points are not listed by hand: Record
// watches one undisturbed run and returns what it saw. To see and stop the
// calls, the package runs the worker by itself, behind a relay: HTTPS by a
// CONNECT proxy that holds certificates of the API servers' own authorities,
// gRPC to Temporal by a reverse proxy. A call that is held has taken effect,
// and its answer is withheld; a report to Temporal is held before it arrives,
// so that a whole activity has taken effect and nobody knows.
//
// Calls that a run repeats are one place; it is struck at its first and at its
// last occurrence.
package chaos
