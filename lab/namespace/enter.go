package namespace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Options say what to run inside.
type Options struct {
	// Args are the arguments of this program inside, without its name.
	Args []string
	// Env is the world's environment; nil is this process's own.
	Env []string
	// Dir is the world's working directory; empty is this process's own.
	Dir string

	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Tmpfs are directories that get an empty private file system inside.
	Tmpfs []string
	// Grace is how long the world may take to end by itself after ctx has
	// ended and it got SIGTERM; then it is killed. 0 is ten seconds.
	Grace time.Duration
}

const defaultGrace = 10 * time.Second

// Names by which this program knows what it was started as: argv[0], which,
// unlike an environment variable, no grandchild inherits.
const (
	initName  = "aether-lab-init"
	worldName = "aether-lab-world"
)

// Descriptors of init, after the three standard ones.
const (
	lifelineFD = 3 // read: bytes are orders, the end is the outside's death
	reportFD   = 4 // write: a setupReport if the namespaces cannot be set up
)

// orderTerm on the lifeline asks init to end the world with SIGTERM.
const orderTerm = 't'

// instructions are what init needs to know, as its only argument.
type instructions struct {
	Args  []string `json:"args"`
	Dir   string   `json:"dir"`
	Tmpfs []string `json:"tmpfs,omitempty"`
}

// setupReport tells the outside which step of init failed.
type setupReport struct {
	Step  string        `json:"step"`
	Errno syscall.Errno `json:"errno"`
	Text  string        `json:"text"`
}

// Inside tells whether this process is the world that Enter started.
func Inside() bool { return os.Args[0] == worldName }

// Enter runs this program again inside new namespaces, waits for its end and
// returns its exit status. If the machine does not allow it, the error is a
// *NotAllowedError, which says what to change.
func Enter(ctx context.Context, o Options) (int, error) {
	type outcome struct {
		code int
		err  error
	}
	ended := make(chan outcome, 1)
	go func() {
		// The parent-death signal is sent when the thread that started the
		// child ends, so that thread is kept until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		code, err := enter(ctx, o)
		ended <- outcome{code, err}
	}()
	result := <-ended
	return result.code, result.err
}

func enter(ctx context.Context, o Options) (int, error) {
	cmd, pipes, err := prepare(o)
	if err != nil {
		return 0, err
	}
	defer pipes.close()
	if err := startFirst(cmd); err != nil {
		return 0, explain("start", err)
	}
	pipes.closeTheirs()
	stop := context.AfterFunc(ctx, func() { pipes.end(cmd.Process, o.Grace) })
	defer stop()

	report, reportErr := io.ReadAll(pipes.report)
	waitErr := cmd.Wait()
	if len(report) > 0 {
		var r setupReport
		if err := json.Unmarshal(report, &r); err != nil {
			return 0, fmt.Errorf("read the report of the namespaces' first process: %w", err)
		}
		return 0, explain(r.Step, &setupError{r})
	}
	var exit *exec.ExitError
	switch {
	case waitErr == nil:
		return 0, reportErr
	case errors.As(waitErr, &exit):
		return exitCode(syscall.WaitStatus(exitStatus(exit))), nil
	default:
		return 0, fmt.Errorf("wait for the lab's namespaces: %w", waitErr)
	}
}

func exitStatus(exit *exec.ExitError) syscall.WaitStatus {
	status, ok := exit.Sys().(syscall.WaitStatus)
	if !ok { // not on Linux
		return 1 << 8
	}
	return status
}

// exitCode is a status as shells give it.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// pipes are the two pipes between Enter and Init.
type pipes struct {
	lifeline *os.File // our end, for writing
	report   *os.File // our end, for reading
	theirs   []*os.File
}

func prepare(o Options) (*exec.Cmd, *pipes, error) {
	dir := o.Dir
	if dir == "" {
		var err error
		if dir, err = os.Getwd(); err != nil {
			return nil, nil, fmt.Errorf("find working directory: %w", err)
		}
	}
	told, err := json.Marshal(instructions{Args: o.Args, Dir: dir, Tmpfs: o.Tmpfs})
	if err != nil {
		return nil, nil, fmt.Errorf("encode instructions: %w", err)
	}
	lifelineTheirs, lifeline, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("make pipe: %w", err)
	}
	report, reportTheirs, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make pipe: %w", err), lifeline.Close(), lifelineTheirs.Close())
	}
	cmd := &exec.Cmd{
		Path: selfPath, Args: []string{initName, string(told)},
		Env: o.Env, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr,
		ExtraFiles: []*os.File{lifelineTheirs, reportTheirs},
	}
	return cmd, &pipes{lifeline, report, []*os.File{lifelineTheirs, reportTheirs}}, nil
}

// selfPath is this program, also when its file was replaced or removed.
const selfPath = "/proc/self/exe"

// end asks the world to end, and kills it when it takes too long.
func (p *pipes) end(first *os.Process, grace time.Duration) {
	if grace == 0 {
		grace = defaultGrace
	}
	// If init is gone already, there is nothing to end.
	_, _ = p.lifeline.Write([]byte{orderTerm})
	time.AfterFunc(grace, func() { _ = first.Kill() })
}

func (p *pipes) closeTheirs() {
	for _, f := range p.theirs {
		_ = f.Close() // pipe ends hold no data of ours
	}
	p.theirs = nil
}

func (p *pipes) close() {
	p.closeTheirs()
	_ = p.lifeline.Close()
	_ = p.report.Close()
}
