package envoy

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// Version is the version of Envoy that is stood in for.
const Version = "1.37.0"

// options are the flags of the real program that matter here.
type options struct {
	configPath string
	logLevel   string
	mode       string
	drainTime  time.Duration
	version    bool
}

// Main runs the program and returns its exit code. args[0] is its name.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, args, os.Stdout, os.Stderr)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	if o.version {
		fmt.Fprintf(stdout, "%s  version: lab/%s/Clean/RELEASE/none\n", args[0], Version)
		return 0
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		fmt.Fprintf(stderr, "log-level: %q; allowed are debug, info, warn, error\n", o.logLevel)
		return 1
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	boot, err := loadBootstrap(o.configPath)
	if err != nil {
		log.Error("error initializing configuration", "path", o.configPath, "error", err)
		return 1
	}
	if o.mode == "validate" {
		fmt.Fprintf(stdout, "configuration '%s' OK\n", o.configPath)
		return 0
	}
	if err := newProxy(boot, o.drainTime, stdout, log).run(ctx); err != nil {
		log.Error("exiting", "error", err)
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var drain int
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	for _, name := range []string{"c", "config-path"} {
		flags.StringVar(&o.configPath, name, "", "path of the bootstrap, YAML or JSON")
	}
	for _, name := range []string{"l", "log-level"} {
		flags.StringVar(&o.logLevel, name, "info", "debug, info, warn or error")
	}
	flags.StringVar(&o.mode, "mode", "serve", "serve, or validate to check the bootstrap and exit")
	flags.IntVar(&drain, "drain-time-s", 600, "how long old connections of a changed listener live")
	flags.BoolVar(&o.version, "version", false, "print the version and exit")
	if err := flags.Parse(args[1:]); err != nil {
		return o, err
	}
	o.drainTime = time.Duration(drain) * time.Second
	switch {
	case o.version:
	case o.configPath == "":
		return o, errors.New("no configuration: give -c <file>")
	case o.mode != "serve" && o.mode != "validate":
		return o, fmt.Errorf("mode: %q; allowed are serve and validate", o.mode)
	}
	return o, nil
}

// run starts the parts and ends with the first that fails, or the context.
func (p *proxy) run(ctx context.Context) error {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	admin, err := p.listenAdmin(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.serveAdmin(ctx, admin, quit) })
	group.Go(func() error { return p.discover(ctx) })
	return group.Wait()
}
