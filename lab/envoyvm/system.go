package envoyvm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/hypervisor"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/machine"
)

// OS is the name of the image's system.
const OS = "envoy"

// Config is what the system is made of: the programs of its image.
type Config struct {
	// Agent is the path of the program that the image has as its service: a
	// static executable that is called with -config <file>.
	Agent string
	// Envoy is the path of a static executable that is Envoy when it is called
	// as /usr/bin/envoy.
	Envoy      string
	Containers *container.Engine
	Clock      *latency.Clock
	Log        *slog.Logger
}

// System implements hypervisor.System.
type System struct{ config Config }

var _ hypervisor.System = (*System)(nil)

// New returns the system.
func New(config Config) (*System, error) {
	if config.Containers == nil || config.Clock == nil || config.Log == nil {
		return nil, errors.New("envoyvm: Containers, Clock and Log must all be set")
	}
	for field, program := range map[string]string{"Agent": config.Agent, "Envoy": config.Envoy} {
		if !filepath.IsAbs(program) {
			return nil, fmt.Errorf("envoyvm: %s: %q; give the absolute path of a static program", field, program)
		}
	}
	return &System{config: config}, nil
}

// boot is one boot of a machine.
type boot struct {
	config Config
	m      hypervisor.Machine
	disk   *disk
	log    *slog.Logger
}

// Boot implements hypervisor.System. It returns when the machine has shut down
// or lost its power; what was written is on its disk then.
func (s *System) Boot(ctx context.Context, m hypervisor.Machine) (err error) {
	content := bootDisk(m.Hardware)
	if content == nil {
		return errors.New("no bootable disk")
	}
	files, err := openDisk(content, filepath.Join(m.Dir, "root"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.close()) }()
	b := &boot{config: s.config, m: m, disk: files, log: s.config.Log.With("vmid", m.Hardware.VMID)}
	b.say("Debian GNU/Linux 12, Envoy image %s", content.Image.Version)
	if err := s.config.Clock.Sleep(ctx, latency.LinuxBoot, 1); err != nil {
		return nil // power lost while booting
	}
	if err := b.setUp(); err != nil {
		return err
	}
	return b.run(ctx)
}

func bootDisk(hardware machine.Hardware) *machine.Content {
	for _, disk := range hardware.Disks {
		if disk.Content != nil {
			return disk.Content
		}
	}
	return nil
}

// setUp does what comes before the services.
func (b *boot) setUp() error {
	if err := b.cloudInit(); err != nil {
		b.say("%v", err) // the machine comes up, unconfigured
	}
	// Of the image: a card answers for its own address only. With two cards on
	// two networks Linux would answer for either on both.
	for _, key := range []string{"net/ipv4/conf/all/arp_ignore", "net/ipv4/conf/all/arp_announce"} {
		value := "1"
		if strings.HasSuffix(key, "announce") {
			value = "2"
		}
		if err := b.m.Net.Sysctl(key, value); err != nil {
			return err
		}
	}
	return b.setUpNetwork()
}

// run keeps the services up until the power or its button ends them.
func (b *boot) run(ctx context.Context) error {
	life, end := context.WithCancel(ctx)
	defer end()
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.services(ctx, life)
	}()
	if b.m.Hardware.AgentDevice {
		b.m.SetAgent(b.report())
	}
	select {
	case <-ctx.Done():
	case <-b.m.Power:
		b.say("systemd: power button pressed, shutting down")
	}
	end()
	<-done
	return nil
}

// report is what the guest agent tells.
func (b *boot) report() machine.AgentReport {
	report := machine.AgentReport{Hostname: b.hostname(), OS: "Debian GNU/Linux 12 (bookworm)"}
	report.Interfaces = append(report.Interfaces, machine.Interface{
		Name: "lo", MAC: make([]byte, 6), Addresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")},
	})
	for position, nic := range b.m.Hardware.NICs {
		name := fmt.Sprintf("eth%d", position)
		addresses, err := b.m.Net.Addresses(name)
		if err != nil {
			b.log.Warn("guest agent", "error", err)
		}
		report.Interfaces = append(report.Interfaces, machine.Interface{Name: name, MAC: nic.MAC, Addresses: addresses})
	}
	return report
}

func (b *boot) hostname() string {
	name, err := b.disk.read(hostnameFile)
	if err != nil {
		return defaultName
	}
	return strings.TrimSpace(string(name))
}

// say writes to the console.
func (b *boot) say(format string, values ...any) {
	if _, err := fmt.Fprintf(b.m.Console, format+"\n", values...); err != nil {
		b.log.Warn("console", "error", err)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
