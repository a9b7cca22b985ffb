// Package envoyvm is the guest system of a proxy virtual machine in the lab: a
// small Debian with cloud-init, two services and a guest agent. It boots from
// what is on its disk and its medium and knows nothing else.
//
// cloud-init reads the volume "cidata" (meta-data, network-config version 1 or
// 2, user-data with write_files), does the work of a first boot once per
// instance ID, and is switched off when there is no such volume; the network
// settings stay on disk. The services are a given program that is started when
// its configuration exists, and Envoy when its bootstrap exists; both are
// started again when they end. There is no SSH.
//
// Not simulated: renaming of cards (set-name is read over), DHCP, users,
// runcmd.
package envoyvm
