package command

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"aether.internal/aether/lab/namespace"
	"aether.internal/aether/lab/relay"
	"aether.internal/aether/lab/world"
	"aether.internal/aether/lab/world/control"
)

// proxyPort is the usual port of the proxy into the lab.
const proxyPort = 8118

// session is one lab from start to end, seen from outside of its namespaces.
type session struct {
	state string
	speed float64
	parts []string
	fixed bool
	out   io.Writer
}

// task is what is done while the lab is up.
type task func(ctx context.Context, client *control.Client, status control.Status) error

// up starts the lab, does the task when it is ready, and ends the lab. It
// returns early when the lab fails.
func (s *session) up(ctx context.Context, do task) error {
	opts, err := s.prepare(ctx)
	if err != nil {
		return err
	}
	unlock, err := lock(opts.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	gate, err := s.openGate(&opts)
	if err != nil {
		return err
	}
	defer func() { _ = gate.Close() }() // its connections end with the lab
	if err := opts.Store(); err != nil {
		return err
	}
	printf(s.out, "lab: starting at speed %g, state in %s\n", s.speed, opts.Dir)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.enter(ctx, opts.Dir) }()

	done := make(chan error, 1)
	go func() { done <- s.whenReady(ctx, control.NewClient(opts.Dir), do) }()
	select {
	case err := <-ended: // by itself: it has said why
		cancel()
		<-done
		return err
	case err := <-done:
		cancel()
		end := <-ended
		if err != nil {
			return err // why the lab was ended; how it ended follows from that
		}
		return end
	}
}

func (s *session) whenReady(ctx context.Context, client *control.Client, do task) error {
	status, err := waitUp(ctx, client)
	if err != nil {
		return nil // the lab's own end says more
	}
	s.describe(status)
	return do(ctx, client, status)
}

// enter runs the world inside the namespaces.
func (s *session) enter(ctx context.Context, dir string) error {
	code, err := namespace.Enter(ctx, namespace.Options{
		Args: []string{"world", "--state", dir}, Stdout: s.out, Stderr: os.Stderr, Grace: 30 * time.Second,
	})
	if err != nil {
		return err
	}
	if code != 0 {
		return &exitError{code}
	}
	return nil
}

// prepare makes the programs available that the lab starts.
func (s *session) prepare(ctx context.Context) (world.Options, error) {
	opts, err := world.FromCheckout(ctx, s.out, s.speed)
	if err != nil {
		return opts, err
	}
	if opts.Dir, err = filepath.Abs(s.state); err != nil {
		return opts, fmt.Errorf("state folder: %w", err)
	}
	if opts.Self, err = os.Executable(); err != nil {
		return opts, fmt.Errorf("find this program: %w", err)
	}
	opts.Parts = s.parts
	return opts, nil
}

// openGate opens the machine's loopback and tells the options where.
func (s *session) openGate(opts *world.Options) (*relay.Gate, error) {
	cfg := relay.Config{
		Socket: world.RelaySocket(opts.Dir), Proxy: s.listen(proxyPort),
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	for _, f := range world.Forwards() {
		cfg.Forwards = append(cfg.Forwards, relay.Forward{Name: f.Name, Listen: s.listen(f.Port), Target: f.Target})
	}
	gate, err := relay.Open(cfg)
	if err != nil {
		return nil, err
	}
	opts.ProxyURL, opts.Outside = gate.ProxyURL(), map[string]string{}
	for _, f := range cfg.Forwards {
		if address, ok := gate.Addr(f.Name); ok {
			opts.Outside[f.Name] = address.String()
		}
	}
	return gate, nil
}

func (s *session) listen(port int) string {
	if !s.fixed {
		port = 0
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// describe tells a person where everything is.
func (s *session) describe(status control.Status) {
	printf(s.out, "\nlab: ready at speed %g\n", status.Speed)
	printf(s.out, "UI         http://%s\n", status.Addresses[world.ForwardUI])
	printf(s.out, "Temporal   %s\n", status.Addresses[world.ForwardTemporal])
	printf(s.out, "kubeconfig %s (management cluster)\n", status.Kubeconfig)
	printf(s.out, "site       %s\n", status.Site)
	printf(s.out, "logs       %s\n", status.Logs)
}
