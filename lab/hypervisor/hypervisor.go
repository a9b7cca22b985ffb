package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/network"
)

// System is a guest operating system.
type System interface {
	// Boot runs the system from power-on until ctx ends, which is the power
	// cut or a reset, or until it shuts itself down. It is called once per
	// boot. After an error the machine hangs as after a kernel panic: it draws
	// power and answers nothing until it is reset or killed.
	Boot(ctx context.Context, m Machine) error
}

// Machine is what a booting system sees.
type Machine struct {
	Hardware machine.Hardware
	// Net is the machine's network stack: eth0, eth1, … in order of the cards.
	Net *network.Namespace
	// Console is the serial console; what is written goes to a file.
	Console io.Writer
	// Media returns what is in the CD-ROM drives now.
	Media func() []machine.Medium
	// Power gets a value when the ACPI power button is pressed.
	Power <-chan struct{}
	// SetAgent makes the guest agent answer with that report from now on, if
	// the machine has the device and the image the agent.
	SetAgent func(machine.AgentReport)
	// Dir is a scratch directory of the machine; it is empty at power-on and
	// removed at power-off.
	Dir string
	// Reboot asks for a reboot and returns at once: ctx ends, and the system
	// is booted again when Boot has returned.
	Reboot func()
}

// ErrRunning says that the machine is already powered on.
var ErrRunning = errors.New("is already running")

// Hypervisor powers machines on. It implements machine.Hypervisor.
type Hypervisor struct {
	fabric  *network.Fabric
	systems map[string]System
	log     *slog.Logger
	dir     string

	mu     sync.Mutex
	guests map[place]*guest // nil while it is being powered on
}

var _ machine.Hypervisor = (*Hypervisor)(nil)

// place is where a machine runs: VMIDs are unique in a Proxmox cluster only,
// and a host is in one.
type place struct {
	host string
	vmid int
}

// New returns a hypervisor over the fabric's hosts. The systems are by the OS
// of the image on the boot disk; without one for it a machine runs and does
// nothing. Consoles and scratch files are under dir.
func New(f *network.Fabric, systems map[string]System, log *slog.Logger, dir string) *Hypervisor {
	return &Hypervisor{fabric: f, systems: systems, log: log, dir: dir, guests: map[place]*guest{}}
}

// PowerOn makes the machine's network stack, plugs its cards in and boots it.
// It returns when the machine has power; booting goes on.
func (h *Hypervisor) PowerOn(hardware machine.Hardware) (machine.Guest, error) {
	at := place{hardware.Host, hardware.VMID}
	h.mu.Lock()
	if _, on := h.guests[at]; on {
		h.mu.Unlock()
		return nil, fmt.Errorf("VM %d on %s: %w", at.vmid, at.host, ErrRunning)
	}
	h.guests[at] = nil
	h.mu.Unlock()

	g, err := h.assemble(hardware)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		delete(h.guests, at)
		return nil, fmt.Errorf("power on VM %d on %s: %w", at.vmid, at.host, err)
	}
	h.guests[at] = g
	go func() {
		g.run()
		h.mu.Lock()
		delete(h.guests, at)
		h.mu.Unlock()
		close(g.done)
	}()
	return g, nil
}

// Guest returns a machine that is powered on.
func (h *Hypervisor) Guest(host string, vmid int) (machine.Guest, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.guests[place{host, vmid}]
	return g, g != nil
}

// Close kills all machines.
func (h *Hypervisor) Close() {
	h.mu.Lock()
	var running []*guest
	for _, g := range h.guests {
		if g != nil {
			running = append(running, g)
		}
	}
	h.mu.Unlock()
	var all sync.WaitGroup
	for _, g := range running {
		all.Go(g.Kill)
	}
	all.Wait()
}

// system returns what boots from the machine's disks.
func (h *Hypervisor) system(hw machine.Hardware) (System, machine.Image) {
	for _, disk := range hw.Disks {
		if disk.Content == nil {
			continue
		}
		if s, ok := h.systems[disk.Content.Image.OS]; ok {
			return s, disk.Content.Image
		}
		break // firmware boots the first disk that has something on it
	}
	return blank{}, machine.Image{}
}

// blank is a machine without a system on its disk: firmware that waits.
type blank struct{}

// Boot waits for the power cut.
func (blank) Boot(ctx context.Context, _ Machine) error {
	<-ctx.Done()
	return nil
}

// assemble makes everything a machine needs, or nothing.
func (h *Hypervisor) assemble(hw machine.Hardware) (*guest, error) {
	host, ok := h.fabric.Host(hw.Host)
	if !ok {
		return nil, fmt.Errorf("host: %q is not in the lab's topology", hw.Host)
	}
	system, image := h.system(hw)
	ns, err := network.NewNamespace(fmt.Sprintf("vm%d", hw.VMID))
	if err != nil {
		return nil, err
	}
	life, cut := context.WithCancel(context.Background())
	g := &guest{
		hardware: hw, image: image, system: system, net: ns, life: life, cut: cut,
		log:    h.log.With("host", hw.Host, "vmid", hw.VMID),
		dir:    filepath.Join(h.dir, "machines", hw.Host, fmt.Sprint(hw.VMID)),
		media:  hw.Media,
		ports:  map[int]*network.Port{},
		down:   map[int]bool{},
		button: make(chan struct{}, 1),
		done:   make(chan struct{}),
	}
	err = g.openConsole(filepath.Join(h.dir, "consoles"))
	if err == nil {
		err = g.plugIn(host)
	}
	if err == nil {
		err = g.makeDir()
	}
	if err != nil {
		cut()
		return nil, errors.Join(err, g.takeApart())
	}
	return g, nil
}

func (g *guest) makeDir() error {
	if err := os.RemoveAll(g.dir); err != nil {
		return fmt.Errorf("empty scratch directory: %w", err)
	}
	if err := os.MkdirAll(g.dir, 0o700); err != nil {
		return fmt.Errorf("make scratch directory: %w", err)
	}
	return nil
}
