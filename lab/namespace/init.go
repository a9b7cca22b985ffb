package namespace

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Init is the first process of the namespaces. It returns false at once in any
// other process; a main does
//
//	if code, ok := namespace.Init(); ok {
//		os.Exit(code)
//	}
//
// before all else. Exiting as pid 1 ends everything inside.
func Init() (code int, ok bool) {
	if os.Args[0] != initName {
		return 0, false
	}
	report := os.NewFile(reportFD, "report")
	world, err := setUp()
	if err != nil {
		tell(report, err)
		return 1, true
	}
	if err := report.Close(); err != nil { // tells the outside that all is well
		return 1, true
	}
	go obey(world)
	return reap(world), true
}

// failure is a step of the set-up that the kernel refused.
type failure struct {
	step string
	err  error
}

// Error tells the step and the kernel's answer.
func (f *failure) Error() string { return fmt.Sprintf("%s: %v", f.step, f.err) }

// Unwrap returns the kernel's answer.
func (f *failure) Unwrap() error { return f.err }

// setUp prepares the namespaces and starts the world.
func setUp() (*os.Process, error) {
	if len(os.Args) != 2 {
		return nil, &failure{"read instructions", syscall.EINVAL}
	}
	var told instructions
	if err := json.Unmarshal([]byte(os.Args[1]), &told); err != nil {
		return nil, &failure{"read instructions", err}
	}
	for _, fd := range []int{lifelineFD, reportFD} {
		unix.CloseOnExec(fd)
	}
	if err := mountPrivate(told.Tmpfs); err != nil {
		return nil, err
	}
	if err := loopbackUp(); err != nil {
		return nil, &failure{"set loopback up", err}
	}
	world, err := os.StartProcess(selfPath, append([]string{worldName}, told.Args...), &os.ProcAttr{
		Dir:   told.Dir,
		Env:   os.Environ(),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return nil, &failure{"start the lab in its namespaces", err}
	}
	return world, nil
}

// loopbackUp gives the world its 127.0.0.1.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// mountPrivate cuts the mounts off from the machine's and mounts what the new
// namespaces need.
func mountPrivate(tmpfs []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return &failure{"make mounts private", err}
	}
	const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("proc", "/proc", "proc", safe, ""); err != nil {
		return &failure{"mount /proc", err}
	}
	for _, dir := range tmpfs {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
			return &failure{"mount tmpfs on " + dir, err}
		}
	}
	return nil
}

// obey carries out the outside's orders and ends all when the outside is gone.
func obey(world *os.Process) {
	lifeline := os.NewFile(lifelineFD, "lifeline")
	order := make([]byte, 1)
	for {
		n, err := lifeline.Read(order)
		if n == 1 && order[0] == orderTerm {
			// A world that has just ended needs no signal.
			_ = world.Signal(syscall.SIGTERM)
		}
		if err != nil {
			os.Exit(128 + int(syscall.SIGKILL))
		}
	}
}

// reap buries orphans until the world ends, and returns its exit code.
func reap(world *os.Process) int {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // no child left, the world included
			return 1
		case pid == world.Pid && (status.Exited() || status.Signaled()):
			return exitCode(status)
		}
	}
}

// tell reports a failed set-up to the outside; if that is gone too, nobody is
// left to tell.
func tell(report *os.File, err error) {
	r := setupReport{Step: "set up", Text: err.Error()}
	var failed *failure
	if errors.As(err, &failed) {
		r.Step, r.Text = failed.step, failed.err.Error()
	}
	errors.As(err, &r.Errno)
	if data, jsonErr := json.Marshal(r); jsonErr == nil {
		_, _ = report.Write(data)
	}
	_ = report.Close()
}
