package talos

import (
	"context"
	"errors"
	"log/slog"

	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/hypervisor"
	"aether.internal/aether/lab/latency"
)

// OS is the name of the system on a disk's image.
const OS = "talos"

// Config is what all machines share.
type Config struct {
	Clock      *latency.Clock
	Faults     *faults.Set
	Containers *container.Engine
	// Programs maps an image's program to an executable on the host.
	Programs map[string]string
	// PublicCAs is PEM of the authorities that every machine trusts.
	PublicCAs []byte
	Log       *slog.Logger
}

// System is Talos Linux.
type System struct {
	cfg Config
}

var _ hypervisor.System = (*System)(nil)

// New returns the system.
func New(cfg Config) *System {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &System{cfg: cfg}
}

// Boot implements hypervisor.System.
func (s *System) Boot(ctx context.Context, m hypervisor.Machine) error {
	if len(m.Hardware.Disks) == 0 || m.Hardware.Disks[0].Content == nil {
		return errors.New("no disk to boot from")
	}
	ctx, shutdown := context.WithCancelCause(ctx)
	defer shutdown(nil)
	b := &boot{
		cfg: s.cfg, machine: m, console: newConsole(m.Console),
		disk: disk{content: m.Hardware.Disks[0].Content},
		log:  s.cfg.Log.With("vm", m.Hardware.Name, "vmid", m.Hardware.VMID),
	}
	go b.watchPowerButton(ctx, shutdown)
	err := b.run(ctx)
	if ctx.Err() != nil {
		b.console.talos("shutdown sequence: done (%v)", context.Cause(ctx))
		return nil
	}
	return err
}

// errPowerButton is why a machine shut itself down.
var errPowerButton = errors.New("ACPI power button was pressed")

func (b *boot) watchPowerButton(ctx context.Context, shutdown context.CancelCauseFunc) {
	select {
	case <-ctx.Done():
	case <-b.machine.Power:
		shutdown(errPowerButton)
	}
}
