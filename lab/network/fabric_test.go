package network_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/network"
)

// reach bounds a connection that shall succeed, cut one that shall not: the
// kernel repeats a lost SYN after one second.
const (
	reach = 5 * time.Second
	cut   = 300 * time.Millisecond
)

func newFabric(t *testing.T, change func(*network.Topology)) *network.Fabric {
	t.Helper()
	topology := network.DefaultTopology()
	if change != nil {
		change(&topology)
	}
	f, err := network.NewFabric(topology)
	if err != nil {
		t.Fatalf("NewFabric: %v", err)
	}
	t.Cleanup(func() { check(t, f.Close()) })
	return f
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// card describes a machine's only network card.
type card struct {
	host, bridge string
	vlan, vmid   int
	ip, gateway  string
}

type testMachine struct {
	ns   *network.Namespace
	port *network.Port
	ip   netip.Addr
}

func attach(t *testing.T, f *network.Fabric, c card) testMachine {
	t.Helper()
	host, ok := f.Host(c.host)
	if !ok {
		t.Fatalf("no host %s", c.host)
	}
	ns, err := network.NewNamespace(fmt.Sprintf("vm%d", c.vmid))
	check(t, err)
	t.Cleanup(func() { check(t, ns.Close()) })
	nic := machine.NIC{MAC: testMAC(c.vmid), Bridge: c.bridge, VLAN: c.vlan}
	port, err := host.Attach(nic, c.vmid, ns, "eth0")
	check(t, err)
	t.Cleanup(func() { check(t, port.Detach()) })
	prefix := netip.MustParsePrefix(c.ip)
	check(t, ns.AddAddress("eth0", prefix))
	if c.gateway != "" {
		check(t, ns.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr(c.gateway)))
	}
	return testMachine{ns, port, prefix.Addr()}
}

func testMAC(n int) net.HardwareAddr {
	return net.HardwareAddr{0xbc, 0x24, 0x11, 0, byte(n >> 8), byte(n)}
}

const testPort = 7000

// serve greets every caller on the machine's port with its name.
func serve(t *testing.T, n *network.Namespace) {
	t.Helper()
	l, err := n.Listen("tcp", fmt.Sprintf(":%d", testPort))
	check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, n.Name())
			_ = conn.Close()
		}
	}()
}

// greeting connects and returns what the other side says.
func greeting(t *testing.T, from *network.Namespace, to netip.Addr, within time.Duration) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	conn, err := from.DialContext(ctx, "tcp", netip.AddrPortFrom(to, testPort).String())
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	check(t, conn.SetDeadline(time.Now().Add(within)))
	said, err := io.ReadAll(conn)
	return string(said), err
}

func wantGreeting(t *testing.T, from *network.Namespace, to netip.Addr, want string) {
	t.Helper()
	got, err := greeting(t, from, to, reach)
	if err != nil || got != want {
		t.Fatalf("from %s to %s: got %q, %v; want %q", from.Name(), to, got, err, want)
	}
}

func wantCut(t *testing.T, from *network.Namespace, to netip.Addr) {
	t.Helper()
	if got, err := greeting(t, from, to, cut); err == nil {
		t.Fatalf("from %s to %s: got %q, want no connection", from.Name(), to, got)
	}
}

func TestReachability(t *testing.T) {
	f := newFabric(t, func(topology *network.Topology) {
		// As in the origin: one host whose bridge is not VLAN aware.
		topology.Hosts[1].Bridges[0].VLANAware = false
	})
	tenantA := attach(t, f, card{"pv1-1", "vmbr1", 0, 1001, "10.1.1.51/24", "10.1.1.1"})
	tenantB := attach(t, f, card{"pv1-2", "vmbr1", 0, 1002, "10.1.1.52/24", "10.1.1.1"})
	mgmt := attach(t, f, card{"pv1-2", "vmbr0", 0, 1003, "192.168.0.200/24", "192.168.0.1"})
	storageA := attach(t, f, card{"pv1-1", "vmbr2", 0, 1004, "10.1.2.4/24", ""})
	storageB := attach(t, f, card{"pv1-2", "vmbr2", 0, 1005, "10.1.2.5/24", ""})
	vlanA := attach(t, f, card{"pv1-1", "vmbr0", 4, 1006, "192.168.4.6/24", "192.168.4.1"})
	vlanB := attach(t, f, card{"pv1-2", "vmbr0", 4, 1007, "192.168.4.7/24", "192.168.4.1"})
	vlanB2 := attach(t, f, card{"pv1-2", "vmbr0", 4, 1008, "192.168.4.8/24", "192.168.4.1"})
	harbor, err := f.AddSubnetMember("mgmt", "harbor", netip.MustParseAddr("192.168.0.5"))
	check(t, err)
	for _, n := range []*network.Namespace{tenantA.ns, tenantB.ns, mgmt.ns, storageA.ns, storageB.ns, vlanA.ns, vlanB.ns, vlanB2.ns, harbor} {
		serve(t, n)
	}
	pv11, _ := f.Host("pv1-1")
	for _, test := range []struct {
		name string
		from *network.Namespace
		to   string
		want string // "" is no connection
	}{
		{"same segment, other host", tenantA.ns, "10.1.1.52", "vm1002"},
		{"and back", tenantB.ns, "10.1.1.51", "vm1001"},
		{"routed between segments", tenantA.ns, "192.168.0.200", "vm1003"},
		{"platform to tenant", f.Platform(), "10.1.1.52", "vm1002"},
		{"platform to management", f.Platform(), "192.168.0.200", "vm1003"},
		{"tenant to a lab service", tenantA.ns, "192.168.0.5", "harbor"},
		{"host to its own segment", pv11.Namespace(), "192.168.0.5", "harbor"},
		{"storage between hosts", storageA.ns, "10.1.2.5", "vm1005"},
		{"storage is not routed", tenantA.ns, "10.1.2.5", ""},
		{"storage has no way out", storageA.ns, "10.1.1.51", ""},
		{"tag on a VLAN-aware bridge", f.Platform(), "192.168.4.6", "vm1006"},
		{"tag on a bridge without VLANs: no uplink", f.Platform(), "192.168.4.7", ""},
		{"nor to the other host", vlanA.ns, "192.168.4.7", ""},
		{"but to its neighbour on the host", vlanB.ns, "192.168.4.8", "vm1008"},
		{"the world's loopback is not the machine's", f.Platform(), "127.0.0.1", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			to := netip.MustParseAddr(test.to)
			if test.want == "" {
				wantCut(t, test.from, to)
				return
			}
			wantGreeting(t, test.from, to, test.want)
		})
	}
}

func TestLinkDown(t *testing.T) {
	f := newFabric(t, nil)
	a := attach(t, f, card{"pv1-1", "vmbr1", 0, 1001, "10.1.1.51/24", ""})
	b := attach(t, f, card{"pv1-2", "vmbr1", 0, 1002, "10.1.1.52/24", ""})
	serve(t, b.ns)
	wantGreeting(t, a.ns, b.ip, "vm1002")

	check(t, b.port.SetDown(true))
	wantCarrier(t, b.ns, false)
	wantCut(t, a.ns, b.ip)

	check(t, b.port.SetDown(false))
	wantCarrier(t, b.ns, true)
	wantGreeting(t, a.ns, b.ip, "vm1002")
}

// TestHostDown: its machines are cut off; the other host's are not.
func TestHostDown(t *testing.T) {
	f := newFabric(t, nil)
	a := attach(t, f, card{"pv1-1", "vmbr1", 0, 1001, "10.1.1.51/24", "10.1.1.1"})
	b := attach(t, f, card{"pv1-2", "vmbr1", 0, 1002, "10.1.1.52/24", "10.1.1.1"})
	serve(t, a.ns)
	serve(t, b.ns)
	host, _ := f.Host("pv1-1")
	check(t, host.SetDown(true))
	wantCut(t, f.Platform(), a.ip)
	wantGreeting(t, f.Platform(), b.ip, "vm1002")

	check(t, host.SetDown(false))
	wantGreeting(t, f.Platform(), a.ip, "vm1001")
	// The host itself is back, too.
	serve(t, f.Platform())
	wantGreeting(t, host.Namespace(), netip.MustParseAddr("192.168.0.2"), "platform")
	wantGreeting(t, host.Namespace(), b.ip, "vm1002")
}

func wantCarrier(t *testing.T, n *network.Namespace, want bool) {
	t.Helper()
	// The kernel reports carrier changes a moment after they were made.
	var got bool
	for range 100 {
		var err error
		got, err = n.LinkUp("eth0")
		check(t, err)
		if got == want {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("carrier of eth0 in %s: got %t, want %t", n.Name(), got, want)
}

func TestNetworksCanBeMadeAgain(t *testing.T) {
	for range 3 {
		f, err := network.NewFabric(network.DefaultTopology())
		check(t, err)
		check(t, f.Close())
	}
}

func TestAttachRefuses(t *testing.T) {
	f := newFabric(t, nil)
	host, _ := f.Host("pv1-1")
	guest, err := network.NewNamespace("vm1")
	check(t, err)
	t.Cleanup(func() { check(t, guest.Close()) })
	_, err = host.Attach(machine.NIC{Index: 1, Bridge: "vmbr9", MAC: testMAC(1)}, 1001, guest, "eth0")
	if !errors.Is(err, network.ErrNoBridge) {
		t.Fatalf("got %v, want ErrNoBridge", err)
	}
}
