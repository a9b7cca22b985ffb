package container

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// Container is a container that was started.
type Container struct {
	id   string
	env  []string
	dir  string
	cmd  *exec.Cmd
	done chan struct{}

	code int // once done
	err  error
}

// ID is what the Spec said.
func (c *Container) ID() string { return c.id }

// PID is the process ID of the container's program as the lab sees it.
func (c *Container) PID() int { return c.cmd.Process.Pid }

// Done is closed when the container has ended.
func (c *Container) Done() <-chan struct{} { return c.done }

// Wait returns the exit code when the container has ended; 128 and the signal's
// number if one ended it.
func (c *Container) Wait() (exitCode int, err error) {
	<-c.done
	return c.code, c.err
}

// Kill sends the program a signal. As process 1 it notices only those that it
// handles, and SIGKILL. After its end it is an error.
func (c *Container) Kill(sig syscall.Signal) error {
	if err := c.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("signal %s to container %s: %w", sig, c.id, err)
	}
	return nil
}

// reap waits for the program; the kernel ends the container's other processes
// before its process 1 is done.
func (c *Container) reap() {
	c.code, c.err = waitCode(c.cmd)
}

// waitCode waits for a started command and returns its exit code.
func waitCode(cmd *exec.Cmd) (int, error) {
	err := cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit):
		return stateCode(exit.ProcessState), nil
	default:
		return -1, fmt.Errorf("wait for %s: %w", cmd.Path, err)
	}
}

func stateCode(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}
