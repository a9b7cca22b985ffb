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

// sysctlIfKnown is for parameters of features that a kernel may lack.
func (n *Namespace) sysctlIfKnown(key, value string) error {
	err := n.Sysctl(key, value)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
