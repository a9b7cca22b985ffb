package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"aether.internal/aether/lab/world/control"
)

// Speeds of the lab's latency table.
const defaultSpeed = 10

func (l *lab) upCommand() *cobra.Command {
	s := session{speed: defaultSpeed}
	detach, build := false, true
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the lab and keep it up",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.state, s.out = l.state, cmd.OutOrStdout()
			if build {
				if err := buildProduct(cmd.Context(), s.out); err != nil {
					return err
				}
			}
			if detach {
				return s.detached(cmd.Context(), os.Args[1:])
			}
			return s.up(cmd.Context(), func(ctx context.Context, _ *control.Client, _ control.Status) error {
				<-ctx.Done()
				return nil
			})
		},
	}
	s.bind(cmd)
	cmd.Flags().BoolVar(&build, "build", build, "build the product's programs first")
	cmd.Flags().BoolVar(&detach, "detach", false, "return when the lab is ready and leave it running; `lab down` ends it")
	return cmd
}

// bind adds the flags that all commands which start a lab have.
func (s *session) bind(cmd *cobra.Command) {
	cmd.Flags().Float64Var(&s.speed, "speed", s.speed, "how many times faster than hardware the lab's latency table runs")
	cmd.Flags().StringSliceVar(&s.parts, "parts", nil, "start these parts and what they need only")
	cmd.Flags().BoolVar(&s.fixed, "fixed-ports", false, "use the usual ports on the loopback (7233, 8233, 8088, 6443, proxy 8118) instead of free ones")
}

// detached starts this command again without --detach, in a session of its
// own, and waits until its lab is ready.
func (s *session) detached(ctx context.Context, args []string) error {
	dir, err := filepath.Abs(s.state)
	if err != nil {
		return fmt.Errorf("state folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("state folder: %w", err)
	}
	path := filepath.Join(dir, "lab.log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = log.Close() }() // the child has its own
	child := exec.Command(selfPath(), append(args, "--detach=false", "--build=false")...)
	child.Args[0] = os.Args[0]
	child.Stdout, child.Stderr = log, log
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		return fmt.Errorf("start the lab: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	followed := make(chan error, 1)
	go func() { followed <- follow(ctx, s.out, path) }()
	ready := make(chan error, 1)
	go func() {
		_, err := waitUp(ctx, control.NewClient(dir))
		ready <- err
	}()
	select {
	case <-ended:
		cancel()
		return errors.Join(errEnded, <-followed)
	case err := <-ready:
		if err != nil { // interrupted, most likely
			return errors.Join(err, child.Process.Signal(syscall.SIGTERM), <-ended)
		}
	}
	cancel()
	printf(s.out, "log        %s\n", path)
	return <-followed
}

// waitUp waits for a lab that may still build programs.
func waitUp(ctx context.Context, client *control.Client) (control.Status, error) {
	for {
		status, err := client.WaitReady(ctx)
		if err == nil || ctx.Err() != nil || !errors.Is(err, control.ErrNoLab) {
			return status, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

var errEnded = errors.New("the lab ended before it was ready")

// follow copies what is written to a file until ctx ends.
func follow(ctx context.Context, out io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("follow log: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	for {
		ended := ctx.Err() != nil // looked at first, so that the rest is copied too
		if _, err := io.Copy(out, f); err != nil {
			return fmt.Errorf("follow log: %w", err)
		}
		if ended {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// selfPath is this program, also when its file was replaced.
func selfPath() string { return "/proc/self/exe" }

func (l *lab) downCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "End the lab and wait until nothing of it is left",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := l.client()
			if err != nil {
				return err
			}
			if err := client.Stop(cmd.Context()); errors.Is(err, control.ErrNoLab) {
				printf(cmd.OutOrStdout(), "no lab is running with state folder %s\n", l.state)
				return nil
			} else if err != nil {
				return err
			}
			return waitUnlocked(cmd.Context(), l.state)
		},
	}
}

// lockFile is held by whoever runs a lab in the state folder.
func lockFile(dir string) string { return filepath.Join(dir, "lock") }

// lock makes this process the only one with a lab in the state folder.
func lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	f, err := os.OpenFile(lockFile(dir), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("state folder %s: a lab is running there already: end it with `lab down`, or choose another --state", dir), f.Close())
	}
	return func() { _ = f.Close() }, nil // the lock goes with the file
}

func waitUnlocked(ctx context.Context, dir string) error {
	for {
		unlock, err := lock(dir)
		if err == nil {
			unlock()
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(errors.New("the lab has not ended yet"), ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
