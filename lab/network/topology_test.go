package network_test

import (
	"net/netip"
	"strings"
	"testing"

	"aether.internal/aether/lab/network"
)

func TestTopologyRefuses(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*network.Topology)
		want   string
	}{
		{"segment name too long for the kernel", func(t *network.Topology) { t.Segments[0].Name = "management-lan" }, "allowed are 1 to 11"},
		{"segment twice", func(t *network.Topology) { t.Segments[1].Name = "mgmt" }, `"mgmt" is used twice`},
		{"no prefix", func(t *network.Topology) { t.Segments[0].Prefix = netip.Prefix{} }, "give an IPv4 subnet"},
		{"IPv6", func(t *network.Topology) { t.Segments[0].Prefix = netip.MustParsePrefix("fd00::/64") }, "give an IPv4 subnet"},
		{"gateway elsewhere", func(t *network.Topology) { t.Segments[0].Gateway = netip.MustParseAddr("10.0.0.1") }, "is not in 192.168.0.0/24"},
		{"host twice", func(t *network.Topology) { t.Hosts[1].Name = "pv1-1" }, "used twice"},
		{"bridge name too long", func(t *network.Topology) { t.Hosts[0].Bridges[0].Name = "vmbr00000" }, "longer than 8"},
		{"bridge to nowhere", func(t *network.Topology) { t.Hosts[0].Bridges[0].Segment = "dmz" }, `segment "dmz"`},
		{"tag out of range", func(t *network.Topology) { t.Hosts[0].Bridges[0].VLANs = map[int]string{4095: "vlan4"} }, "tags are 1 to 4094"},
		{"platform to nowhere", func(t *network.Topology) { t.Platform.Segment = "dmz" }, `segment "dmz"`},
		{"platform elsewhere", func(t *network.Topology) { t.Platform.Address = netip.MustParseAddr("10.0.0.1") }, "is not in 192.168.0.0/24"},
		{"platform without a link", func(t *network.Topology) { t.Platform.Link = "" }, "interface name"},
	} {
		t.Run(test.name, func(t *testing.T) {
			topology := network.DefaultTopology()
			test.change(&topology)
			err := topology.Validate()
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want it to contain %q", err, test.want)
			}
			if _, err := network.NewFabric(topology); err == nil {
				t.Error("NewFabric builds it all the same")
			}
		})
	}
	if err := network.DefaultTopology().Validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
}

func TestSubnetMemberRefuses(t *testing.T) {
	f := newFabric(t, nil)
	if _, err := f.AddSubnetMember("dmz", "harbor", netip.MustParseAddr("192.168.0.5")); err == nil {
		t.Error("unknown segment: got no error")
	}
	if _, err := f.AddSubnetMember("mgmt", "harbor", netip.MustParseAddr("10.0.0.5")); err == nil {
		t.Error("address outside: got no error")
	}
}
