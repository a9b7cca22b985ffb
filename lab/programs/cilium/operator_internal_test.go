package cilium

import (
	"net/netip"
	"testing"
)

func TestNextRange(t *testing.T) {
	prefix := netip.MustParsePrefix
	cases := []struct {
		name  string
		pools []string
		bits  int
		used  []netip.Prefix
		want  string
	}{
		{name: "first", pools: []string{"10.244.0.0/16"}, bits: 24, want: "10.244.0.0/24"},
		{name: "next", pools: []string{"10.244.0.0/16"}, bits: 24, used: []netip.Prefix{prefix("10.244.0.0/24")}, want: "10.244.1.0/24"},
		{name: "second pool", pools: []string{"10.1.0.0/24", "10.2.0.0/24"}, bits: 24, used: []netip.Prefix{prefix("10.1.0.0/24")}, want: "10.2.0.0/24"},
		{name: "full", pools: []string{"10.1.0.0/24"}, bits: 24, used: []netip.Prefix{prefix("10.1.0.0/24")}},
		{name: "end of the address space", pools: []string{"255.255.255.0/24"}, bits: 24, used: []netip.Prefix{prefix("255.255.255.0/24")}},
		{name: "no pool", pools: []string{"nonsense"}, bits: 24},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			used := map[netip.Prefix]bool{}
			for _, p := range c.used {
				used[p] = true
			}
			got, err := nextRange(c.pools, c.bits, used)
			if (err == nil) != (c.want != "") || err == nil && got.String() != c.want {
				t.Errorf("%v, %v; want %q", got, err, c.want)
			}
		})
	}
}
