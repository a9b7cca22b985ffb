package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/network"
)

// guest is a machine that has power.
type guest struct {
	hardware machine.Hardware
	image    machine.Image
	system   System
	net      *network.Namespace
	log      *slog.Logger
	dir      string
	console  *os.File

	life   context.Context // ends with the power
	cut    context.CancelFunc
	button chan struct{}
	done   chan struct{}

	mu     sync.Mutex
	ports  map[int]*network.Port
	down   map[int]bool // cables that are pulled
	media  []machine.Medium
	agent  *machine.AgentReport
	boot   context.CancelFunc // of the present boot
	reboot bool
	off    bool
}

var _ machine.Guest = (*guest)(nil)

// openConsole appends to a file that outlives the machine, for post-mortems.
func (g *guest) openConsole(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make console directory: %w", err)
	}
	name := fmt.Sprintf("%s-%d-%.8s.log", g.hardware.Host, g.hardware.VMID, g.hardware.UUID)
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open console: %w", err)
	}
	g.console = file
	return nil
}

// guestLink names a card as the guest sees it: by its place among the cards,
// not by the N of netN.
func guestLink(position int) string { return fmt.Sprintf("eth%d", position) }

func (g *guest) plugIn(host *network.HostNet) error {
	for position, nic := range g.hardware.NICs {
		port, err := host.Attach(nic, g.hardware.VMID, g.net, guestLink(position))
		if err != nil {
			return err
		}
		g.ports[nic.Index] = port
		g.down[nic.Index] = nic.LinkDown
	}
	return nil
}

// run boots the system, again after each reset, until the power is off.
func (g *guest) run() {
	for g.runOnce() {
		g.log.Info("machine reboots")
	}
	if err := g.takeApart(); err != nil {
		g.log.Error("machine left something behind", "error", err)
	}
	g.log.Info("machine is off")
}

// runOnce boots the system once and tells whether it shall boot again.
func (g *guest) runOnce() bool {
	ctx, cancel := context.WithCancel(g.life)
	defer cancel()
	g.mu.Lock()
	g.boot, g.reboot, g.agent = cancel, false, nil
	g.mu.Unlock()
	select { // a button pressed while nothing listened is forgotten
	case <-g.button:
	default:
	}
	g.log.Info("machine boots", "os", g.image.OS, "version", g.image.Version)
	err := g.system.Boot(ctx, g.view(ctx))
	if err != nil && ctx.Err() == nil {
		g.crash(ctx, err)
	}
	cancel()
	g.settle()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.agent = nil
	again := g.reboot && !g.off
	if !again {
		g.off = true
	}
	return again
}

// crash keeps the machine on and silent until somebody acts.
func (g *guest) crash(ctx context.Context, err error) {
	g.log.Error("guest system crashed", "error", err)
	if _, werr := fmt.Fprintf(g.console, "\nguest system crashed: %v\n", err); werr != nil {
		g.log.Error("write console", "error", werr)
	}
	g.mu.Lock()
	g.agent = nil
	g.mu.Unlock()
	<-ctx.Done()
}

// settle ends what the guest still runs and forgets its network settings.
func (g *guest) settle() {
	if err := g.net.KillProcesses(settleTime); err != nil {
		g.log.Error("end the guest's processes", "error", err)
	}
	if g.life.Err() != nil {
		return
	}
	keep := make([]string, 0, len(g.hardware.NICs))
	for position := range g.hardware.NICs {
		keep = append(keep, guestLink(position))
	}
	if err := g.net.Reset(keep...); err != nil {
		g.log.Error("reset the guest's network", "error", err)
	}
}

// settleTime bounds the wait for killed processes to vanish.
const settleTime = 10 * time.Second

// view is the machine as the system of this boot sees it.
func (g *guest) view(ctx context.Context) Machine {
	return Machine{
		Hardware: g.hardware,
		Net:      g.net,
		Console:  g.console,
		Media:    g.currentMedia,
		Power:    g.button,
		SetAgent: func(report machine.AgentReport) { g.setAgent(ctx, report) },
		Dir:      g.dir,
		Reboot:   g.Reset,
	}
}

func (g *guest) currentMedia() []machine.Medium {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.media
}

func (g *guest) setAgent(ctx context.Context, report machine.AgentReport) {
	if !g.hardware.AgentDevice || !g.image.Agent {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if ctx.Err() == nil { // not from a boot that is over
		g.agent = &report
	}
}

// SetLink plugs or pulls the cable of NIC index.
func (g *guest) SetLink(index int, down bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	port, ok := g.ports[index]
	if !ok {
		return fmt.Errorf("net%d: VM %d has no such card, or is off", index, g.hardware.VMID)
	}
	if err := port.SetDown(down); err != nil {
		return fmt.Errorf("net%d of VM %d: %w", index, g.hardware.VMID, err)
	}
	g.down[index] = down
	return nil
}

// SetMedia changes what is in the CD-ROM drives.
func (g *guest) SetMedia(media []machine.Medium) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.media = media
}

// Agent returns what the guest agent reports.
func (g *guest) Agent() (machine.AgentReport, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.agent == nil {
		return machine.AgentReport{}, false
	}
	return *g.agent, true
}

// Shutdown presses the power button.
func (g *guest) Shutdown() {
	select {
	case g.button <- struct{}{}:
	default: // pressed already
	}
}

// Reset makes the guest boot again from its disk.
func (g *guest) Reset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.off || g.boot == nil {
		return
	}
	g.reboot = true
	g.boot()
}

// Kill cuts the power and waits until nothing of the guest runs.
func (g *guest) Kill() {
	g.mu.Lock()
	g.off = true
	// The network goes first: a machine without power says no goodbye.
	for index, port := range g.ports {
		if err := port.SetDown(true); err != nil {
			g.log.Error("pull cable", "index", index, "error", err)
		}
	}
	g.mu.Unlock()
	g.cut()
	<-g.done
}

// Done is closed when the guest is off.
func (g *guest) Done() <-chan struct{} { return g.done }

// takeApart removes all that assemble made.
func (g *guest) takeApart() error {
	g.cut()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.off = true
	var errs []error
	for _, port := range g.ports {
		errs = append(errs, port.Detach())
	}
	clear(g.ports)
	errs = append(errs, g.net.Close(), os.RemoveAll(g.dir))
	if g.console != nil {
		errs = append(errs, g.console.Close())
	}
	return errors.Join(errs...)
}
