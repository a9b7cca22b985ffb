package world

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"aether.internal/aether/lab/relay"
	"aether.internal/aether/lab/world/control"
)

var _ control.World = (*World)(nil)

// Names of the ports that the machine's loopback has of the lab.
const (
	ForwardTemporal   = "temporal"
	ForwardUI         = "temporal-ui"
	ForwardCodec      = "codec"
	ForwardManagement = "management-api"
)

// Forward is a port of the lab that is worth to have on the loopback.
type Forward struct {
	Name   string
	Port   int    // the usual one
	Target string // inside the lab
}

// Forwards lists them.
func Forwards() []Forward {
	return []Forward{
		{ForwardTemporal, 7233, temporalAddress},
		{ForwardUI, 8233, "127.0.0.1:8233"},
		{ForwardCodec, 8088, codecAddress},
		{ForwardManagement, 6443, platformAddress + ":6443"},
	}
}

// RelaySocket is where the inside of a lab meets the machine's loopback.
func RelaySocket(dir string) string { return filepath.Join(dir, "relay.sock") }

// startControl opens the control API and the inside of the relay.
func (w *World) startControl(context.Context) error {
	log, err := w.logger(partControl)
	if err != nil {
		return err
	}
	server, err := control.Listen(w.opts.Dir, w, log)
	if err != nil {
		return err
	}
	w.run(partControl, control.Socket(w.opts.Dir), server.Serve)
	if len(w.opts.Outside) == 0 && w.opts.ProxyURL == "" {
		return nil
	}
	listener, err := relay.Listen(RelaySocket(w.opts.Dir))
	if err != nil {
		return err
	}
	w.run("relay", w.opts.ProxyURL, func(ctx context.Context) error { return relay.Serve(ctx, listener, w.dialInside, log) })
	return nil
}

// errStarting is the answer while there is no network yet.
var errStarting = errors.New("the lab is still starting")

// dialInside dials from the platform, so that what a person reaches through
// the loopback is what the platform reaches.
func (w *World) dialInside(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", address, err)
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return nil, fmt.Errorf("dial %q: the lab has no names, only addresses", address)
	}
	// The world's own network stack is the platform's.
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil && !w.isReady() {
		return nil, errors.Join(errStarting, err)
	}
	return conn, err
}

func (w *World) isReady() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ready
}

// Status tells what runs.
func (w *World) Status() control.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := control.Status{
		Ready: w.ready, Speed: w.Clock.Speed(), Started: w.started, Addresses: map[string]string{},
		Kubeconfig: w.outsideKubeconfig(), Site: w.SiteFile(), Logs: filepath.Join(w.opts.Dir, "logs"),
	}
	for name, address := range w.opts.Outside {
		s.Addresses[name] = address
	}
	if w.opts.ProxyURL != "" {
		s.Addresses["proxy"] = w.opts.ProxyURL
	}
	for _, c := range w.components {
		s.Components = append(s.Components, c.status())
	}
	return s
}

// Exec runs a command in the platform's network, with the environment that the
// product's command line needs, and returns its exit code.
func (w *World) Exec(ctx context.Context, c control.Command, stdio [3]*os.File) (int, error) {
	if len(c.Args) == 0 {
		return 0, errors.New("no command was given")
	}
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Dir = c.Dir
	cmd.Env = append(append(os.Environ(), w.ClientEnvironment()...), c.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdio[0], stdio[1], stdio[2]
	// Without a session of its own it would be stopped for reading from a
	// terminal that belongs to somebody else's foreground.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 0, fmt.Errorf("run %s in the lab: %w", c.Args[0], err)
	}
	return 0, nil
}

// Uptime is how long the lab has been there.
func (w *World) Uptime() time.Duration { return time.Since(w.started) }
