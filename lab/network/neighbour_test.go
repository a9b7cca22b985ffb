package network_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"aether.internal/aether/lab/network"
)

// neighbour returns the entry of an address in a namespace's ARP cache.
func neighbour(t *testing.T, n *network.Namespace, ip netip.Addr) (network.Neighbour, bool) {
	t.Helper()
	entries, err := n.Neighbours()
	check(t, err)
	for _, e := range entries {
		if e.IP == ip {
			return e, true
		}
	}
	return network.Neighbour{}, false
}

func wantMAC(t *testing.T, n *network.Namespace, ip netip.Addr, want net.HardwareAddr) {
	t.Helper()
	var got network.Neighbour
	for range 100 { // an announcement takes a moment to cross the switches
		got, _ = neighbour(t, n, ip)
		if got.MAC.String() == want.String() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%s has %s at %q (%s), want %s", n.Name(), ip, got.MAC, got.State, want)
}

// TestStaleARP is what happened to the origin: a new machine comes up at an old
// machine's address, and those who knew the old one do not reach it.
func TestStaleARP(t *testing.T) {
	for _, test := range []struct {
		name string
		heal func(t *testing.T, host, successor *network.Namespace, ip netip.Addr)
	}{
		{"flush heals", func(t *testing.T, host, _ *network.Namespace, ip netip.Addr) {
			check(t, host.FlushNeighbour("vmbr1", ip))
			if e, found := neighbour(t, host, ip); found && len(e.MAC) > 0 {
				t.Fatalf("after the flush the cache has %v", e)
			}
		}},
		{"flush on all devices heals", func(t *testing.T, host, _ *network.Namespace, ip netip.Addr) {
			check(t, host.FlushNeighbour("", ip))
		}},
		{"gratuitous ARP heals", func(t *testing.T, host, successor *network.Namespace, ip netip.Addr) {
			check(t, successor.AnnounceARP("eth0", ip))
			wantMAC(t, host, ip, testMAC(1005))
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFabric(t, nil)
			pv11, _ := f.Host("pv1-1")
			host := pv11.Namespace()
			old := attach(t, f, card{"pv1-2", "vmbr1", 0, 1004, "10.1.1.10/24", "10.1.1.1"})
			serve(t, old.ns)
			wantGreeting(t, host, old.ip, "vm1004")
			wantMAC(t, host, old.ip, testMAC(1004))
			check(t, old.port.Detach())

			successor := attach(t, f, card{"pv1-2", "vmbr1", 0, 1005, "10.1.1.10/24", "10.1.1.1"})
			serve(t, successor.ns)
			wantCut(t, host, successor.ip)
			wantMAC(t, host, successor.ip, testMAC(1004))

			test.heal(t, host, successor.ns, successor.ip)
			wantGreeting(t, host, successor.ip, "vm1005")
			wantMAC(t, host, successor.ip, testMAC(1005))
		})
	}
}

// TestTakeOver is the proxy's rotation: same address and MAC on another host,
// the old link down, the new one up.
func TestTakeOver(t *testing.T) {
	f := newFabric(t, nil)
	client := attach(t, f, card{"pv1-1", "vmbr1", 0, 1001, "10.1.1.51/24", ""})
	oldVM := attach(t, f, card{"pv1-1", "vmbr1", 0, 1002, "10.1.1.10/24", ""})
	newVM := attach(t, f, card{"pv1-2", "vmbr1", 0, 1003, "10.1.1.11/24", ""})
	check(t, newVM.port.SetDown(true))
	check(t, newVM.ns.DelAddress("eth0", netip.MustParsePrefix("10.1.1.11/24")))
	check(t, newVM.ns.SetMAC("eth0", testMAC(1002)))
	check(t, newVM.ns.AddAddress("eth0", netip.MustParsePrefix("10.1.1.10/24")))
	serve(t, oldVM.ns)
	serve(t, newVM.ns)
	wantGreeting(t, client.ns, oldVM.ip, "vm1002")

	check(t, oldVM.port.SetDown(true))
	check(t, newVM.port.SetDown(false))
	wantCarrier(t, newVM.ns, true)
	// The switches still send the MAC's frames to the old place; this teaches
	// them the new one.
	check(t, newVM.ns.AnnounceARP("eth0", oldVM.ip))
	wantGreeting(t, client.ns, oldVM.ip, "vm1003")
}

func TestFlushOfUnknownAddress(t *testing.T) {
	f := newFabric(t, nil)
	check(t, f.Router().FlushNeighbour("", netip.MustParseAddr("10.1.1.77")))
	if err := f.Router().FlushNeighbour("vmbr7", netip.MustParseAddr("10.1.1.77")); err == nil {
		t.Fatal("a device that is not there: got no error")
	}
}

func TestIdempotence(t *testing.T) {
	n, err := network.NewNamespace("one")
	check(t, err)
	t.Cleanup(func() { check(t, n.Close()) })
	other, err := network.NewNamespace("other")
	check(t, err)
	t.Cleanup(func() { check(t, other.Close()) })
	check(t, network.Veth(n, "a", other, "b", network.VethOptions{MAC: testMAC(7), MTU: 1400}))
	address := netip.MustParsePrefix("10.9.9.9/24")
	route := netip.MustParsePrefix("0.0.0.0/0")
	for range 2 {
		check(t, other.AddAddress("b", address))
		check(t, other.AddRoute(route, netip.MustParseAddr("10.9.9.1")))
		check(t, other.AddLinkRoute(netip.MustParsePrefix("10.244.1.5/32"), "b"))
	}
	got, err := other.Addresses("b")
	check(t, err)
	if fmt.Sprint(got) != fmt.Sprint([]netip.Prefix{address}) {
		t.Fatalf("addresses: got %v, want %v", got, address)
	}
	for range 2 {
		check(t, other.DelRoute(netip.MustParsePrefix("10.244.1.5/32")))
		check(t, other.DelAddress("b", address))
	}
	for range 2 {
		check(t, other.DelLink("b"))
	}
	if _, err := n.LinkUp("a"); err == nil {
		t.Fatal("one end of a cable is gone and the other is still there")
	}
}
