package domain_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/quick"

	"k8s.io/apimachinery/pkg/util/validation"

	"aether.internal/aether/internal/domain"
)

const machineID = "6f1e0c52-8e0f-4a36-9a0e-0f6f2a3c4d5e"

func TestMachineID(t *testing.T) {
	for range 100 {
		minted := domain.NewMachineID()
		parsed, err := domain.ParseMachineID(string(minted))
		if err != nil || parsed != minted {
			t.Fatalf("%s: parsed %q, %v", minted, parsed, err)
		}
		if len(minted.Short()) != 8 || !strings.HasPrefix(string(minted), minted.Short()+"-") {
			t.Errorf("%s: short form %q", minted, minted.Short())
		}
	}
	for _, wrong := range []string{"", "x", strings.ToUpper(machineID), "{" + machineID + "}", "urn:uuid:" + machineID, machineID + " ", machineID[:35], strings.ReplaceAll(machineID, "-", "")} {
		if id, err := domain.ParseMachineID(wrong); err == nil {
			t.Errorf("%q: got %s", wrong, id)
		} else if !strings.Contains(err.Error(), "lower case") {
			t.Errorf("%q: does not say what is allowed: %v", wrong, err)
		}
	}
}

func TestProviderID(t *testing.T) {
	id := domain.ProviderID("demo", machineID)
	if want := "aether://demo/" + machineID; id != want {
		t.Fatalf("got %s, want %s", id, want)
	}
	tenant, parsed, err := domain.ParseProviderID(id)
	if err != nil || tenant != "demo" || parsed != machineID {
		t.Errorf("parsed %q %q %v", tenant, parsed, err)
	}
	// The autoscaler keys by what follows the last slash.
	if last := id[strings.LastIndexByte(id, '/')+1:]; last != machineID {
		t.Errorf("the last segment is %q", last)
	}
	for _, wrong := range []string{"", "proxmox://demo/" + machineID, "aether://" + machineID, "aether:///" + machineID, "aether://demo/", "aether://demo/x", "aether://demo/" + machineID + "/"} {
		if tenant, id, err := domain.ParseProviderID(wrong); err == nil {
			t.Errorf("%q: got %q %q", wrong, tenant, id)
		} else if !strings.Contains(err.Error(), "provider ID") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// TestNamesFit: the longest names that the API accepts make names that are
// labels, which host names and label values must be.
func TestNamesFit(t *testing.T) {
	tenant, pool := strings.Repeat("t", 32), strings.Repeat("p", 20)
	for _, name := range []string{
		domain.WorkerName(tenant, pool, machineID), domain.ProxyName(tenant, 1<<40), domain.TenantNamespace(tenant),
	} {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			t.Errorf("%s (%d characters): %v", name, len(name), problems)
		}
	}
	if got := domain.WorkerName("demo", "workers", machineID); got != "demo-workers-6f1e0c52" {
		t.Errorf("worker: %s", got)
	}
	if got := domain.ProxyName("demo", 3); got != "demo-proxy-3" {
		t.Errorf("proxy: %s", got)
	}
}

func TestMACs(t *testing.T) {
	wellFormed := func(mac net.HardwareAddr) bool { return len(mac) == 6 && mac[0]&1 == 0 && mac[0]&2 == 2 }
	worker := func(id string, nic uint8) bool {
		mac := domain.WorkerMAC(domain.MachineID(id), int(nic))
		return wellFormed(mac) && mac.String() == domain.WorkerMAC(domain.MachineID(id), int(nic)).String() &&
			mac.String() != domain.WorkerMAC(domain.MachineID(id), int(nic)+1).String()
	}
	proxy := func(a, b [4]byte) bool {
		x, y := domain.ProxyMAC(netip.AddrFrom4(a)), domain.ProxyMAC(netip.AddrFrom4(b))
		return wellFormed(x) && (a == b) == (x.String() == y.String())
	}
	for name, property := range map[string]any{"worker": worker, "proxy": proxy} {
		if err := quick.Check(property, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The MACs of running machines follow from these: they must never change.
	if got := domain.WorkerMAC(machineID, 0).String(); got != "2a:cd:06:04:23:0f" {
		t.Errorf("worker MAC is %s", got)
	}
	if got := domain.ProxyMAC(netip.MustParseAddr("10.1.1.10")).String(); got != "22:73:8d:7b:8e:6b" {
		t.Errorf("proxy MAC is %s", got)
	}
}
