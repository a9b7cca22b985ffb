// Package network builds the lab's networks out of the real thing: Linux
// network namespaces, kernel bridges and veth pairs, set up by netlink. What
// runs on them meets real ARP caches, real carrier changes and real routing.
//
// A [Namespace] is one machine's network stack, held by a file descriptor so
// that it needs no name in the file system and vanishes with the process. A
// [Fabric] is the whole site: a switch with one bridge per segment, a router,
// a namespace per PVE host with a bridge per (bridge, VLAN tag), and the
// platform's own namespace. [HostNet.Attach] plugs a virtual network card in.
//
// The package needs CAP_NET_ADMIN over its own network namespace; lab/namespace
// gives it that without touching the machine's network.
package network
