// Package timeserver speaks enough of NTP (RFC 5905, client and server mode)
// for the lab: machines ask a real server over the network before they start
// their kubelet, as Talos does. It tells the lab's own time.
package timeserver
