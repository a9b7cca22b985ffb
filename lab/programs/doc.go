// Package programs holds the small programs that the lab's containers run in
// place of what it cannot build: the Cilium set, CoreDNS, the test servers and
// a handful of tools for exec. All are in the lab's own binary; the name that
// one is called by says which.
//
// Each is real in its effect: it reaches the API server only by what its pod
// was given, and what it does (routes, CNI configuration, taints, names) is
// what others see.
package programs
