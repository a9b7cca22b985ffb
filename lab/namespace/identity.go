package namespace

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// namespaces are those that the lab has for itself beside the user namespace.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// startFirst starts pid 1 of the new namespaces. They are owned by a new user
// namespace, so that root and others run the same lab; only where a machine has
// user namespaces switched off, root does without.
func startFirst(cmd *exec.Cmd) error {
	attr, err := userNamespace()
	if err != nil {
		return err
	}
	plain := *cmd
	cmd.SysProcAttr = attr
	err = cmd.Start()
	if err == nil || os.Geteuid() != 0 {
		return err
	}
	plain.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if plain.Start() != nil { // for the same reason, which is in err
		return err
	}
	*cmd = plain
	return nil
}

// userNamespace maps all that the caller may map: root keeps every user and
// group, so that files keep their owners; anybody else becomes root inside.
func userNamespace() (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{
		Cloneflags: namespaces | unix.CLONE_NEWUSER,
		Pdeathsig:  syscall.SIGKILL,
		// Signals of the terminal go to Enter alone, which passes on an end.
		Setpgid: true,
	}
	if os.Geteuid() != 0 {
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
		return attr, nil
	}
	var err error
	if attr.UidMappings, err = identity("/proc/self/uid_map"); err != nil {
		return nil, err
	}
	if attr.GidMappings, err = identity("/proc/self/gid_map"); err != nil {
		return nil, err
	}
	attr.GidMappingsEnableSetgroups = true
	return attr, nil
}

// identity maps every ID that exists here onto itself.
func identity(mapFile string) ([]syscall.SysProcIDMap, error) {
	file, err := os.Open(mapFile)
	if err != nil {
		return nil, fmt.Errorf("read ID map: %w", err)
	}
	defer func() { _ = file.Close() }()
	var maps []syscall.SysProcIDMap
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var inside, outside, size int
		if _, err := fmt.Sscan(lines.Text(), &inside, &outside, &size); err != nil {
			return nil, fmt.Errorf("read ID map %s: %w", mapFile, err)
		}
		maps = append(maps, syscall.SysProcIDMap{ContainerID: inside, HostID: inside, Size: size})
	}
	return maps, lines.Err()
}
