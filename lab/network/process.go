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
		if err != nil || pid == os.Getpid() {
			continue
		}
		var theirs unix.Stat_t
		// A process that ended meanwhile, a zombie too, has no namespace.
		if unix.Stat(filepath.Join("/proc", entry.Name(), "ns/net"), &theirs) != nil {
			continue
		}
		if theirs.Ino == own.Ino && theirs.Dev == own.Dev {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// KillProcesses kills every process in the namespace and returns when they are
// gone, or with an error after the time-out.
func (n *Namespace) KillProcesses(timeout time.Duration) error {
	const pause = 5 * time.Millisecond
	for deadline := time.Now().Add(timeout); ; {
		pids, err := n.Processes()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d in %s: %w", pid, n.name, err)
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v in %s are still there %s after SIGKILL", pids, n.name, timeout)
		}
		time.Sleep(pause) // the kernel has no event for "left a namespace"
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
