package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Sysctl sets a kernel parameter of the namespace, as net/ipv4/ip_forward.
func (n *Namespace) Sysctl(key, value string) error {
	err := n.Do(func() error {
		// What is under net in /proc/sys is the calling thread's namespace.
		return os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0o644)
	})
	if err != nil {
		return fmt.Errorf("set %s to %s in %s: %w", key, value, n.name, err)
	}
	return nil
}

// setDefaults sets the parameters that decide about forwarding and ARP to the
// kernel's defaults. A new namespace inherits what the machine's administrator
// has chosen, and a lab must behave the same on each machine.
func (n *Namespace) setDefaults() error {
	if err := n.Sysctl("net/ipv4/ip_forward", "0"); err != nil {
		return err
	}
	for _, scope := range []string{"all", "default"} {
		for _, key := range []string{"rp_filter", "arp_accept", "arp_announce", "arp_filter", "arp_ignore", "arp_notify", "proxy_arp"} {
			if err := n.Sysctl(filepath.Join("net/ipv4/conf", scope, key), "0"); err != nil {
				return err
			}
		}
	}
	return nil
}

// sysctlIfKnown is for parameters of features that a kernel may lack.
func (n *Namespace) sysctlIfKnown(key, value string) error {
	err := n.Sysctl(key, value)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
