package blank

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/machine"
)

// Hypervisor powers on machines in which nothing runs but the pretence of
// an operating system: it boots, its agent answers if the image has one, and
// it obeys the power button. Its NICs have no network.
type Hypervisor struct {
	clock *latency.Clock
}

// New returns a hypervisor on that clock.
func New(clock *latency.Clock) *Hypervisor { return &Hypervisor{clock: clock} }

// PowerOn implements machine.Hypervisor.
func (h *Hypervisor) PowerOn(hardware machine.Hardware) (machine.Guest, error) {
	g := &Guest{clock: h.clock, hardware: hardware, booted: time.Now(), done: make(chan struct{})}
	return g, nil
}

// Guest is a machine of a Hypervisor.
type Guest struct {
	clock *latency.Clock
	done  chan struct{}

	mu       sync.Mutex
	hardware machine.Hardware
	booted   time.Time
	off      bool
}

// SetLink implements machine.Guest.
func (g *Guest) SetLink(index int, down bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.hardware.NICs {
		if g.hardware.NICs[i].Index == index {
			g.hardware.NICs[i].LinkDown = down
		}
	}
	return nil
}

// SetMedia implements machine.Guest.
func (g *Guest) SetMedia(media []machine.Medium) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hardware.Media = media
}

// Hardware returns the machine as it is now, for tests.
func (g *Guest) Hardware() machine.Hardware {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hardware
}

// Agent implements machine.Guest.
func (g *Guest) Agent() (machine.AgentReport, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.hardware
	ready := h.AgentDevice && len(h.Disks) > 0 && h.Disks[0].Content.Image.Agent
	if !ready || g.off || time.Since(g.booted) < g.clock.Of(latency.LinuxBoot) {
		return machine.AgentReport{}, false
	}
	report := machine.AgentReport{Hostname: h.Name, OS: "Blank 1", Interfaces: []machine.Interface{
		{Name: "lo", Addresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}},
	}}
	for _, nic := range h.NICs {
		report.Interfaces = append(report.Interfaces, machine.Interface{Name: fmt.Sprintf("eth%d", nic.Index), MAC: nic.MAC})
	}
	return report, true
}

// Shutdown implements machine.Guest.
func (g *Guest) Shutdown() {
	time.AfterFunc(g.clock.Of(latency.VMStop), g.Kill)
}

// Reset implements machine.Guest.
func (g *Guest) Reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.booted = time.Now()
}

// Kill implements machine.Guest.
func (g *Guest) Kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.off {
		g.off = true
		close(g.done)
	}
}

// Done implements machine.Guest.
func (g *Guest) Done() <-chan struct{} { return g.done }
