// Command starter is the `aether` command: it starts, watches and changes
// tenants, and serves the platform's own programs.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"aether.internal/aether/starter/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := command.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
