package site

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
	"sigs.k8s.io/yaml"

	product "aether.internal/aether/internal/site"
)

// Names of the files, as examples/site.yaml refers to them.
const (
	siteName       = "site.yaml"
	proxmoxCAName  = "homelab-ca.pem"
	knownHostsName = "homelab-known-hosts"
	harborCAName   = "harbor-ca.pem"
	codecKeysName  = "codec-keys"
)

// File is the site file of a folder that Write wrote.
func File(dir string) string { return filepath.Join(dir, siteName) }

// CodecKeysFile is the file with the codec's keys.
func CodecKeysFile(dir string) string { return filepath.Join(dir, codecKeysName) }

// KnownHost is an SSH host with its key.
type KnownHost struct {
	Address string
	Key     ssh.PublicKey
}

// CodecKeys are the keys of the payload codec.
type CodecKeys struct {
	ID     string
	Secret string // base64 of 32 bytes
}

// NewCodecKeys makes a key.
func NewCodecKeys() (CodecKeys, error) {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return CodecKeys{}, fmt.Errorf("make codec key: %w", err)
	}
	return CodecKeys{ID: "lab", Secret: base64.StdEncoding.EncodeToString(key)}, nil
}

// Config is what is particular to this lab.
type Config struct {
	Example     string // examples/site.yaml
	Dir         string // where to write
	CiliumChart string // unpacked chart
	ProxmoxCA   []byte
	HarborCA    []byte
	SSHUser     string
	KnownHosts  []KnownHost
	CodecKeys   CodecKeys
}

// Write writes the folder and checks that the product reads it.
func Write(cfg Config) error {
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return fmt.Errorf("write site: %w", err)
	}
	document, err := document(cfg)
	if err != nil {
		return err
	}
	var hosts bytes.Buffer
	for _, h := range cfg.KnownHosts {
		hosts.WriteString(knownhosts.Line([]string{h.Address}, h.Key) + "\n")
	}
	files := map[string][]byte{
		siteName: document, proxmoxCAName: cfg.ProxmoxCA, harborCAName: cfg.HarborCA, knownHostsName: hosts.Bytes(),
		codecKeysName: []byte(cfg.CodecKeys.ID + ":" + cfg.CodecKeys.Secret + "\n"),
	}
	for name, data := range files {
		mode := os.FileMode(0o644)
		if name == codecKeysName {
			mode = 0o600
		}
		if err := os.WriteFile(filepath.Join(cfg.Dir, name), data, mode); err != nil {
			return fmt.Errorf("write site: %w", err)
		}
	}
	if _, err := product.Load(File(cfg.Dir)); err != nil {
		return fmt.Errorf("written site file: %w", err)
	}
	return nil
}

// document is the example with the chart of the lab.
func document(cfg Config) ([]byte, error) {
	data, err := os.ReadFile(cfg.Example)
	if err != nil {
		return nil, fmt.Errorf("read the example of a site: %w", err)
	}
	var example struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       map[string]any `json:"spec"`
	}
	if err := yaml.UnmarshalStrict(data, &example); err != nil {
		return nil, fmt.Errorf("read %s: %w", cfg.Example, err)
	}
	example.Spec["charts"] = map[string]any{"cilium": map[string]any{"path": cfg.CiliumChart}}
	if err := setSSHUser(example.Spec, cfg.SSHUser); err != nil {
		return nil, fmt.Errorf("read %s: %w", cfg.Example, err)
	}
	written, err := yaml.Marshal(example)
	if err != nil {
		return nil, fmt.Errorf("write site: %w", err)
	}
	return append([]byte("# Written by the lab from examples/site.yaml.\n"), written...), nil
}

// errNoSSH is an example that is not what the lab was written for.
var errNoSSH = errors.New("spec.proxmox: a cluster without ssh")

// setSSHUser puts in who the hosts' door is open to.
func setSSHUser(spec map[string]any, user string) error {
	clusters, _ := spec["proxmox"].([]any)
	for _, c := range clusters {
		cluster, _ := c.(map[string]any)
		door, ok := cluster["ssh"].(map[string]any)
		if !ok {
			return errNoSSH
		}
		door["user"] = user
	}
	return nil
}
