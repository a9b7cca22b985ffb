package envoy

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	control "aether.internal/aether/internal/envoy"
	"aether.internal/aether/internal/envoy/wire"
)

func tenant(name, address string, generation int64) control.Tenant {
	return control.Tenant{Name: name, Generation: generation, Address: netip.MustParseAddr(address), MaxNodes: 10}
}

func TestTrafficPasses(t *testing.T) {
	demo := tenant("demo", "127.10.0.1", 1)
	w := newWorld(t, demo)
	m := w.boot(t, demo)
	// A proxy is configured and acknowledges before its control plane exists.
	w.waitStatus(t, demo.ID(), "applied without upstreams", applied)

	demo.Upstreams = []netip.AddrPort{upstream(t, "api-1")}
	demo.KonnectivityUpstreams = []netip.AddrPort{upstream(t, "konnectivity-1")}
	w.source.Set(demo)
	wantGreeting(t, demo.Address, wire.PortAPI, "api-1")
	wantGreeting(t, demo.Address, wire.PortKonnectivity, "konnectivity-1")

	held, _ := dial(t, demo.Address, wire.PortAPI)
	wantEcho(t, held, "before")
	demo.Upstreams = []netip.AddrPort{upstream(t, "api-2")}
	w.source.Set(demo)
	wantGreeting(t, demo.Address, wire.PortAPI, "api-2")
	wantEcho(t, held, "a connection outlives a change of upstreams")

	eventually(t, "access log", func() (bool, any) {
		line := m.access.String()
		return strings.Contains(line, "-> 127.10.0.1:6443 -> 127.0.0.1:"), line
	})
	if got := m.admin(t, "/ready"); got != "LIVE\n" {
		t.Errorf("/ready = %q", got)
	}
}

func TestTokenLeavesNoTrace(t *testing.T) {
	demo := tenant("demo", "127.10.0.1", 1)
	w := newWorld(t, demo)
	m := w.boot(t, demo)
	w.waitStatus(t, demo.ID(), "applied", applied)
	eventually(t, "token deleted", func() (bool, any) {
		_, err := os.Stat(m.config.TokenFile)
		return os.IsNotExist(err), err
	})
	for where, text := range map[string]string{"server's log": w.logs.String(), "machine's log": m.logs.String()} {
		if strings.Contains(text, m.token) {
			t.Errorf("the %s has the token", where)
		}
	}
	// A reboot enrols no second time.
	m.stopSelf()
	m.start(t)
	w.waitStatus(t, demo.ID(), "connected again", func(s control.Status) bool { return s.Connected && s.Applied })
	if n := strings.Count(w.logs.String(), `msg="proxy enrolled"`); n != 1 {
		t.Errorf("enrolled %d times, want once", n)
	}
}

func TestNACKKeepsTheLastGood(t *testing.T) {
	demo := tenant("demo", "127.10.0.1", 1)
	demo.Upstreams = []netip.AddrPort{upstream(t, "api-1")}
	w := newWorld(t, demo)
	w.boot(t, demo)
	good := w.waitStatus(t, demo.ID(), "applied", applied)

	// An address that the proxy does not have: its clusters apply, its
	// listeners do not.
	bad := demo
	bad.Address = netip.MustParseAddr("203.0.113.9")
	bad.Upstreams = []netip.AddrPort{upstream(t, "api-2")}
	w.source.Set(bad)
	status := w.waitStatus(t, demo.ID(), "rolled back", func(s control.Status) bool {
		return s.Rejected != nil && s.RolledBack && s.Acked != ""
	})
	if !strings.Contains(status.Rejected.Reason, "cannot bind '203.0.113.9:6443'") {
		t.Errorf("reason = %q", status.Rejected.Reason)
	}
	if status.Applied || status.Acked == good.Acked || status.Acked == status.Version {
		t.Errorf("status after roll-back: %+v", status)
	}
	wantGreeting(t, demo.Address, wire.PortAPI, "api-1")

	bad.Address = demo.Address
	w.source.Set(bad)
	status = w.waitStatus(t, demo.ID(), "mended", applied)
	if status.Rejected != nil || status.RolledBack {
		t.Errorf("status after mending: %+v", status)
	}
	wantGreeting(t, demo.Address, wire.PortAPI, "api-2")
}

// A new proxy has nothing to go back to; it says why and waits.
func TestNACKWithoutLastGood(t *testing.T) {
	demo := tenant("demo", "203.0.113.9", 1)
	w := newWorld(t, demo)
	m := w.boot(t, demo)
	status := w.waitStatus(t, demo.ID(), "rejected", func(s control.Status) bool { return s.Rejected != nil })
	if status.Applied || status.RolledBack || status.Rejected.Type == "" {
		t.Errorf("status: %+v", status)
	}
	if n := strings.Count(m.logs.String(), "config rejected"); n != 1 {
		t.Errorf("the refused version was sent %d times, want once", n)
	}
}

func TestServerRestart(t *testing.T) {
	demo := tenant("demo", "127.10.0.1", 1)
	demo.Upstreams = []netip.AddrPort{upstream(t, "api-1")}
	w := newWorld(t, demo)
	w.boot(t, demo)
	before := w.waitStatus(t, demo.ID(), "applied", applied)
	held, _ := dial(t, demo.Address, wire.PortAPI)
	w.stop()
	wantGreeting(t, demo.Address, wire.PortAPI, "api-1") // nobody needs the server to be served

	w.serve(t, demo)
	after := w.waitStatus(t, demo.ID(), "applied again", func(s control.Status) bool {
		return s.Connected && s.Applied && s.ReportedAt.After(before.ReportedAt)
	})
	if after.Version != before.Version {
		t.Errorf("version %q became %q with the same content", before.Version, after.Version)
	}
	wantEcho(t, held, "still there")
}

func TestTenantsAreApart(t *testing.T) {
	one, two := tenant("one", "127.10.0.1", 1), tenant("two", "127.10.0.2", 1)
	one.Upstreams = []netip.AddrPort{upstream(t, "api-of-one")}
	two.Upstreams = []netip.AddrPort{upstream(t, "api-of-two")}
	w := newWorld(t, one, two)
	first, second := w.boot(t, one), w.boot(t, two)
	w.waitStatus(t, one.ID(), "one applied", applied)
	w.waitStatus(t, two.ID(), "two applied", applied)
	wantGreeting(t, one.Address, wire.PortAPI, "api-of-one")
	wantGreeting(t, two.Address, wire.PortAPI, "api-of-two")
	for m, other := range map[*vm]control.Tenant{first: two, second: one} {
		dump := m.admin(t, "/config_dump")
		if !strings.Contains(dump, m.config.Device.Address.String()) {
			t.Errorf("%s: dump without its own address:\n%s", m.id, dump)
		}
		if strings.Contains(dump, other.Address.String()) || strings.Contains(dump, string(other.Upstreams[0].String())) {
			t.Errorf("%s sees the configuration of %s:\n%s", m.id, other.ID(), dump)
		}
	}
}

func TestGenerationIsRevoked(t *testing.T) {
	demo := tenant("demo", "127.10.0.1", 1)
	w := newWorld(t, demo)
	m := w.boot(t, demo)
	w.waitStatus(t, demo.ID(), "applied", applied)
	w.source.Set(tenant("demo", "127.10.0.1", 2))
	eventually(t, "old generation refused", func() (bool, any) {
		log := m.logs.String()
		return strings.Contains(log, "no longer served"), log
	})
}
