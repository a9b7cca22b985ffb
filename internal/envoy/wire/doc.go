// Package wire is what a tenant's proxy and the platform agree on: the proxy's
// name in all its forms, the ports, and the enrolment calls. It is apart from
// package envoy so that the agent in the proxy's virtual machine does not carry
// a Kubernetes client.
package wire
