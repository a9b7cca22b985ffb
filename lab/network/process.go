package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Processes lists the processes whose network is this namespace.
func (n *Namespace) Processes() ([]int, error) {
	var own unix.Stat_t
	if err := unix.Fstat(int(n.handle), &own); err != nil {
		return nil, fmt.Errorf("identify network namespace %s: %w", n.name, err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err == nil && pid != os.Getpid() && isIn(pid, &own) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// isIn tells whether a process is in a network namespace. One that has ended, a
// zombie too, is in none.
func isIn(pid int, namespace *unix.Stat_t) bool {
	var its unix.Stat_t
	err := unix.Stat(filepath.Join("/proc", strconv.Itoa(pid), "ns/net"), &its)
	return err == nil && its.Ino == namespace.Ino && its.Dev == namespace.Dev
}

// KillProcesses kills every process in the namespace and returns when they are
// gone, or with an error after the time-out.
func (n *Namespace) KillProcesses(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		pids, err := n.Processes()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := n.killProcess(pid, deadline); err != nil {
				return fmt.Errorf("kill process %d in %s: %w", pid, n.name, err)
			}
		}
	}
}

// killProcess kills a process and waits for its end.
func (n *Namespace) killProcess(pid int, deadline time.Time) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var own unix.Stat_t
	if err := unix.Fstat(int(n.handle), &own); err != nil {
		return err
	}
	if !isIn(pid, &own) { // the number may be another process's by now
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for {
		left := max(time.Until(deadline), 0)
		ended, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case ended == 0:
			return fmt.Errorf("it is still there after SIGKILL: %w", os.ErrDeadlineExceeded)
		default:
			return nil
		}
	}
}

// Reset brings the namespace back to what it is at power-on: the named links,
// up and without addresses, routes, neighbours; no others.
func (n *Namespace) Reset(keep ...string) error {
	kept := map[string]bool{"lo": true}
	for _, name := range keep {
		kept[name] = true
	}
	links, err := n.nl.LinkList()
	if err != nil {
		return fmt.Errorf("list links in %s: %w", n.name, err)
	}
	var errs []error
	for _, link := range links {
		name := link.Attrs().Name
		switch {
		case name == "lo":
		case kept[name]:
			errs = append(errs, n.clearLink(link))
		default:
			errs = append(errs, n.DelLink(name))
		}
	}
	return errors.Join(append(errs, n.setDefaults())...)
}

// clearLink takes addresses and ARP cache off an interface; routes and cache go
// with the down state, and the link comes up as a booting kernel brings it up.
func (n *Namespace) clearLink(link netlink.Link) error {
	addrs, err := n.nl.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list addresses of %s in %s: %w", link.Attrs().Name, n.name, err)
	}
	for _, a := range addrs {
		if err := n.nl.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address %s from %s in %s: %w", a.IPNet, link.Attrs().Name, n.name, err)
		}
	}
	if err := n.nl.LinkSetDown(link); err != nil {
		return fmt.Errorf("set link %s in %s down: %w", link.Attrs().Name, n.name, err)
	}
	return n.setUp(link.Attrs().Name)
}
