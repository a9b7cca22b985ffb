// Package coredns is the lab's stand-in for CoreDNS: it answers names of the
// cluster's Services from the API server and forwards everything else. It reads
// the zone from the Corefile, and serves health and readiness where CoreDNS
// does. Pod names, PTR and SRV records are not here.
package coredns
