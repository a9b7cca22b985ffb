// Command temporal is the Temporal server and its web UI in one program, with
// one SQLite file behind it, for the lab and the tests. It is a module of its
// own because server v1.32.1 does not compile beside the SDK the product uses;
// over gRPC any SDK talks to it.
//
// It keeps everything in the file, so that killing and starting it again is a
// restart of a server and not a loss of it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	uiconfig "github.com/temporalio/ui-server/v2/server/config"
	uioptions "github.com/temporalio/ui-server/v2/server/server_options"

	uiserver "github.com/temporalio/ui-server/v2/server"
	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/temporal"
)

func main() {
	options, err := parseOptions(os.Args[1:], os.Stderr)
	if errors.Is(err, errHelp) {
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "temporal: %v\n", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, options); err != nil {
		fmt.Fprintf(os.Stderr, "temporal: %v\n", err)
		os.Exit(1)
	}
}

// run serves until the context ends.
func run(ctx context.Context, o options) error {
	ports, err := freePorts("127.0.0.1", 3)
	if err != nil {
		return fmt.Errorf("find ports for the internal services: %w", err)
	}
	cfg := serverConfig(o, ports)
	if err := prepareDatabase(o, cfg); err != nil {
		return err
	}

	logger := log.NewZapLogger(log.BuildZapLogger(log.Config{Stdout: true, Level: o.logLevel}))
	server, err := temporal.NewServer(
		temporal.WithConfig(cfg),
		temporal.ForServices(temporal.DefaultServices),
		temporal.WithStaticHosts(staticHosts(cfg, o)),
		temporal.WithDynamicConfigClient(dynamicConfig()),
		temporal.WithLogger(logger),
		temporal.WithAuthorizer(authorization.NewNoopAuthorizer()),
		temporal.WithClaimMapper(func(*config.Config) authorization.ClaimMapper {
			return authorization.NewNoopClaimMapper()
		}),
	)
	if err != nil {
		return fmt.Errorf("set up server: %w", err)
	}
	if err := server.Start(); err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	defer func() { _ = server.Stop() }() // the process ends anyway

	if err := ensureSearchAttributes(ctx, o); err != nil {
		return err
	}
	return serveUI(ctx, o)
}

// serveUI serves the web UI, or only waits where none is wanted.
func serveUI(ctx context.Context, o options) error {
	if o.uiPort == 0 {
		<-ctx.Done()
		return nil
	}
	ui := uiserver.NewServer(uioptions.WithConfigProvider(&uiconfig.Config{
		Host:                o.ip,
		Port:                o.uiPort,
		TemporalGRPCAddress: o.frontend(),
		EnableUI:            true,
		DefaultNamespace:    o.namespace,
		Codec:               uiconfig.Codec{Endpoint: o.codecEndpoint},
		// The lab's UI is plain HTTP; the CSRF cookie would not be sent back.
		CORS:             uiconfig.CORS{CookieInsecure: true},
		DisableNewsFetch: true,
		HideLogs:         true,
	}))
	done := make(chan error, 1)
	go func() { done <- ui.Start() }()
	select {
	case err := <-done:
		return fmt.Errorf("serve the web UI on %s:%d: %w", o.ip, o.uiPort, err)
	case <-ctx.Done():
	}
	ui.Stop()
	select {
	case <-done:
	case <-time.After(2 * time.Second): // an open browser tab shall not hold the end
	}
	return nil
}
