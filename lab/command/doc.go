// Package command is the command line of the lab: starting and ending it,
// looking into it, making it fail, and the demo. The work is done by the world
// (lab/world) inside of namespaces; the commands talk to it over its control
// socket.
package command
