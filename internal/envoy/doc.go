// Package envoy is the control plane of the tenants' proxies: one Envoy
// virtual machine per tenant, the tenant's only door to its API server.
//
// Snapshot turns a Tenant into Envoy resources and is pure. Server serves them
// over the aggregated discovery service, to the one proxy whose client
// certificate names that tenant and generation, and keeps what the proxy said
// to each version (Status): nothing counts as applied without an ACK, and after
// a NACK the last good configuration goes out again. Enrolment gives a new
// proxy its first certificate for a one-time token, and later ones for the
// certificate it has. Serve puts them together.
//
// The package is not the proxy (deploy/images/envoy) and not the agent beside
// it (internal/proxyagent); it never calls a proxy, proxies call it.
package envoy
