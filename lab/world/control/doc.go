// Package control is the lab's own API, over a unix socket in its state folder:
// what runs and where, faults, secrets that were issued, killing and restarting
// parts, hosts off and on, commands run inside, and the end.
//
// Server answers for a World, Client asks. The socket is for its owner only:
// it hands out secrets and runs programs.
package control
