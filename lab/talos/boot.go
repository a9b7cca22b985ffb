package talos

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"

	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/hypervisor"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/talos/maintenance"
)

// boot is one run of the system, from power-on to power-off.
type boot struct {
	cfg     Config
	machine hypervisor.Machine
	console *console
	disk    disk
	log     *slog.Logger
}

func (b *boot) place(what string) string { return "talos/" + b.machine.Hardware.Name + "/" + what }

// run goes through the sequences of machined until the context ends.
func (b *boot) run(ctx context.Context) error {
	platform := b.disk.platform()
	b.console.talos("task initialize: Talos %s, platform %s, machine %s", b.disk.content.Image.Version, platform, b.machine.Hardware.UUID)
	if err := b.startUp(ctx); err != nil {
		return err
	}
	var meta metadata
	if platform == platformNocloud {
		meta = b.readMedium()
	}
	if err := b.setLinks(b.cards(), meta.links); err != nil {
		b.console.talos("error setting the platform's network up: %v", err)
	}
	if len(meta.links) == 0 {
		b.console.talos("DHCP requests on all links: no answer")
	}
	provider, err := b.acquire(ctx, meta)
	if err != nil {
		return err
	}
	if !b.disk.installed() {
		return b.install(ctx, provider)
	}
	n := &node{boot: b, provider: provider, names: b.newNames(provider, meta.nameservers)}
	return n.run(ctx, meta)
}

// startUp takes the time from the firmware to a system that is up.
func (b *boot) startUp(ctx context.Context) error {
	if f := b.cfg.Faults.Take(b.place("boot"), faults.Delay); f != nil {
		if err := pause(ctx, f.Delay); err != nil {
			return err
		}
	}
	return b.cfg.Clock.Sleep(ctx, latency.TalosBoot, 1)
}

// acquire finds the configuration: on the disk, on the platform's medium, or
// by waiting in maintenance mode.
func (b *boot) acquire(ctx context.Context, meta metadata) (coreconfig.Provider, error) {
	if config, ok := b.disk.config(); ok {
		b.console.talos("machine configuration loaded from the STATE partition")
		return parseConfig(config)
	}
	if meta.config != nil {
		provider, err := parseConfig(meta.config)
		if err == nil {
			_, err = provider.Validate(mode(b.disk.platform()))
		}
		if err == nil {
			b.console.talos("machine configuration acquired from the platform")
			b.disk.setConfig(meta.config)
			return provider, b.cfg.Clock.Sleep(ctx, latency.TalosApply, 1)
		}
		b.console.talos("failed to acquire config from the platform: %v", err)
	}
	return b.maintain(ctx, meta)
}

func parseConfig(config []byte) (coreconfig.Provider, error) {
	provider, err := configloader.NewFromBytes(config)
	if err != nil {
		return nil, fmt.Errorf("read machine configuration: %w", err)
	}
	return provider, nil
}

// maintain serves maintenance mode until a configuration is accepted, and
// keeps that on the disk.
func (b *boot) maintain(ctx context.Context, meta metadata) (coreconfig.Provider, error) {
	listener, err := b.machine.Net.Listen("tcp", fmt.Sprintf(":%d", maintenance.Port))
	if err != nil {
		return nil, fmt.Errorf("open maintenance API: %w", err)
	}
	b.console.talos("entering maintenance service")
	b.log.Info("talos is in maintenance mode", "addresses", b.addresses())
	server := maintenance.New(maintenance.Config{
		Machine: b.describe(meta), Mode: mode(b.disk.platform()), Faults: b.cfg.Faults,
		Place: "talos/" + b.machine.Hardware.Name, Logf: b.console.talos,
	})
	config, err := server.Wait(ctx, listener)
	if err != nil {
		return nil, err
	}
	b.disk.setConfig(config)
	b.console.talos("leaving maintenance service")
	if err := b.cfg.Clock.Sleep(ctx, latency.TalosApply, 1); err != nil {
		return nil, err
	}
	return parseConfig(config)
}

// describe is the machine as maintenance mode shows it.
func (b *boot) describe(meta metadata) maintenance.Machine {
	m := maintenance.Machine{UUID: b.machine.Hardware.UUID, Name: "Standard PC (Q35 + ICH9, 2009)", Hostname: b.hostname(nil, meta)}
	for i, d := range b.machine.Hardware.Disks {
		m.Disks = append(m.Disks, maintenance.Disk{
			Device: diskDevice(b.machine.Hardware.Disks[:i], d.Slot), Bytes: uint64(max(d.SizeBytes, 0)), Model: "QEMU HARDDISK", System: i == 0,
		})
	}
	for i := range b.machine.Media() {
		m.Disks = append(m.Disks, maintenance.Disk{Device: fmt.Sprintf("sr%d", i), Bytes: 4 << 20, Model: "QEMU DVD-ROM", ReadOnly: true})
	}
	for _, c := range b.cards() {
		l := maintenance.Link{Name: c.name, MAC: c.mac, MTU: 1500}
		if up, err := b.machine.Net.LinkUp(c.device); err == nil {
			l.Up = up
		}
		if addresses, err := b.machine.Net.Addresses(c.device); err == nil {
			for _, a := range addresses {
				l.Addresses = append(l.Addresses, a.String())
			}
		}
		m.Links = append(m.Links, l)
	}
	return m
}

// install writes the system of the configured installer image to the disk and
// boots it. Only metal does; a nocloud disk image is installed already.
func (b *boot) install(ctx context.Context, provider coreconfig.Provider) error {
	image := ""
	if provider.Machine() != nil {
		image = provider.Machine().Install().Image()
	}
	b.console.talos("task install: pulling %q", image)
	n := &node{boot: b, provider: provider, names: b.newNames(provider, nil)}
	if err := n.setNetwork(metadata{}); err != nil {
		b.console.talos("error setting the network up: %v", err)
	}
	if image != "" {
		if _, err := n.pullAsMachined(ctx, image); err != nil {
			return fmt.Errorf("install: %w", err)
		}
	}
	if err := b.cfg.Clock.Sleep(ctx, latency.TalosInstall, 1); err != nil {
		return err
	}
	b.disk.install(image)
	b.console.talos("install successful, rebooting")
	b.machine.Reboot()
	<-ctx.Done()
	return ctx.Err()
}

// hostname: that of the configuration, else the platform's, else a stable name
// made from the machine's identity.
func (b *boot) hostname(provider coreconfig.Provider, meta metadata) string {
	if provider != nil {
		if c := provider.NetworkHostnameConfig(); c != nil && c.Hostname() != "" {
			return c.Hostname()
		}
	}
	if meta.hostname != "" {
		return meta.hostname
	}
	return stableHostname(b.machine.Hardware.UUID)
}

// diskDevice names a disk by its bus and the disks before it.
func diskDevice(before []*machine.Disk, slot string) string {
	prefix := func(slot string) string {
		if strings.HasPrefix(slot, "virtio") {
			return "vd"
		}
		return "sd"
	}
	n := 0
	for _, d := range before {
		if prefix(d.Slot) == prefix(slot) {
			n++
		}
	}
	return prefix(slot) + string(rune('a'+n))
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
