// Package cilium is the lab's stand-in for Cilium 1.20: the same programs in
// the same order with the same effects on the cluster, on plain routes instead
// of eBPF.
//
//   - cilium-dbg build-config is the first to need the API server, and fails as
//     the real one does when the address it was given is wrong.
//   - cilium-operator-generic makes the CRDs, allocates pod ranges in
//     cluster-pool mode, and sets and removes the agent-not-ready taint.
//   - cilium-agent waits for the CRDs, publishes its CiliumNode, routes to the
//     other nodes, masquerades, serves the ClusterIPs if it replaces kube-proxy,
//     and writes the CNI configuration that makes the node ready.
//   - cilium-envoy-starter is there and healthy.
//
// Policies, identities, Hubble, tunnels and L7 are not here.
package cilium
