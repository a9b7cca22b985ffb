// Package kubelet runs pods as processes on one simulated node: the management
// node, and every Talos machine of a tenant.
//
// A Kubelet speaks to a real API server with the credentials it is given and
// nothing else: it registers its Node, renews its Lease, watches the pods that
// are bound to it, and serves port 10250 with logs, exec and port-forward
// behind the API server's own authentication and authorization. A pod gets a
// network namespace, volumes as its spec says, and one process per container
// in a mount namespace of its own; images name the program that is run.
//
// What is not here: cgroups and resource limits, users other than root, images'
// file systems, static pods, CSI, terminals (an exec with a TTY gets pipes),
// attach, ephemeral containers, and live refresh of mounted Secrets and
// ConfigMaps. Back-offs and probe periods follow the lab's clock; probe budgets
// (period times threshold) do not shrink with it, because what is probed is
// real software that needs real time.
package kubelet
