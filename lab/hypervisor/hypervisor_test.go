package hypervisor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aether.internal/aether/lab/hypervisor"
	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/namespace"
	"aether.internal/aether/lab/network"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "linger" {
		time.Sleep(time.Hour)
	}
	os.Exit(namespace.RunTests(m))
}

const patience = 5 * time.Second

// recorder is a guest system that hands each boot to the test and does what the
// test says.
type recorder struct {
	boots chan *boot
}

type boot struct {
	hypervisor.Machine
	ctx context.Context
	end chan error // what Boot shall return
}

func newRecorder() *recorder { return &recorder{make(chan *boot, 10)} }

func (r *recorder) Boot(ctx context.Context, m hypervisor.Machine) error {
	b := &boot{m, ctx, make(chan error, 1)}
	r.boots <- b
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-b.end:
		return err
	}
}

func (r *recorder) next(t *testing.T) *boot {
	t.Helper()
	select {
	case b := <-r.boots:
		return b
	case <-time.After(patience):
		t.Fatal("the machine does not boot")
		return nil
	}
}

type site struct {
	fabric *network.Fabric
	hyper  *hypervisor.Hypervisor
	system *recorder
	dir    string
}

func newSite(t *testing.T) site {
	t.Helper()
	f, err := network.NewFabric(network.DefaultTopology())
	check(t, err)
	t.Cleanup(func() { check(t, f.Close()) })
	s := site{fabric: f, system: newRecorder(), dir: t.TempDir()}
	s.hyper = hypervisor.New(f, map[string]hypervisor.System{"talos": s.system}, slog.New(slog.DiscardHandler), s.dir)
	t.Cleanup(s.hyper.Close)
	return s
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s site) powerOn(t *testing.T, hw machine.Hardware) machine.Guest {
	t.Helper()
	g, err := s.hyper.PowerOn(hw)
	check(t, err)
	return g
}

func hardware(vmid int) machine.Hardware {
	return machine.Hardware{
		Host: "pv1-1", VMID: vmid, UUID: "0f0e0d0c-0b0a-4908-8706-050403020100", AgentDevice: true,
		NICs: []machine.NIC{
			{Index: 0, MAC: net.HardwareAddr{0xbc, 0x24, 0x11, 0, 0, byte(vmid)}, Bridge: "vmbr1"},
			{Index: 2, MAC: net.HardwareAddr{0xbc, 0x24, 0x11, 0, 1, byte(vmid)}, Bridge: "vmbr2", LinkDown: true},
		},
		Disks: []*machine.Disk{{Slot: "scsi0", Content: machine.NewContent(machine.Image{OS: "talos", Agent: true})}},
		Media: []machine.Medium{{Slot: "ide2", Label: "cidata"}},
	}
}

func waitOff(t *testing.T, g machine.Guest) {
	t.Helper()
	select {
	case <-g.Done():
	case <-time.After(patience):
		t.Fatal("the machine does not go off")
	}
}

func TestMachineSeesItsHardware(t *testing.T) {
	s := newSite(t)
	g := s.powerOn(t, hardware(101))
	b := s.system.next(t)
	for name, want := range map[string]string{"eth0": "bc:24:11:00:00:65", "eth1": "bc:24:11:00:01:65"} {
		if mac, err := b.Net.MAC(name); err != nil || mac.String() != want {
			t.Errorf("%s: got %s, %v; want %s", name, mac, err, want)
		}
	}
	wantCarrier(t, b.Net, "eth0", true)
	wantCarrier(t, b.Net, "eth1", false)
	check(t, g.SetLink(2, false))
	check(t, g.SetLink(0, true))
	wantCarrier(t, b.Net, "eth0", false)
	wantCarrier(t, b.Net, "eth1", true)
	if err := g.SetLink(1, true); err == nil {
		t.Error("a card that is not there: got no error")
	}
	if media := b.Media(); len(media) != 1 || media[0].Label != "cidata" {
		t.Errorf("media: got %v", media)
	}
	g.SetMedia(nil)
	if media := b.Media(); len(media) != 0 {
		t.Errorf("media after eject: got %v", media)
	}
}

func wantCarrier(t *testing.T, n *network.Namespace, link string, want bool) {
	t.Helper()
	for range 100 {
		got, err := n.LinkUp(link)
		check(t, err)
		if got == want {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("carrier of %s: want %t", link, want)
}

func TestReset(t *testing.T) {
	s := newSite(t)
	g := s.powerOn(t, hardware(101))
	first := s.system.next(t)
	check(t, first.Net.AddAddress("eth0", netip.MustParsePrefix("10.1.1.50/24")))
	check(t, first.Net.Sysctl("net/ipv4/ip_forward", "1"))
	first.SetAgent(machine.AgentReport{Hostname: "first"})
	pod, err := network.NewNamespace("pod")
	check(t, err)
	t.Cleanup(func() { check(t, pod.Close()) })
	check(t, network.Veth(first.Net, "lxc1", pod, "eth0", network.VethOptions{}))
	linger(t, first.Net)
	check(t, g.SetLink(0, true))
	g.Shutdown() // pressed, and forgotten by the reset

	g.Reset()
	second := s.system.next(t)
	if first.ctx.Err() == nil {
		t.Error("the first boot goes on")
	}
	if first.Net != second.Net {
		t.Error("the cards did not outlive the reset")
	}
	if got, err := second.Net.Addresses("eth0"); err != nil || len(got) != 0 {
		t.Errorf("addresses after the reset: got %v, %v", got, err)
	}
	if _, err := second.Net.LinkUp("lxc1"); !errors.Is(err, network.ErrNoLink) {
		t.Errorf("pod's link after the reset: got %v, want ErrNoLink", err)
	}
	if pids, err := second.Net.Processes(); err != nil || len(pids) != 0 {
		t.Errorf("processes after the reset: got %v, %v", pids, err)
	}
	if _, answers := g.Agent(); answers {
		t.Error("the agent answers although it was not started again")
	}
	select {
	case <-second.Power:
		t.Error("the button of before the reset is still pressed")
	default:
	}
	wantCarrier(t, second.Net, "eth0", false) // the cable is still pulled
	first.SetAgent(machine.AgentReport{Hostname: "ghost"})
	if _, answers := g.Agent(); answers {
		t.Error("an agent of the first boot answers")
	}
	second.Reboot()
	s.system.next(t)
}

// linger starts a process in the machine that does not end by itself.
func linger(t *testing.T, n *network.Namespace) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "linger")
	check(t, n.Start(cmd))
	go func() { _ = cmd.Wait() }()
	if pids, err := n.Processes(); err != nil || len(pids) != 1 {
		t.Fatalf("processes in the machine: got %v, %v", pids, err)
	}
}

func TestKill(t *testing.T) {
	s := newSite(t)
	g := s.powerOn(t, hardware(101))
	b := s.system.next(t)
	linger(t, b.Net)
	check(t, os.WriteFile(filepath.Join(b.Dir, "scratch"), nil, 0o600))
	host, _ := s.fabric.Host("pv1-1")

	g.Kill()
	g.Kill() // of a machine that is off
	waitOff(t, g)
	if b.ctx.Err() == nil {
		t.Error("the boot goes on")
	}
	if _, err := host.Namespace().LinkUp("tap101i0"); !errors.Is(err, network.ErrNoLink) {
		t.Errorf("tap on the host: got %v, want ErrNoLink", err)
	}
	if _, err := os.Stat(b.Dir); !os.IsNotExist(err) {
		t.Errorf("scratch directory: got %v, want it gone", err)
	}
	if err := g.SetLink(0, false); err == nil {
		t.Error("SetLink of a machine that is off: got no error")
	}
	s.powerOn(t, hardware(101)) // the place is free again
	s.system.next(t)
}

// TestKillIsSilent: a machine without power says no goodbye to its peers.
func TestKillIsSilent(t *testing.T) {
	s := newSite(t)
	g := s.powerOn(t, hardware(101))
	b := s.system.next(t)
	check(t, b.Net.AddAddress("eth0", netip.MustParsePrefix("10.1.1.50/24")))
	check(t, b.Net.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("10.1.1.1")))
	l, err := b.Net.Listen("tcp", "10.1.1.50:7000")
	check(t, err)
	served := make(chan net.Conn, 1)
	go func() {
		if conn, err := l.Accept(); err == nil {
			served <- conn
		}
	}()
	peer, err := s.fabric.Platform().DialContext(t.Context(), "tcp", "10.1.1.50:7000")
	check(t, err)
	t.Cleanup(func() { _ = peer.Close() })
	conn := <-served
	g.Kill()
	_ = conn.Close()
	_ = l.Close()
	check(t, peer.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	if _, err := peer.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("peer: got %v, want silence", err)
	}
}

func TestShutdown(t *testing.T) {
	s := newSite(t)
	g := s.powerOn(t, hardware(101))
	b := s.system.next(t)
	g.Shutdown()
	g.Shutdown()
	select {
	case <-b.Power:
	case <-time.After(patience):
		t.Fatal("the guest does not feel the button")
	}
	b.end <- nil
	waitOff(t, g)
}

func TestCrashHangs(t *testing.T) {
	s := newSite(t)
	g := s.powerOn(t, hardware(101))
	b := s.system.next(t)
	b.SetAgent(machine.AgentReport{})
	b.end <- errors.New("kernel panic")
	for range 100 {
		if _, answers := g.Agent(); !answers {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if _, answers := g.Agent(); answers {
		t.Error("the agent of a crashed guest answers")
	}
	select {
	case <-g.Done():
		t.Fatal("a crashed machine went off")
	default:
	}
	g.Reset()
	s.system.next(t)
	g.Kill()
	consoles, err := filepath.Glob(filepath.Join(s.dir, "consoles", "pv1-1-101-*.log"))
	check(t, err)
	if len(consoles) != 1 {
		t.Fatalf("consoles: got %v, want one", consoles)
	}
	if said, err := os.ReadFile(consoles[0]); err != nil || !strings.Contains(string(said), "kernel panic") {
		t.Errorf("console: got %q, %v", said, err)
	}
}

func TestAgent(t *testing.T) {
	for _, test := range []struct {
		name              string
		device, installed bool
		want              bool
	}{
		{"device and agent", true, true, true},
		{"no device", false, true, false},
		{"not installed", true, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSite(t)
			hw := hardware(101)
			hw.AgentDevice = test.device
			hw.Disks[0].Content = machine.NewContent(machine.Image{OS: "talos", Agent: test.installed})
			g := s.powerOn(t, hw)
			b := s.system.next(t)
			if _, answers := g.Agent(); answers {
				t.Error("an agent answers before it was started")
			}
			b.SetAgent(machine.AgentReport{Hostname: "node"})
			report, answers := g.Agent()
			if answers != test.want || (test.want && report.Hostname != "node") {
				t.Errorf("got %v, %t; want %t", report, answers, test.want)
			}
		})
	}
}

func TestBlankDisk(t *testing.T) {
	for name, disks := range map[string][]*machine.Disk{
		"no disk":       nil,
		"empty disk":    {{Slot: "scsi0"}},
		"blank image":   {{Slot: "scsi0", Content: machine.NewContent(machine.Image{OS: "blank"})}},
		"unknown image": {{Slot: "scsi0", Content: machine.NewContent(machine.Image{OS: "beos"})}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			hw := hardware(101)
			hw.Disks = disks
			g := s.powerOn(t, hw)
			g.Shutdown() // nobody is there to hear it
			select {
			case <-g.Done():
				t.Fatal("the machine went off by itself")
			case <-time.After(50 * time.Millisecond):
			}
			g.Kill()
			waitOff(t, g)
		})
	}
}

func TestPowerOnRefuses(t *testing.T) {
	s := newSite(t)
	s.powerOn(t, hardware(101))
	s.system.next(t)
	if _, err := s.hyper.PowerOn(hardware(101)); !errors.Is(err, hypervisor.ErrRunning) {
		t.Errorf("twice: got %v, want ErrRunning", err)
	}
	hw := hardware(102)
	hw.NICs[1].Bridge = "vmbr9"
	if _, err := s.hyper.PowerOn(hw); !errors.Is(err, network.ErrNoBridge) {
		t.Errorf("unknown bridge: got %v, want ErrNoBridge", err)
	}
	host, _ := s.fabric.Host("pv1-1")
	if _, err := host.Namespace().LinkUp("tap102i0"); !errors.Is(err, network.ErrNoLink) {
		t.Errorf("the refused machine's first card: got %v, want ErrNoLink", err)
	}
	hw = hardware(103)
	hw.Host = "pv1-9"
	if _, err := s.hyper.PowerOn(hw); err == nil {
		t.Error("unknown host: got no error")
	}
}

// TestManyMachines: ten at once on two hosts reach one another.
func TestManyMachines(t *testing.T) {
	s := newSite(t)
	for i := range 10 {
		hw := hardware(110 + i)
		hw.Host = []string{"pv1-1", "pv1-2"}[i%2]
		s.powerOn(t, hw)
	}
	var machines []*boot
	for range 10 {
		b := s.system.next(t)
		machines = append(machines, b)
		ip := netip.AddrFrom4([4]byte{10, 1, 1, byte(b.Hardware.VMID)})
		check(t, b.Net.AddAddress("eth0", netip.PrefixFrom(ip, 24)))
		l, err := b.Net.Listen("tcp", netip.AddrPortFrom(ip, 7000).String())
		check(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go greet(l, fmt.Sprint(b.Hardware.VMID))
	}
	for i, from := range machines {
		to := machines[(i+1)%len(machines)].Hardware.VMID
		conn, err := from.Net.DialContext(t.Context(), "tcp", fmt.Sprintf("10.1.1.%d:7000", to))
		check(t, err)
		said, err := io.ReadAll(conn)
		_ = conn.Close()
		if err != nil || string(said) != fmt.Sprint(to) {
			t.Errorf("from %d to %d: got %q, %v", from.Hardware.VMID, to, said, err)
		}
	}
}

func greet(l net.Listener, name string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, name)
		_ = conn.Close()
	}
}
