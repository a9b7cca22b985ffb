package command

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// census is what ran and listened at a moment, as far as it could be a lab's.
type census struct {
	processes map[int]string    // with what they execute
	listeners map[string]string // socket inode to local address
}

// takeCensus lists the processes that execute one of the programs, and this
// process's own listeners.
func takeCensus(programs []string) (census, error) {
	c := census{processes: map[int]string{}, listeners: map[string]string{}}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return c, fmt.Errorf("list processes: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// A process that has ended meanwhile, or is another user's, has none.
		exe, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err != nil {
			continue
		}
		if slices.Contains(programs, strings.TrimSuffix(exe, " (deleted)")) {
			c.processes[pid] = exe
		}
	}
	return c, c.addListeners()
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
