// Package lease hands out what there is only one of: VMIDs, IP addresses, a
// host's memory and cores, and turns at cloning.
//
// All of it is kept in the namespace aether-system of the management cluster,
// so that it survives every worker and is shared by all of them:
//
//   - A VMID or address is a coordination.k8s.io Lease whose name is the
//     thing, as vmid.homelab.1003 or ip.tenant.10.1.1.50. Creating it is the
//     allocation: the API server lets one of two creators win. A released one
//     stays as a tombstone until its quarantine is over, so that a late
//     activity attempt or an ARP cache cannot mistake the next holder for the
//     last.
//   - A host's ledger is one ConfigMap, ledger.<cluster>.<host>, changed by
//     compare-and-swap. It is a ConfigMap and not a Lease because it holds a
//     list, and annotations end at 256 KiB.
//   - A turn at cloning is one of N Leases, slot.<cluster>.<host>.<storage>.<i>,
//     with a time to live; those who wait have a Lease too, and the one who
//     waited longest goes first.
//
// Which range to take from and where a VM shall go is not decided here.
//
// The client given to this package must read from the API server, not from a
// cache: a cache would show what is free a moment too late.
package lease
