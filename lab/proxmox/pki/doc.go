// Package pki is the certificate authority of a simulated PVE cluster, which
// signs the certificate of each host.
package pki
