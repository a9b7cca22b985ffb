// Package seed makes the medium that a tenant's proxy virtual machine boots
// with: a cloud-init "NoCloud" volume with the machine's name, its addresses by
// card, and the agent's configuration with the one-time token.
package seed
