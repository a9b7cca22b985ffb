// Package envoy stands in for Envoy, which cannot be built from the module
// proxy: a layer-4 proxy on the real protocols. It reads a real bootstrap,
// takes clusters and listeners from a real aggregated discovery stream over
// mutual TLS, and passes real TCP connections.
//
// It refuses a configuration (NACK) for real reasons only: the resource fails
// Envoy's own validation, names an extension that is not there, or has an
// address that cannot be bound. As in the real one a refused update may be applied in part, credentials are taken
// up again when their file is replaced by a rename and not when it is written
// in place, a changed listener drains its old connections, and a listener that
// is sent again unchanged is left alone.
//
// Main is the program, for the lab's multi-call binary. It knows nothing of Aether.
package envoy
