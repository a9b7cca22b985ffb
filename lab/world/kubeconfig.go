package world

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
)

// insideKubeconfig is the administrator's, for programs in the lab.
func (w *World) insideKubeconfig() string {
	return filepath.Join(w.opts.Dir, "run", "management.kubeconfig")
}

// outsideKubeconfig is the administrator's, for programs of the machine.
func (w *World) outsideKubeconfig() string { return filepath.Join(w.opts.Dir, "kubeconfig") }

// writeKubeconfigs writes the management cluster's kubeconfigs.
func (w *World) writeKubeconfigs() error {
	if err := os.WriteFile(w.insideKubeconfig(), w.Management.Kubeconfig(), 0o600); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	if w.opts.ProxyURL == "" {
		return nil
	}
	data, err := ThroughProxy(w.Management.Kubeconfig(), w.opts.ProxyURL)
	if err != nil {
		return err
	}
	if err := os.WriteFile(w.outsideKubeconfig(), data, 0o600); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// ThroughProxy returns a kubeconfig that reaches its clusters by an HTTP
// CONNECT proxy, such as the lab's on the machine's loopback.
func ThroughProxy(kubeconfig []byte, proxyURL string) ([]byte, error) {
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	for _, cluster := range config.Clusters {
		cluster.ProxyURL = proxyURL
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("write kubeconfig: %w", err)
	}
	return data, nil
}
