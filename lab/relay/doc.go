// Package relay lets programs outside of the lab's namespaces reach into them:
// a browser a UI, kubectl an API server. Both sides meet at a socket in the
// file system, which network namespaces do not divide.
//
// Outside, a [Gate] listens on the loopback of the machine: chosen ports
// forwarded as they are, and an HTTP CONNECT proxy for any address of the lab,
// as a kubeconfig's proxy-url names it. Inside, [Serve] makes the connections.
package relay
