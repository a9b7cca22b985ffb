package command

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// census is what this process has brought into being: its descendants, and the
// sockets on which it listens.
type census struct {
	processes map[int]string    // descendants, with what they execute
	listeners map[string]string // socket inode to local address
}

// adoptOrphans makes descendants whose parents have ended this process's
// children, so that none gets out of sight.
func adoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("adopt orphans: %w", err)
	}
	return nil
}

// takeCensus lists the descendants and the listeners.
func takeCensus() (census, error) {
	c := census{processes: map[int]string{}, listeners: map[string]string{}}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return c, fmt.Errorf("list processes: %w", err)
	}
	parents := map[int]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent, alive := parentOf(pid); alive {
			parents[pid] = parent
		}
	}
	for pid := range parents {
		for at := parents[pid]; at != 0; at = parents[at] {
			if at != os.Getpid() {
				continue
			}
			// Another user's cannot be read; it counts all the same.
			c.processes[pid], _ = os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
			break
		}
	}
	return c, c.addListeners()
}

// parentOf returns a process's parent, and whether it is alive: one that has
// ended and is not yet buried is nothing that was left over.
func parentOf(pid int) (parent int, alive bool) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil { // it has ended meanwhile
		return 0, false
	}
	// The name before the last parenthesis may hold anything.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 2 || fields[0] == "Z" || fields[0] == "X" {
		return 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return parent, err == nil
}

// addListeners finds the TCP sockets on which this process listens.
func (c *census) addListeners() error {
	own := map[string]bool{}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list own files: %w", err)
	}
	for _, fd := range fds {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", fd.Name()))
		if err != nil {
			continue // the one the listing itself used
		}
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		data, err := os.ReadFile(table)
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return fmt.Errorf("list listeners: %w", err)
		}
		for line := range bytes.Lines(data) {
			fields := strings.Fields(string(line))
			const address, state, inode, listening = 1, 3, 9, "0A"
			if len(fields) > inode && fields[state] == listening && own[fields[inode]] {
				c.listeners[fields[inode]] = fields[address]
			}
		}
	}
	return nil
}

// since tells what is there now and was not before.
func (c census) since(before census) error {
	var errs []error
	for pid, exe := range c.processes {
		if _, was := before.processes[pid]; !was {
			errs = append(errs, fmt.Errorf("process %d is left over: %s", pid, exe))
		}
	}
	for inode, address := range c.listeners {
		if _, was := before.listeners[inode]; !was {
			errs = append(errs, fmt.Errorf("listener %s is left over", address))
		}
	}
	return errors.Join(errs...)
}
