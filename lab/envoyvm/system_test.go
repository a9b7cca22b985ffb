package envoyvm_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	control "aether.internal/aether/internal/envoy"
	"aether.internal/aether/lab/machine"
)

func demo(generation int64, upstreams ...netip.AddrPort) control.Tenant {
	return control.Tenant{
		Name: "demo", Generation: generation, Address: netip.MustParseAddr("10.1.1.10"), MaxNodes: 5,
		Upstreams: upstreams,
	}
}

// One machine from its medium to traffic, through a reset, a crash and a
// shutdown.
func TestProxyMachine(t *testing.T) {
	w := newWorld(t)
	api := w.api(t, "192.168.0.100:6443")
	tenant := demo(1, api)
	w.source.Set(tenant)
	hardware := w.proxyVM(t, tenant, 200, false)
	guest := w.powerOn(t, hardware)
	w.waitApplied(t, tenant)
	w.waitGreeting(t, "hello from 192.168.0.100:6443")

	report, answers := guest.Agent()
	if !answers || report.Hostname != "proxy-200" {
		t.Errorf("guest agent: %+v, %v", report, answers)
	}
	wantAddress(t, report, "eth0", "192.168.0.200/24")
	wantAddress(t, report, "eth1", "10.1.1.10/24")

	// A reset loses nothing, and enrols no second time though the medium is
	// still there.
	guest.Reset()
	eventually(t, "second boot", func() (bool, any) {
		return strings.Count(w.console(t, 200), "booted before") == 1, "one boot"
	})
	w.waitGreeting(t, "hello from 192.168.0.100:6443")
	if n := strings.Count(w.console(t, 200), "msg=enrolled"); n != 1 {
		t.Errorf("enrolled %d times", n)
	}

	// Nor does a boot without the medium.
	guest.Shutdown()
	<-guest.Done()
	hardware.Media = nil
	w.powerOn(t, hardware)
	w.waitGreeting(t, "hello from 192.168.0.100:6443")
	if !strings.Contains(w.console(t, 200), "no datasource, disabled") {
		t.Error("the third boot had a datasource")
	}
}

func wantAddress(t *testing.T, report machine.AgentReport, name, want string) {
	t.Helper()
	for _, i := range report.Interfaces {
		if i.Name != name {
			continue
		}
		if len(i.Addresses) != 1 || i.Addresses[0].String() != want {
			t.Errorf("%s has %v, want %s", name, i.Addresses, want)
		}
		return
	}
	t.Errorf("no interface %s in %+v", name, report)
}

// Two machines with one address and one MAC: the new one is configured with its
// cable out, and takes over when the cables are swapped.
func TestTakeOver(t *testing.T) {
	w := newWorld(t)
	api := w.api(t, "192.168.0.100:6443")
	first, second := demo(1, api), demo(2, api)
	w.source.Set(first, second)
	old := w.powerOn(t, w.proxyVM(t, first, 200, false))
	w.waitApplied(t, first)
	w.waitGreeting(t, "hello from 192.168.0.100:6443")
	fresh := w.powerOn(t, w.proxyVM(t, second, 201, true))
	w.waitApplied(t, second)

	var longest time.Duration
	last := time.Now()
	stop := background(func(ctx context.Context) {
		for ctx.Err() == nil {
			if _, err := w.greet(100 * time.Millisecond); err == nil {
				longest = max(longest, time.Since(last))
				last = time.Now()
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	time.Sleep(100 * time.Millisecond)
	check(t, old.SetLink(1, true))
	check(t, fresh.SetLink(1, false))
	time.Sleep(time.Second)
	stop()
	longest = max(longest, time.Since(last))
	t.Logf("longest gap %s", longest)
	if longest > 500*time.Millisecond {
		t.Errorf("longest gap %s, want at most 500 ms", longest)
	}
	if !strings.Contains(w.console(t, 201), `msg="tenant-side link" device=eth1 up=true`) {
		t.Error("the new machine did not notice its link")
	}
	old.Kill()
	w.waitGreeting(t, "hello from 192.168.0.100:6443")
}
