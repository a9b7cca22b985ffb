// Package command holds the subcommands of `aether`, one file each. A command
// reads its arguments, makes clients, and calls what does the work; nothing
// else is here but how things are shown.
package command
