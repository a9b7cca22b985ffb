package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"aether.internal/aether/lab/network"
)

// Spec describes a container.
type Spec struct {
	ID      string
	Program string   // absolute path of a static executable on the host
	Args    []string // argv, argv[0] included: multi-call programs look at it
	Env     []string
	Dir     string // working directory; empty is /
	Mounts  []Mount
	Net     *network.Namespace

	Hostname   string
	Hosts      map[string]string // name to IP address, for /etc/hosts
	ResolvConf string            // content of /etc/resolv.conf

	// LogFile gets what the program writes, appended. Stdout and Stderr, where
	// set, are used instead.
	LogFile        string
	Stdout, Stderr io.Writer
}

// Mount makes a file or directory of the host visible in the container.
type Mount struct {
	Host, Container string
	ReadOnly        bool
}

// Command is the hidden command of the lab's binary that Main serves.
const Command = "contain"

// StartError says that a container could not be started: what was tried, and
// what the kernel answered.
type StartError struct {
	Container string
	Step      string
	Err       error
}

// Error names container, step and cause.
func (e *StartError) Error() string {
	return fmt.Sprintf("start container %s: %s: %v", e.Container, e.Step, e.Err)
}

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// Engine runs containers.
type Engine struct {
	self string
	log  *slog.Logger
}

// New returns an engine; self is the path of the lab's binary, which serves
// Command and, as /bin/toybox in every container, a few small programs.
func New(self string, log *slog.Logger) *Engine { return &Engine{self: self, log: log} }

// Descriptors of the contain process, after the three standard ones.
const (
	planFD   = 3 // read: the plan
	reportFD = 4 // write: a report, or closed by the start of the program
)

// plan is what the contain process is to build.
type plan struct {
	Program    string
	Target     string // where the program is in the container
	Toybox     string
	Args, Env  []string
	Dir        string
	Mounts     []Mount
	Hostname   string
	HostsFile  string
	ResolvConf string
}

// report tells why a container did not come up.
type report struct {
	Step      string
	Errno     syscall.Errno
	Text      string
	NotStatic bool
}

// cause is the error that the report carries, in a form that can be compared.
func (r report) cause() error {
	switch {
	case r.NotStatic:
		return ErrNotStatic
	case r.Errno != 0:
		return &reported{r.Text, r.Errno}
	default:
		return errors.New(r.Text)
	}
}

// reported is an error of another process.
type reported struct {
	text  string
	errno syscall.Errno
}

// Error is the other process's text, which names the file.
func (e *reported) Error() string { return e.text }

// Unwrap returns the kernel's answer.
func (e *reported) Unwrap() error { return e.errno }

// Run starts the container and returns when its program runs. The end of ctx
// kills it.
func (e *Engine) Run(ctx context.Context, s Spec) (*Container, error) {
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("container %s: %w", s.ID, err)
	}
	cmd := &exec.Cmd{
		Path: e.self, Args: []string{e.self, Command},
		Env: []string{}, Dir: "/",
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
			Setsid:     true,
		},
	}
	logFile, err := s.output(cmd)
	if err != nil {
		return nil, fmt.Errorf("container %s: %w", s.ID, err)
	}
	defer closeFile(logFile) // the program has its own copy
	if err := e.launch(cmd, s); err != nil {
		return nil, err
	}
	c := &Container{id: s.ID, env: s.Env, dir: s.Dir, cmd: cmd, done: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { _ = c.Kill(syscall.SIGKILL) }) // fails if it has ended
	go func() {
		c.reap()
		stop()
		e.log.Debug("container ended", "container", s.ID, "exit_code", c.code)
		close(c.done)
	}()
	return c, nil
}

func (s Spec) validate() error {
	switch {
	case s.Net == nil:
		return errors.New("net: a network namespace is needed")
	case !path.IsAbs(s.Program):
		return fmt.Errorf("program: %q is not an absolute path", s.Program)
	case len(s.Args) == 0 || s.Args[0] == "":
		return errors.New("args: at least the program's own name is needed")
	}
	for _, m := range s.Mounts {
		if !path.IsAbs(m.Host) || !path.IsAbs(m.Container) {
			return fmt.Errorf("mounts: %q to %q: both must be absolute paths", m.Host, m.Container)
		}
	}
	return nil
}

// output connects what the program writes; the file, if any, is the caller's to
// close.
func (s Spec) output(cmd *exec.Cmd) (*os.File, error) {
	cmd.Stdout, cmd.Stderr = s.Stdout, s.Stderr
	if s.LogFile == "" || (s.Stdout != nil && s.Stderr != nil) {
		return nil, nil
	}
	file, err := os.OpenFile(s.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log file: %w", err)
	}
	if cmd.Stdout == nil {
		cmd.Stdout = file
	}
	if cmd.Stderr == nil {
		cmd.Stderr = file
	}
	return file, nil
}

// closeFile closes a file, or none, to which this process has written nothing.
func closeFile(f *os.File) {
	if f != nil {
		_ = f.Close()
	}
}

// launch starts the contain process and waits for the program to take over.
func (e *Engine) launch(cmd *exec.Cmd, s Spec) error {
	planTheirs, planOurs, err := os.Pipe()
	if err != nil {
		return &StartError{s.ID, "make pipe", err}
	}
	defer closeFile(planTheirs)
	reportOurs, reportTheirs, err := os.Pipe()
	if err != nil {
		closeFile(planOurs)
		return &StartError{s.ID, "make pipe", err}
	}
	defer closeFile(reportOurs)
	cmd.ExtraFiles = []*os.File{planTheirs, reportTheirs}
	err = s.Net.Start(cmd)
	closeFile(reportTheirs)
	if err != nil {
		closeFile(planOurs)
		return &StartError{s.ID, "start " + cmd.Path, err}
	}
	err = errors.Join(json.NewEncoder(planOurs).Encode(e.plan(s)), planOurs.Close())
	if err != nil { // it died before it read; its report, if any, is better
		err = &StartError{s.ID, "hand over the plan", err}
	}
	if told := readReport(s.ID, reportOurs); told != nil {
		err = told
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // its status is that it was killed
	}
	return err
}

func readReport(id string, from io.Reader) error {
	data, err := io.ReadAll(from)
	if err != nil {
		return &StartError{id, "read the report", err}
	}
	if len(data) == 0 {
		return nil
	}
	var r report
	if err := json.Unmarshal(data, &r); err != nil {
		return &StartError{id, "read the report", err}
	}
	return &StartError{id, r.Step, r.cause()}
}

func (e *Engine) plan(s Spec) plan {
	return plan{
		Program: s.Program, Target: programTarget(s.Args[0]), Toybox: e.self,
		Args: s.Args, Env: s.Env, Dir: s.Dir,
		Mounts: s.Mounts, Hostname: s.Hostname,
		HostsFile: hostsFile(s.Hosts), ResolvConf: s.ResolvConf,
	}
}

// programTarget is where argv[0] says that the program is.
func programTarget(arg0 string) string {
	if path.IsAbs(arg0) {
		return path.Clean(arg0)
	}
	return path.Join("/usr/local/bin", arg0)
}

func hostsFile(hosts map[string]string) string {
	names := make([]string, 0, len(hosts))
	for name := range hosts {
		names = append(names, name)
	}
	slices.Sort(names)
	var file strings.Builder
	file.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost\n")
	for _, name := range names {
		fmt.Fprintf(&file, "%s\t%s\n", hosts[name], name)
	}
	return file.String()
}
