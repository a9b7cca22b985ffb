// Package namespace puts the lab into namespaces of its own, so that it can use
// the addresses and ports of a real site, do what needs root, and leave nothing
// behind, for root and for a user without privileges alike.
//
// [Enter] starts this program again in new user, mount, PID, network, IPC and
// UTS namespaces:
//
//	Enter (outside) ── pid 1: Init ── pid 2: the world
//
// Init mounts what the namespaces need, starts the world, reaps orphans, and
// ends when the world ends or the outside does; the kernel then kills all that
// is left inside. Two independent things tell it of the outside's death: the
// kernel's parent-death signal, and the end of a pipe that only Enter holds.
//
// A program that uses the package calls [Init] first in main. Tests call
// [RunTests] in TestMain.
package namespace
