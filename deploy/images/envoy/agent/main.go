// Command agent runs beside Envoy in a tenant's proxy virtual machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"aether.internal/aether/internal/proxyagent"
)

func main() {
	file := flag.String("config", proxyagent.DefaultConfigFile, "the agent's configuration, written by cloud-init")
	flag.Parse()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(*file, log); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

func run(file string, log *slog.Logger) error {
	config, err := proxyagent.LoadConfig(file)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return proxyagent.New(config, log, time.Now).Run(ctx)
}
