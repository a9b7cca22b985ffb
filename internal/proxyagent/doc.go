// Package proxyagent is the small program beside Envoy in a tenant's proxy
// virtual machine. It makes the machine's key there, gets a certificate for a
// one-time token, renews it in time, writes Envoy's bootstrap and credentials,
// announces the tenant's address whenever the tenant-side link comes up, and
// tells on the loopback interface how all of that goes.
//
// Agent.Run is all of it. The agent configures neither addresses (cloud-init
// does) nor listeners (internal/envoy does), and opens no port to the outside.
package proxyagent
