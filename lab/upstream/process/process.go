// Package process runs an upstream program as a child process, in a network
// namespace when one is given, with its output in a file, and ends it.
//
// It knows nothing of what the programs are. A child does not outlive the
// lab: in the lab the process namespace ends with it; outside of one the
// kernel kills the child when its parent dies.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Network is where a program runs and is reached; lab/network's *Namespace is
// one. A nil Network is the namespace of the caller.
type Network interface {
	Start(cmd *exec.Cmd) error
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Spec says what to run.
type Spec struct {
	// Name is what people call it; errors carry it.
	Name string
	// Program is its path.
	Program string
	// Args is argv without argv[0].
	Args []string
	// Argv0 is what the program is called by; empty means Program.
	Argv0 string
	// Env is added to a nearly empty environment.
	Env []string
	// LogFile receives its output; it is appended to.
	LogFile string
	// Net is where it runs.
	Net Network
}

// Process is a child process.
type Process struct {
	name    string
	cmd     *exec.Cmd
	logFile string
	logFrom int64
	done    chan struct{}
	err     error // set before done is closed
}

// Start starts the program.
func Start(s Spec) (*Process, error) {
	if err := os.MkdirAll(filepath.Dir(s.LogFile), 0o755); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	log, err := os.OpenFile(s.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	defer func() { _ = log.Close() }() // the child has its own
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	p := &Process{name: s.Name, logFile: s.LogFile, logFrom: from, done: make(chan struct{}), cmd: command(s, log)}
	started := make(chan error, 1)
	go p.run(s.Net, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	return p, nil
}

// run starts the child and waits for its end on one thread that nobody else
// gets: the kernel takes the end of the starting thread for the parent's death.
func (p *Process) run(network Network, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := p.cmd.Start
	if network != nil {
		start = func() error { return network.Start(p.cmd) }
	}
	err := start()
	started <- err
	if err != nil {
		return
	}
	p.wait()
}

func command(s Spec, log *os.File) *exec.Cmd {
	cmd := exec.Command(s.Program, s.Args...)
	if s.Argv0 != "" {
		cmd.Args[0] = s.Argv0
	}
	// The caller's environment (proxies, tokens) is none of the child's business.
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "TMPDIR=" + os.TempDir()}, s.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own: an interrupt at the terminal is for the lab, which
	// ends its children in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.Net == nil {
		// In another namespace the starting thread may not be run's; there
		// the lab's process namespace does it.
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	return cmd
}

func (p *Process) wait() {
	err := p.cmd.Wait()
	if err == nil {
		err = errors.New("exit status 0")
	}
	p.err = fmt.Errorf("%s ended: %w", p.name, err)
	close(p.done)
}

// PID is its process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when it has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running tells whether it has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Err says how it ended, with the last lines it wrote; nil while it runs.
func (p *Process) Err() error {
	if p.Running() {
		return nil
	}
	return fmt.Errorf("%w; last lines of %s:\n%s", p.err, p.logFile, p.tail())
}

// Stop asks it to end, and kills it when it has not after the grace period.
func (p *Process) Stop(grace time.Duration) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(grace):
	}
	return p.Kill()
}

// Kill ends it at once, as a crash would, and waits until it is gone.
func (p *Process) Kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

func (p *Process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to %s: %w", s, p.name, err)
	}
	return nil
}

// ResidentBytes is the memory it occupies now.
func (p *Process) ResidentBytes() (int64, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID()), "statm"))
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", p.name, err)
	}
	fields := bytes.Fields(data)
	if len(fields) < 2 {
		return 0, fmt.Errorf("memory of %s: statm says %q", p.name, data)
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", p.name, err)
	}
	return pages * int64(os.Getpagesize()), nil
}

// userHZ is the unit of /proc's times on every architecture that Go runs on:
// the kernel converts to it.
const userHZ = 100

// CPU is the processor time it has used so far.
func (p *Process) CPU() (time.Duration, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.PID()), "stat"))
	if err != nil {
		return 0, fmt.Errorf("processor time of %s: %w", p.name, err)
	}
	// The name is in parentheses and may hold spaces; the rest is numbers.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	const user, system = 11, 12 // after the name
	if len(fields) <= system {
		return 0, fmt.Errorf("processor time of %s: stat says %q", p.name, data)
	}
	var ticks int64
	for _, field := range [][]byte{fields[user], fields[system]} {
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("processor time of %s: %w", p.name, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / userHZ, nil
}

// An error carries this much of the log: some lines, and of a line its begin,
// where the message is; stack traces follow it.
const (
	tailBytes = 64 << 10
	tailLines = 10
	lineBytes = 400
)

// tail is the end of what this process, not an earlier one, wrote.
func (p *Process) tail() string {
	f, err := os.Open(p.logFile)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	from := max(p.logFrom, info.Size()-tailBytes)
	data, err := io.ReadAll(io.NewSectionReader(f, from, info.Size()-from))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	lines = lines[max(0, len(lines)-tailLines):]
	for i, line := range lines {
		if len(line) > lineBytes {
			lines[i] = line[:lineBytes] + "…"
		}
	}
	return strings.Join(lines, "\n")
}
