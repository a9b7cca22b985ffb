package envoyvm_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	control "aether.internal/aether/internal/envoy"
	"aether.internal/aether/internal/proxyagent"
	"aether.internal/aether/internal/proxyagent/seed"
	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/envoyvm"
	"aether.internal/aether/lab/hypervisor"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/network"
)

const (
	xdsAddress       = "192.168.0.2:18000"
	enrolmentAddress = "192.168.0.2:18001"
	tenantMAC        = "bc:24:11:0a:01:0a"
)

// world is the lab's network with the proxies' server on the platform, an API
// server on the management network and a worker on the tenant's.
type world struct {
	fabric *network.Fabric
	hyper  *hypervisor.Hypervisor
	store  *control.Store
	ca     *control.CA
	source *control.MemorySource
	worker *network.Namespace
	dir    string
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// buildAgent makes the real program; it is built once per test run.
func buildAgent(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "agent")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "aether.internal/aether/deploy/images/envoy/agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build agent: %v\n%s", err, output)
	}
	return program
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{dir: t.TempDir()}
	var err error
	w.fabric, err = network.NewFabric(network.DefaultTopology())
	check(t, err)
	t.Cleanup(func() { check(t, w.fabric.Close()) })
	w.worker, err = w.fabric.AddSubnetMember("tenant", "worker", netip.MustParseAddr("10.1.1.50"))
	check(t, err)
	w.startServer(t)
	w.startHypervisor(t)
	return w
}

func (w *world) startServer(t *testing.T) {
	t.Helper()
	client := fake.NewClientBuilder().Build()
	w.store = control.NewStore(client, "aether-system", time.Now)
	w.source = control.NewMemorySource()
	var err error
	w.ca, err = control.EnsureCA(t.Context(), client, "aether-system", time.Now)
	check(t, err)
	xds, err := w.fabric.Platform().Listen("tcp", xdsAddress)
	check(t, err)
	enrolment, err := w.fabric.Platform().Listen("tcp", enrolmentAddress)
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- control.Serve(ctx, control.Config{
			Client: client, Namespace: "aether-system", Source: w.source, XDS: xds, Enrolment: enrolment, Log: slog.New(slog.DiscardHandler),
		})
	}()
	t.Cleanup(func() { cancel(); check(t, <-done) })
}

func (w *world) startHypervisor(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	check(t, err)
	clock, err := latency.NewClock(100)
	check(t, err)
	log := slog.New(slog.DiscardHandler)
	system, err := envoyvm.New(envoyvm.Config{
		Agent: buildAgent(t), Envoy: self, Containers: container.New(self, log), Clock: clock, Log: log,
	})
	check(t, err)
	w.hyper = hypervisor.New(w.fabric, map[string]hypervisor.System{envoyvm.OS: system}, log, w.dir)
	t.Cleanup(func() {
		w.hyper.Close()
		if t.Failed() {
			w.printConsoles(t)
		}
	})
}

func (w *world) printConsoles(t *testing.T) {
	files, _ := filepath.Glob(filepath.Join(w.dir, "consoles", "*"))
	for _, name := range files {
		data, _ := os.ReadFile(name)
		t.Logf("%s:\n%s", filepath.Base(name), data)
	}
}

func (w *world) console(t *testing.T, vmid int) string {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(w.dir, "consoles", fmt.Sprintf("*-%d-*", vmid)))
	var all bytes.Buffer
	for _, name := range files {
		data, err := os.ReadFile(name)
		check(t, err)
		all.Write(data)
	}
	return all.String()
}

// api starts an API server on the management network: it greets and echoes.
func (w *world) api(t *testing.T, address string) netip.AddrPort {
	t.Helper()
	at := netip.MustParseAddrPort(address)
	member, err := w.fabric.AddSubnetMember("mgmt", "api", at.Addr())
	check(t, err)
	l, err := member.Listen("tcp", address)
	check(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintln(c, "hello from "+address)
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return at
}

// proxyVM is hardware with the medium that the product makes.
func (w *world) proxyVM(t *testing.T, tenant control.Tenant, vmid int, down bool) machine.Hardware {
	t.Helper()
	token, err := w.store.Issue(t.Context(), tenant.ID())
	check(t, err)
	mgmtMAC := net.HardwareAddr{0xbc, 0x24, 0x11, 0, 0, byte(vmid)}
	mac, err := net.ParseMAC(tenantMAC)
	check(t, err)
	s := seed.Seed{
		InstanceID: fmt.Sprintf("instance-%d", vmid), Hostname: fmt.Sprintf("proxy-%d", vmid),
		Management: seed.NIC{
			MAC: mgmtMAC, Gateway: netip.MustParseAddr("192.168.0.1"),
			Address: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, 0, byte(vmid)}), 24),
		},
		Tenant: seed.NIC{MAC: mac, Address: netip.PrefixFrom(tenant.Address, 24)},
		Agent: proxyagent.Config{
			Tenant: tenant.Name, Generation: tenant.Generation, XDS: xdsAddress, Enrolment: enrolmentAddress, CA: string(w.ca.PEM()),
		},
		Token: seed.Token(token),
	}
	image, err := s.ISO()
	check(t, err)
	return machine.Hardware{
		Host: "pv1-1", VMID: vmid, UUID: fmt.Sprintf("0f0e0d0c-0b0a-4908-8706-%012d", vmid), AgentDevice: true,
		NICs: []machine.NIC{
			{Index: 0, MAC: mgmtMAC, Bridge: "vmbr0"},
			{Index: 1, MAC: mac, Bridge: "vmbr1", LinkDown: down},
		},
		Disks: []*machine.Disk{{Slot: "scsi0", Content: machine.NewContent(machine.Image{OS: envoyvm.OS, Version: "1", Agent: true})}},
		Media: []machine.Medium{readISO(t, image)},
	}
}

// readISO is the CD-ROM drive.
func readISO(t *testing.T, image []byte) machine.Medium {
	t.Helper()
	name := filepath.Join(t.TempDir(), "seed.iso")
	check(t, os.WriteFile(name, image, 0o600))
	storage, err := file.OpenFromPath(name, true)
	check(t, err)
	defer storage.Close()
	volume, err := iso9660.Read(storage, int64(len(image)), 0, 2048)
	check(t, err)
	medium := machine.Medium{Slot: "ide2", Label: strings.TrimRight(volume.Label(), "\x00 "), Files: map[string][]byte{}}
	entries, err := volume.ReadDir(".")
	check(t, err)
	for _, entry := range entries {
		data, err := volume.ReadFile(entry.Name())
		check(t, err)
		medium.Files[entry.Name()] = data
	}
	return medium
}

func (w *world) powerOn(t *testing.T, hardware machine.Hardware) machine.Guest {
	t.Helper()
	guest, err := w.hyper.PowerOn(hardware)
	check(t, err)
	return guest
}

func eventually(t *testing.T, what string, test func() (bool, any)) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		ok, seen := test()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: still %v", what, seen)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (w *world) waitApplied(t *testing.T, tenant control.Tenant) control.Status {
	t.Helper()
	var last control.Status
	eventually(t, "configuration applied", func() (bool, any) {
		status, err := w.store.ReadStatus(t.Context(), tenant.ID())
		last = status
		return err == nil && status.Applied && status.Connected, fmt.Sprintf("%+v, %v", status, err)
	})
	return last
}

// greet asks through the proxy as a worker does.
func (w *world) greet(timeout time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := w.worker.DialContext(ctx, "tcp", "10.1.1.10:6443")
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(timeout))
	line := make([]byte, 64)
	n, err := c.Read(line)
	return strings.TrimSpace(string(line[:n])), err
}

func (w *world) waitGreeting(t *testing.T, want string) {
	t.Helper()
	eventually(t, "greeting", func() (bool, any) {
		got, err := w.greet(200 * time.Millisecond)
		return got == want, fmt.Sprintf("%q, %v", got, err)
	})
}

// background runs f until the returned function is called.
func background(f func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { f(ctx) })
	return func() { cancel(); done.Wait() }
}
