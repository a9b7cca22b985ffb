// Package maintenance serves what a Talos machine serves on port 50000 while it
// has no configuration: TLS with a certificate it made itself, no client
// certificate, and the few calls that are open to everybody. All others answer
// as the real ones do, that they are not implemented.
//
// It is on its own so that clients can be tested against it without a machine.
package maintenance
