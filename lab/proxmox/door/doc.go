// Package door is the SSH door of a PVE host: key authentication, and one
// command, the flush of a neighbour entry, in these forms:
//
//	ip neigh flush <ip>
//	ip neigh flush to <ip>
//	ip neigh flush <ip> dev <device>
//	ip neigh flush to <ip> dev <device>
//	ip neigh flush dev <device> to <ip>
//
// The door gives no shell, terminal, subsystem, forwarding or environment. A
// refused command ends with status 126 and says on standard error what is
// allowed.
package door
