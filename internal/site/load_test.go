package site

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func example(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "examples", "site.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// edit replaces text that must occur exactly once per wanted change.
func edit(t *testing.T, text, old, replacement string) string {
	t.Helper()
	if !strings.Contains(text, old) {
		t.Fatalf("the example no longer contains %q", old)
	}
	return strings.Replace(text, old, replacement, 1)
}

func TestParseExample(t *testing.T) {
	s, err := Parse([]byte(example(t)))
	if err != nil {
		t.Fatal(err)
	}
	cluster, ok := s.Cluster("homelab")
	if !ok {
		t.Fatal("cluster homelab is missing")
	}
	host, ok := cluster.Host("pv1-2")
	if !ok || host.Templates.Worker != 902 || host.Storage.CloneSlots != 2 {
		t.Errorf("host pv1-2: got %+v", host)
	}
	if cluster.SSH.Port != 22 {
		t.Errorf("ssh port: got %d, want the default 22", cluster.SSH.Port)
	}
	tenant, ok := s.Network("tenant")
	if !ok || tenant.MTU != 1500 || tenant.Prefix(tenant.Ranges.Workers[0].From).String() != "10.1.1.50/24" {
		t.Errorf("network tenant: got %+v", tenant)
	}
	if !tenant.On("pv1-1") {
		t.Error("a network without hosts shall be on every host")
	}
	if got := len(s.Forbidden()); got != 5 {
		t.Errorf("forbidden ranges: got %d, want three networks and two of management", got)
	}
	if class, ok := s.MachineClass("medium"); !ok || class.Cores != 4 {
		t.Errorf("class medium: got %+v", class)
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct {
		name, old, new string
		field, text    string // of the first problem
	}{
		{"unknown field", "vcpusPerCore: 4", "vcpuPerCore: 4", "spec.proxmox[0].hosts[0].vcpuPerCore", `did you mean "vcpusPerCore"?`},
		{"unknown field far from any", "proxyClass:", "zzzzzzzzzz:", "spec.zzzzzzzzzz", "remove it"},
		{"wrong version", "aether.internal/v1alpha1", "aether.internal/v2", "apiVersion", `found "aether.internal/v2"`},
		{"wrong kind", "kind: Site", "kind: Cluster", "kind", `allowed: "Site"`},
		{"text for number", "cloneSlots: 2", "cloneSlots: two", "spec.proxmox[0].hosts[0].storage.cloneSlots", "whole number"},
		{"number for text", "name: homelab\nspec", "name: 7\nspec", "metadata.name", "quotes"},
		{"fraction", "cores: 1}\n          vcpus", "cores: 1.5}\n          vcpus", "spec.proxmox[0].hosts[0].reserve.cores", "fraction"},
		{"list for mapping", "vmids: {from: 1000, to: 1999}", "vmids: [1000]", "spec.proxmox[0].vmids", "a mapping"},
		{"bad CIDR", "cidr: 10.1.1.0/24", "cidr: 10.1.1.0", "spec.networks[1].cidr", "CIDR form"},
		{"host bits", "cidr: 10.1.1.0/24", "cidr: 10.1.1.7/24", "spec.networks[1].cidr", `allowed: "10.1.1.0/24"`},
		{"IPv6", "cidr: 10.1.1.0/24", "cidr: fd00::/64", "spec.networks[1].cidr", "IPv4"},
		{"gateway elsewhere", "gateway: 10.1.1.1", "gateway: 10.9.1.1", "spec.networks[1].gateway", "in 10.1.1.0/24"},
		{"range reversed", "from: 10.1.1.50, to: 10.1.1.249", "from: 10.1.1.249, to: 10.1.1.50", "spec.networks[1].ranges.workers[0]", "exchange"},
		{"range outside", "to: 10.1.1.249", "to: 10.1.2.9", "spec.networks[1].ranges.workers[0].to", "10.1.1.1 and 10.1.1.254"},
		{"broadcast", "to: 10.1.1.249", "to: 10.1.1.255", "spec.networks[1].ranges.workers[0].to", "between"},
		{"ranges overlap", "from: 10.1.1.50", "from: 10.1.1.49", "spec.networks[1].ranges.workers[0]", "overlaps"},
		{"gateway in range", "from: 10.1.1.10", "from: 10.1.1.1", "spec.networks[1].ranges.proxies[0]", "the gateway"},
		{"host in range", "from: 192.168.0.200, to: 192.168.0.239", "from: 192.168.0.3, to: 192.168.0.9", "spec.networks[0].ranges.proxies", "host pv1-1"},
		{"load balancers over a host", "loadBalancers: [{from: 192.168.0.100", "loadBalancers: [{from: 192.168.0.8", "spec.networks[0].ranges.loadBalancers", "host pv1-1"},
		{"networks overlap", "cidr: 10.1.2.0/24", "cidr: 10.1.0.0/16", "spec.networks[2].cidr", "overlaps spec.networks[1].cidr"},
		{"pods over network", "podCIDR: 10.244.0.0/16", "podCIDR: 10.0.0.0/8", "spec.defaults.serviceCIDR", "apart"},
		{"management over tenants", "podCIDR: 10.250.0.0/16", "podCIDR: 10.244.0.0/16", "spec.defaults.podCIDR", "spec.management.podCIDR"},
		{"VMID below 1000", "from: 1000, to: 1999", "from: 999, to: 1999", "spec.proxmox[0].vmids.from", "1000 to"},
		{"VMIDs reversed", "from: 1000, to: 1999", "from: 3000, to: 1999", "spec.proxmox[0].vmids", "exchange"},
		{"template too high", "worker: 901", "worker: 1901", "spec.proxmox[0].hosts[0].templates.worker", "100 to 999"},
		{"template twice", "worker: 902", "worker: 901", "spec.proxmox[0].hosts[1].templates.worker", "cluster-wide"},
		{"full node name", "name: pv1-1\n", "name: pv1-1.lan\n", "spec.proxmox[0].hosts[0].name", "without a domain"},
		{"host without bridge", "bridges: [vmbr0, vmbr1, vmbr2]", "bridges: [vmbr0, vmbr1]", "spec.proxmox[0].hosts[0].bridges", "network storage"},
		{"plain http", "https://192.168.0.8:8006", "http://192.168.0.8:8006", "spec.proxmox[0].endpoints[0]", "unencrypted"},
		{"password in endpoint", "https://192.168.0.8:8006", "https://root:secret@192.168.0.8:8006", "spec.proxmox[0].endpoints[0]", "under token"},
		{"no trust", "tls:\n        ca:\n          file: homelab-ca.pem", "tls: {}", "spec.proxmox[0].tls", "pve-root-ca.pem"},
		{"two secrets", "secret: {namespace: aether-system, name: proxmox-homelab, key: token}", "secret: {namespace: aether-system, name: x}\n        file: token", "spec.proxmox[0].token", "exactly one"},
		{"bad version", "talos: v1.12.6", "talos: 1.12.6", "spec.versions.talos", "leading v"},
		{"unknown default", "machineClass: small", "machineClass: smal", "spec.defaults.machineClass", `did you mean "small"?`},
		{"unknown network", "tenant: tenant,", "tenant: mgmt,", "spec.defaults.networks.tenant", "kind tenant"},
		{"mirror path", `proxy-ghcr.io", overridePath: true`, `proxy-ghcr.io"`, "spec.mirrors[0].endpoints[0].overridePath", "Harbor"},
		{"mirror without scheme", "https://192.168.0.5/v2/proxy-ghcr.io", "192.168.0.5/v2/proxy-ghcr.io", "spec.mirrors[0].endpoints[0].url", "scheme"},
		{"mirror twice", "host: quay.io", "host: ghcr.io", "spec.mirrors[2].host", "used once"},
		{"chart twice", "repository: https://helm.cilium.io", "repository: https://helm.cilium.io\n      path: chart", "spec.charts.cilium", "path and repository"},
		{"chart version", "version: 1.20.2", "version: ''", "spec.charts.cilium.version", "1.20.2"},
		{"no time server", "ntp: [192.168.0.1]\n    - name: storage", "ntp: []\n    - name: storage", "spec.networks[1].ntp", "kubelet"},
		{"same port", "192.168.0.2:18001", "192.168.0.2:18000", "spec.proxy.enrolment", "another port"},
		{"loopback", "192.168.0.2:18000", "127.0.0.1:18000", "spec.proxy.xds", "can reach"},
		{"memory too small", "memoryMiB: 2048, diskGiB: 20", "memoryMiB: 512, diskGiB: 20", "spec.machineClasses[0].memoryMiB", "1 GiB"},
		{"class twice", "name: medium", "name: small", "spec.machineClasses[1].name", "used once"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse([]byte(edit(t, example(t), test.old, test.new)))
			var problems Problems
			if !errors.As(err, &problems) {
				t.Fatalf("got %v, want problems", err)
			}
			for _, p := range problems {
				if p.Field == test.field && strings.Contains(p.Error(), test.text) {
					return
				}
			}
			t.Errorf("want %s with %q, got:\n%v", test.field, test.text, err)
		})
	}
}

func TestParseReportsAllProblems(t *testing.T) {
	text := edit(t, example(t), "worker: 901", "worker: 9")
	text = edit(t, text, "talos: v1.12.6", "talos: latest")
	_, err := Parse([]byte(text))
	var problems Problems
	if !errors.As(err, &problems) || len(problems) != 2 {
		t.Fatalf("got %v, want both problems", err)
	}
	if !strings.HasPrefix(err.Error(), "site file: 2 problems\n") {
		t.Errorf("got %q", err)
	}
	var one Problem
	if !errors.As(err, &one) || one.Field != "spec.proxmox[0].hosts[0].templates.worker" {
		t.Errorf("the first problem: got %+v", one)
	}
}

func TestParseRefusesDocuments(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"empty", "", "start from examples/site.yaml"},
		{"only comments", "# nothing\n", "start from"},
		{"text", "hello", "a mapping"},
		{"not YAML", "a: [", "not YAML"},
		{"field twice", "kind: Site\nkind: Site\n", "not YAML"},
		{"two documents", "kind: Site\n---\nkind: Site\n", "more than one document"},
		{"too long", strings.Repeat("#", mostBytes+1), "at most"},
		{"nothing in it", "{}", "spec.proxmox: found nothing"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := Parse([]byte(test.text)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q in it", err, test.want)
			}
		})
	}
}

func TestParseTakesDocumentStart(t *testing.T) {
	if _, err := Parse([]byte("# site\n---\n" + example(t))); err != nil {
		t.Error(err)
	}
}

func TestLoadReadsFiles(t *testing.T) {
	folder := t.TempDir()
	ca := certificate(t)
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("site.yaml", example(t))
	write("homelab-ca.pem", ca)
	write("homelab-known-hosts", "pv1-1 ssh-ed25519 AAAA\npv1-2 ssh-ed25519 BBBB\n")

	_, err := Load(filepath.Join(folder, "site.yaml"))
	var problems Problems
	if !errors.As(err, &problems) || len(problems) != 1 || problems[0].Field != "spec.trustedRoots[0].file" {
		t.Fatalf("a missing file: got %v", err)
	}
	write("harbor-ca.pem", "no certificate")
	if _, err = Load(filepath.Join(folder, "site.yaml")); err == nil || !strings.Contains(err.Error(), "no PEM block") {
		t.Fatalf("a file without certificates: got %v", err)
	}
	write("harbor-ca.pem", ca)
	s, err := Load(filepath.Join(folder, "site.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	cluster := s.Spec.Proxmox[0]
	if cluster.TLS.CA.PEM != ca || len(cluster.SSH.KnownHosts) != 2 {
		t.Errorf("files were not read: %+v %+v", cluster.TLS.CA, cluster.SSH)
	}
	if err := s.Validate(); err != nil {
		t.Errorf("a loaded site must be valid again: %v", err)
	}
}

func TestLoadRefusesKeysAmongCertificates(t *testing.T) {
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte{1}}))
	var r report
	r.checkPEM("ca", certificate(t)+key)
	if len(r.problems) != 1 || !strings.Contains(r.problems[0].Error(), "leave keys out") {
		t.Errorf("got %v", r.problems)
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "none.yaml"), t.TempDir()} {
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "kind Site") {
			t.Errorf("%s: got %v", path, err)
		}
	}
}

func certificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example(f)))
	for _, seed := range []string{
		"", "{}", "kind: Site", "spec: {networks: [null]}", "spec: {proxmox: {}}", "a: &a [*a]",
		"spec: {proxmox: [{hosts: [{}]}]}", "spec: {networks: [{cidr: 0.0.0.0/0, ranges: {workers: [{}]}}]}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse(data)
		if (s == nil) == (err == nil) {
			t.Fatalf("got %v and %v: want exactly one of site and error", s, err)
		}
		var problems Problems
		if errors.As(err, &problems) {
			for _, p := range problems {
				if p.Field == "" || p.Found == "" || p.Allowed == "" {
					t.Fatalf("a problem without field, finding or rule: %+v", p)
				}
			}
		}
		if s != nil {
			if err := s.Validate(); err != nil {
				t.Fatalf("an accepted site is refused by Validate: %v", err)
			}
		}
	})
}
