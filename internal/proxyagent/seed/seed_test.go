package seed_test

import (
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"github.com/google/go-cmp/cmp"

	"aether.internal/aether/internal/envoy"
	"aether.internal/aether/internal/proxyagent"
	"aether.internal/aether/internal/proxyagent/seed"
)

var update = flag.Bool("update", false, "write the golden files anew")

const token = "one-time-token-for-tests"

func example(t *testing.T) seed.Seed {
	t.Helper()
	ca, err := os.ReadFile("testdata/ca.pem")
	if err != nil {
		t.Fatal(err)
	}
	return seed.Seed{
		InstanceID: "6f1d7f0e-2c52-4e0d-9f1c-0d2f8b1f6a11",
		Hostname:   "demo-proxy-1",
		Management: seed.NIC{
			MAC: net.HardwareAddr{0xbc, 0x24, 0x11, 0, 0, 1}, Address: netip.MustParsePrefix("192.168.0.200/24"),
			Gateway: netip.MustParseAddr("192.168.0.1"),
		},
		Tenant: seed.NIC{MAC: net.HardwareAddr{0xbc, 0x24, 0x11, 0, 0, 2}, Address: netip.MustParsePrefix("10.1.1.10/24"), MTU: 1450},
		DNS:    []netip.Addr{netip.MustParseAddr("192.168.0.1")},
		Agent: proxyagent.Config{
			Tenant: "demo", Generation: 1, XDS: "192.168.0.2:18000", Enrolment: "192.168.0.2:18001", CA: string(ca),
		},
		Token: token,
	}
}

func TestFiles(t *testing.T) {
	if *update {
		ca, _, err := envoy.NewCA(time.Now)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("testdata/ca.pem", ca.PEM(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := example(t).Files()
	if err != nil {
		t.Fatal(err)
	}
	golden := map[string]bool{}
	for name, got := range files {
		path := filepath.Join("testdata", name)
		golden[path] = true
		if *update {
			if err := os.WriteFile(path, got, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s differs; if that is meant, run with -update:\n%s", name, diff)
		}
	}
	if len(golden) != 3 {
		t.Errorf("%d files, want meta-data, network-config and user-data", len(golden))
	}
}

func TestISORoundTrip(t *testing.T) {
	s := example(t)
	want, err := s.Files()
	if err != nil {
		t.Fatal(err)
	}
	image, err := s.ISO()
	if err != nil {
		t.Fatal(err)
	}
	if len(image) > 1<<20 {
		t.Errorf("the image has %d bytes", len(image))
	}
	path := filepath.Join(t.TempDir(), "seed.iso")
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	storage, err := file.OpenFromPath(path, true)
	if err != nil {
		t.Fatal(err)
	}
	defer storage.Close()
	volume, err := iso9660.Read(storage, int64(len(image)), 0, 2048)
	if err != nil {
		t.Fatal(err)
	}
	if label := strings.TrimRight(volume.Label(), "\x00 "); label != seed.Label {
		t.Errorf("label = %q, want %q", label, seed.Label)
	}
	got := map[string][]byte{}
	entries, err := volume.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if got[entry.Name()], err = volume.ReadFile(entry.Name()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read back (-written +read):\n%s", diff)
	}
}

func TestValidate(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(*seed.Seed)
		want  string
	}{
		"no instance":        {func(s *seed.Seed) { s.InstanceID = "" }, "instanceID"},
		"host name":          {func(s *seed.Seed) { s.Hostname = "a.b" }, "hostname"},
		"no token":           {func(s *seed.Seed) { s.Token = "" }, "token"},
		"same cards":         {func(s *seed.Seed) { s.Tenant.MAC = s.Management.MAC }, "tenant.mac"},
		"no MAC":             {func(s *seed.Seed) { s.Management.MAC = nil }, "management.mac"},
		"same networks":      {func(s *seed.Seed) { s.Tenant.Address = netip.MustParsePrefix("192.168.0.201/24") }, "overlaps"},
		"two default routes": {func(s *seed.Seed) { s.Tenant.Gateway = netip.MustParseAddr("10.1.1.1") }, "tenant.gateway"},
		"far gateway":        {func(s *seed.Seed) { s.Management.Gateway = netip.MustParseAddr("10.9.9.1") }, "management.gateway"},
		"MTU":                {func(s *seed.Seed) { s.Tenant.MTU = 100 }, "tenant.mtu"},
		"server by name":     {func(s *seed.Seed) { s.Agent.XDS = "xds.example:18000" }, "xds"},
		"no authority":       {func(s *seed.Seed) { s.Agent.CA = "" }, "ca"},
		"tenant":             {func(s *seed.Seed) { s.Agent.Tenant = "Demo" }, "name"},
	} {
		t.Run(name, func(t *testing.T) {
			s := example(t)
			test.spoil(&s)
			_, err := s.Files()
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Files() = %v, want an error that names %q", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), token) {
				t.Error("the error has the token")
			}
		})
	}
}

func TestTokenIsHidden(t *testing.T) {
	if text := fmt.Sprintf("%v %+v %#v %s", example(t), example(t), example(t).Token, example(t).Token); strings.Contains(text, token) {
		t.Error("the token is printed")
	}
}
