package site_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"aether.internal/aether/internal/codec"
	product "aether.internal/aether/internal/site"
	"aether.internal/aether/lab/controlplane/pki"
	"aether.internal/aether/lab/site"
)

func config(t *testing.T) site.Config {
	t.Helper()
	authority, err := pki.NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := site.NewCodecKeys()
	if err != nil {
		t.Fatal(err)
	}
	chart, err := filepath.Abs("../charts/cilium")
	if err != nil {
		t.Fatal(err)
	}
	return site.Config{
		Example: "../../examples/site.yaml", Dir: t.TempDir(), CiliumChart: chart, ProxmoxCA: authority.Certificate,
		HarborCA: authority.Certificate, SSHUser: "root",
		KnownHosts: []site.KnownHost{{Address: "192.168.0.8", Key: key}, {Address: "192.168.0.10", Key: key}}, CodecKeys: keys,
	}
}

func TestWriteIsReadByTheProduct(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	if err := site.Write(cfg); err != nil {
		t.Fatal(err)
	}
	s, err := product.Load(site.File(cfg.Dir))
	if err != nil {
		t.Fatal(err)
	}
	cluster := s.Spec.Proxmox[0]
	if cluster.SSH == nil || cluster.SSH.User != "root" || len(cluster.SSH.KnownHosts) != 2 {
		t.Errorf("SSH door is %+v", cluster.SSH)
	}
	if s.Spec.Charts.Cilium.Path != cfg.CiliumChart || s.Spec.Charts.Cilium.Repository != "" {
		t.Errorf("chart is %+v", s.Spec.Charts.Cilium)
	}
	if _, err := codec.LoadKeys(site.CodecKeysFile(cfg.Dir)); err != nil {
		t.Errorf("codec keys: %v", err)
	}
	info, err := os.Stat(site.CodecKeysFile(cfg.Dir))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("codec keys have mode %v, %v; want 0600", info.Mode(), err)
	}
}

func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*site.Config)
		want   string
	}{
		"no example":  {func(c *site.Config) { c.Example = "no/such/file" }, "no/such/file"},
		"no SSH user": {func(c *site.Config) { c.SSHUser = "" }, "ssh.user"},
		"no CA":       {func(c *site.Config) { c.ProxmoxCA = nil }, "written site file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t)
			tc.change(&cfg)
			if err := site.Write(cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want %q in it", err, tc.want)
			}
		})
	}
}
