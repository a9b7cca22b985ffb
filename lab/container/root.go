package container

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Main is the hidden command: process 1 of a new container. It returns only if
// the program could not be executed.
func Main(args []string) int {
	if len(args) != 0 {
		fmt.Fprintf(os.Stderr, "%s is started by the lab itself; it takes no arguments\n", Command)
		return 2
	}
	unix.CloseOnExec(planFD)
	unix.CloseOnExec(reportFD)
	step, err := becomeContainer()
	out := report{Step: step, Text: err.Error(), NotStatic: errors.Is(err, ErrNotStatic)}
	errors.As(err, &out.Errno)
	// Without a listener there is nobody left to tell.
	_ = json.NewEncoder(os.NewFile(reportFD, "report")).Encode(out)
	return 1
}

// becomeContainer builds the root and executes the program. It returns the step
// that failed.
func becomeContainer() (string, error) {
	var p plan
	if err := json.NewDecoder(os.NewFile(planFD, "plan")).Decode(&p); err != nil {
		return "read the plan", err
	}
	b := &builder{plan: p}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"set hostname", b.setHostname},
		{"open what is to be mounted", b.openSources},
		{"make the root file system", b.enterRoot},
		{"fill the root file system", b.fill},
		{"mount program", b.mountProgram},
		{"mount volumes", b.mountVolumes},
		{"leave the host's files", b.leaveHost},
		{"enter working directory", b.enterDir},
	} {
		if err := step.do(); err != nil {
			return step.name, err
		}
	}
	err := unix.Exec(p.Target, p.Args, withPath(p.Env))
	return "execute " + p.Target, explainExec(p.Target, err)
}

// withPath adds the usual PATH where none is set.
func withPath(env []string) []string {
	if slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }) {
		return env
	}
	return append(slices.Clip(env), "PATH="+defaultPath)
}

// builder makes a container's root. Everything of the host is opened before the
// root is changed and mounted after: no path of a container, nor a symlink in a
// mount, is ever looked up on the host.
type builder struct {
	plan
	program, toybox int
	devices         map[string]int
	volumes         []volume
}

type volume struct {
	Mount
	fd  int
	dir bool
}

// staging is where the new root is mounted before it takes over; it exists on
// every Linux and its content is not needed any more.
const staging = "/tmp"

// oldRoot is where the host's files are while the new root is filled.
const oldRoot = "/.host"

func (b *builder) setHostname() error {
	if b.Hostname == "" {
		return nil
	}
	return unix.Sethostname([]byte(b.Hostname))
}

// openSource opens a host path for mounting, and tells whether it is a
// directory.
func openSource(name string) (fd int, dir bool, err error) {
	fd, err = unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, false, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return 0, false, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	return fd, stat.Mode&unix.S_IFMT == unix.S_IFDIR, nil
}

func (b *builder) openSources() error {
	var err error
	if b.program, _, err = openSource(b.Program); err != nil {
		return err
	}
	if b.toybox, _, err = openSource(b.Toybox); err != nil {
		return err
	}
	b.devices = map[string]int{}
	for _, name := range []string{"null", "zero", "full", "random", "urandom"} {
		if b.devices[name], _, err = openSource("/dev/" + name); err != nil {
			return err
		}
	}
	for _, m := range b.Mounts {
		fd, dir, err := openSource(m.Host)
		if err != nil {
			return err
		}
		b.volumes = append(b.volumes, volume{m, fd, dir})
	}
	// Outer mounts first, or they would hide the inner ones.
	slices.SortStableFunc(b.volumes, func(x, y volume) int {
		return cmp.Compare(strings.Count(path.Clean(x.Container), "/"), strings.Count(path.Clean(y.Container), "/"))
	})
	return nil
}

// enterRoot makes an empty root and goes there. The host's files stay mounted
// at oldRoot, since what is not mounted cannot be bound.
func (b *builder) enterRoot() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", staging, "tmpfs", unix.MS_NOSUID, "mode=0755"); err != nil {
		return fmt.Errorf("mount root: %w", err)
	}
	proc := path.Join(staging, "proc")
	if err := os.Mkdir(proc, 0o555); err != nil {
		return err
	}
	if err := unix.Mount("proc", proc, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	host := path.Join(staging, oldRoot)
	if err := os.Mkdir(host, 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(staging, host); err != nil {
		return fmt.Errorf("pivot root: %w", err)
	}
	return unix.Chdir("/")
}

// fill makes what every container has.
func (b *builder) fill() error {
	for dir, mode := range map[string]fs.FileMode{
		"/bin": 0o755, "/dev": 0o755, "/dev/shm": 0o777 | fs.ModeSticky, "/etc": 0o755, "/root": 0o700, "/run": 0o755, "/sys": 0o555,
		"/usr/local/bin": 0o755, "/var": 0o755, "/var/run": 0o755, "/tmp": 0o777 | fs.ModeSticky,
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(dir, mode); err != nil { // whatever the umask
			return err
		}
	}
	for name, content := range map[string]string{
		"/etc/hosts":       b.HostsFile,
		"/etc/resolv.conf": b.ResolvConf,
		"/etc/hostname":    b.Hostname + "\n",
		"/etc/passwd":      "root:x:0:0:root:/root:/bin/false\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"/etc/group":       "root:x:0:\nnogroup:x:65534:\n",
	} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			return err
		}
	}
	for name, fd := range b.devices {
		if err := bind(fd, path.Join("/dev", name), false); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"} {
		if err := os.Symlink("/proc/self/fd"+target, path.Join("/dev", name)); err != nil {
			return err
		}
	}
	return nil
}

// bind mounts an opened source of the host.
func bind(fd int, target string, dir bool) error {
	if err := makeTarget(target, dir); err != nil {
		return err
	}
	// Recursive, since what is below may be locked to its parent.
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return &fs.PathError{Op: "mount", Path: target, Err: err}
	}
	return nil
}

func makeTarget(target string, dir bool) error {
	if dir {
		return os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(path.Dir(target), 0o755); err != nil {
		return err
	}
	if _, err := os.Lstat(target); err == nil {
		return nil
	}
	file, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}

// ToyboxNames are the small programs that the lab's binary serves in every
// container, by the name it is called.
func ToyboxNames() []string {
	return []string{"echo", "cat", "ls", "env", "hostname", "sleep", "nc", "ifaddr"}
}

func (b *builder) mountProgram() error {
	if err := bind(b.program, b.Target, false); err != nil {
		return err
	}
	if err := bind(b.toybox, "/bin/toybox", false); err != nil {
		return err
	}
	for _, name := range ToyboxNames() {
		err := os.Symlink("toybox", path.Join("/bin", name))
		// The program itself may have that name.
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func (b *builder) mountVolumes() error {
	for _, v := range b.volumes {
		if err := bind(v.fd, v.Container, v.dir); err != nil {
			return err
		}
		if !v.ReadOnly {
			continue
		}
		attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(unix.AT_FDCWD, v.Container, unix.AT_RECURSIVE, attr); err != nil {
			return &fs.PathError{Op: "make read-only", Path: v.Container, Err: err}
		}
	}
	return nil
}

func (b *builder) leaveHost() error {
	if err := unix.Unmount(oldRoot, unix.MNT_DETACH); err != nil {
		return err
	}
	return os.Remove(oldRoot)
}

func (b *builder) enterDir() error {
	dir := b.Dir
	if dir == "" {
		dir = "/"
	}
	if err := os.MkdirAll(dir, 0o755); err != nil && !errors.Is(err, syscall.EROFS) {
		return err
	}
	return unix.Chdir(dir)
}
