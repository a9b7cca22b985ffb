// Package talos simulates a Talos Linux worker: what boots from a disk whose
// image is "talos".
//
// A machine takes its address from the cidata medium if its platform is
// nocloud; on metal there is only DHCP, which the lab does not have. Without a
// configuration it serves maintenance mode (package maintenance). With one it
// sets the network up as the documents say, waits for time, pulls the kubelet
// through the mirrors of its configuration, and joins with the only credential
// it has: the bootstrap token. From then on it is system:node:<name> with a
// certificate that the tenant signed and that it renews.
//
// There is no trust service in a Kamaji cluster, so the Talos API never opens
// again after maintenance mode. Everything that goes wrong is said where the
// real system says it: on the console, for nobody to hear.
//
// Faults by place, where <vm> is the VM's name:
//
//	talos/<vm>/boot                  Delay
//	talos/<vm>/time                  Away: no time server answers
//	talos/<vm>/ApplyConfiguration    Delay, LostAnswer, Hold (also …DryRun, Disks)
//
// Not here: control planes, the secured API, extensions, encryption, upgrades.
// A kubelet of any version registers, as in life: the API server does not look
// at the skew; what it breaks comes later.
package talos
