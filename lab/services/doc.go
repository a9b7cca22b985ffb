// Package services stands in for the load balancer and the service proxy of
// the management cluster. Services of type LoadBalancer get an address of a
// pool, on the network interface of the node, as a layer-2 load balancer would
// give them; cluster addresses are put on a local link. Behind each address
// and TCP port a relay carries connections to a ready pod.
//
// It relays TCP only, keeps no health checks of its own (readiness is the
// kubelet's), does not preserve client addresses and serves no node ports.
package services
