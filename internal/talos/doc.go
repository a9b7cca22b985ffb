// Package talos turns a wanted worker into a Talos machine configuration,
// proves that a configuration will join before it is sent, and sends it.
//
// A Kamaji cluster has no Talos control plane: there is no trust service, so a
// worker's own API closes for good once it left maintenance mode. There is one
// chance to hand a configuration over, and most mistakes in it are silent on
// the node (a kubelet that retries for ever). Hence the three parts:
//
//   - [Render] writes the configuration. It is pure: the same Input gives the
//     same bytes.
//   - [Check] reads any configuration and says what would go wrong with it.
//     Talos's own validation passes configurations without a cluster CA, token
//     or usable labels; this one does not.
//   - [Maintenance] is the [Deliverer] that pushes over the maintenance API,
//     after it has read there which machine it talks to.
//
// The package does not talk to Kubernetes and keeps no state.
package talos
