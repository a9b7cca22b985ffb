package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoProgram says that a container has no such program to execute.
var ErrNoProgram = errors.New("executable file not found in the container")

// ErrEnded says that the container has ended.
var ErrEnded = errors.New("container has ended")

// Exec runs a command in the container and returns its exit code. The end of
// ctx, or of the container, kills it.
func (c *Container) Exec(ctx context.Context, argv []string, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	if len(argv) == 0 {
		return -1, fmt.Errorf("exec in %s: no command given", c.id)
	}
	cmd := &exec.Cmd{
		Args: argv, Env: c.env, Dir: c.dir,
		Stdin: stdin, Stdout: stdout, Stderr: stderr,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
		// A reader that never ends must not keep a command open that has ended.
		WaitDelay: outputDelay,
	}
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	if err := c.startInside(cmd); err != nil {
		return -1, fmt.Errorf("exec %s in %s: %w", argv[0], c.id, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() }) // fails if it has ended
	defer stop()
	code, err := waitCode(cmd)
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	return code, err
}

// startInside starts the command on a thread that has joined the container. The
// thread cannot be made clean again; it ends with its goroutine.
func (c *Container) startInside(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	go spoiledThread(func() { started <- c.joinAndStart(cmd) })
	return <-started
}

// spoiledThread calls f on a thread that is thrown away afterwards. It must not
// be the main one, which lives on and stands for the process in /proc.
func spoiledThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f() // and the thread ends, as it is never unlocked
		return
	}
	ended := make(chan struct{})
	go func() { // cannot run on this thread, which is taken
		defer close(ended)
		spoiledThread(f)
	}()
	<-ended
	runtime.UnlockOSThread()
}

func (c *Container) joinAndStart(cmd *exec.Cmd) error {
	select {
	case <-c.done:
		return ErrEnded
	default:
	}
	fd, err := unix.PidfdOpen(c.PID(), 0)
	if err != nil {
		return errors.Join(ErrEnded, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare working directory: %w", err)
	}
	const joined = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC
	if err := unix.Setns(fd, joined); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return errors.Join(ErrEnded, err)
		}
		return fmt.Errorf("join container: %w", err)
	}
	if cmd.Path, err = lookUp(cmd.Args[0], cmd.Env); err != nil {
		return err
	}
	return explainExec(cmd.Path, cmd.Start())
}

// lookUp finds a program on the calling thread's file system.
func lookUp(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		if !executable(name) {
			return "", fmt.Errorf("%q: %w", name, ErrNoProgram)
		}
		return name, nil
	}
	for _, dir := range strings.Split(pathOf(env), ":") {
		if candidate := path.Join(dir, name); path.IsAbs(candidate) && executable(candidate) {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("%q in $PATH: %w", name, ErrNoProgram)
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func pathOf(env []string) string {
	found := defaultPath
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok {
			found = value
		}
	}
	return found
}

func executable(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// outputDelay is how long Exec waits for its streams after the command's end.
const outputDelay = 500 * time.Millisecond
