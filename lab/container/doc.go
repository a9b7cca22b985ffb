// Package container runs a program as a container runtime would: with a root
// file system, processes, host name and IPC of its own, in a network namespace
// that the caller gives. There are no images here: the root is made of the
// program, the mounts and what every container has.
//
// [Engine.Run] starts the lab's own binary with the hidden command [Command],
// which becomes process 1 of the container, builds the root around itself and
// executes the program. It needs nothing but CAP_SYS_ADMIN over its own user
// namespace, which lab/namespace gives.
package container
