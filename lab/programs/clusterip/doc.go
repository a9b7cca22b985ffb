// Package clusterip makes the ClusterIPs of Services work on one node: what
// kube-proxy, or Cilium in its place, does there.
//
// Each address is put on the node's loopback and each port is served by a small
// proxy in user space that connects to a ready endpoint. That needs no packet
// filter and works in every kernel; its price is that a backend sees the node's
// address instead of the client's.
package clusterip
