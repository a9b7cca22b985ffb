package talos_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	config "aether.internal/aether/internal/talos"
	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/talos"
)

func mirrorOf(w *world, registry string) config.Mirror {
	return config.Mirror{Registry: registry, URL: "https://" + w.registry.HarborHost() + "/v2/proxy-" + registry}
}

func TestMaintenance(t *testing.T) {
	w := newWorld(t)
	t.Run("address of the medium", func(t *testing.T) { testMediumAddress(t, w) })
	t.Run("no medium", func(t *testing.T) { testNoMedium(t, w) })
	t.Run("wiped", func(t *testing.T) { testWiped(t, w) })
	t.Run("power button", func(t *testing.T) { testPowerButton(t, w) })
}

func reach(t *testing.T, v *vm, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return pusher().WaitMaintenance(ctx, v.target(), nil)
}

func testMediumAddress(t *testing.T, w *world) {
	v := w.vm(t, 1)
	check(t, reach(t, v, 20*time.Second))
	wrong := v.target()
	wrong.UUID = "00000000-0000-0000-0000-000000000000"
	if err := pusher().WaitMaintenance(t.Context(), wrong, nil); !errors.Is(err, config.ErrWrongMachine) {
		t.Errorf("another UUID: %v", err)
	}
}

func testNoMedium(t *testing.T, w *world) {
	v := w.vm(t, 2, func(hw *machine.Hardware) { hw.Media = nil })
	v.waitConsole(t, "this machine is reachable at: no address")
	if err := reach(t, v, 300*time.Millisecond); !errors.Is(err, config.ErrUnreachable) {
		t.Errorf("got %v, want ErrUnreachable", err)
	}
}

// testWiped: after a reset to maintenance mode nocloud has its address again,
// and metal has not.
func testWiped(t *testing.T, w *world) {
	v := w.vm(t, 3)
	check(t, reach(t, v, 20*time.Second))
	content := v.hardware.Disks[0].Content
	v.guest.Kill()
	talos.Wipe(content)
	v.powerOn(t)
	check(t, reach(t, v, 20*time.Second))

	v.guest.Kill()
	content.Write("BOOT/platform", []byte("metal"))
	talos.Wipe(content)
	v.powerOn(t)
	v.waitConsole(t, "platform metal")
	if err := reach(t, v, 2*time.Second); !errors.Is(err, config.ErrUnreachable) {
		t.Errorf("metal: %v, want ErrUnreachable", err)
	}
}

func testPowerButton(t *testing.T, w *world) {
	v := w.vm(t, 4)
	check(t, reach(t, v, 20*time.Second))
	v.guest.Shutdown()
	select {
	case <-v.guest.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the machine does not shut down")
	}
	if !strings.Contains(v.console(t), "ACPI power button") {
		t.Errorf("console:\n%s", v.console(t))
	}
}

func TestDelayedBoot(t *testing.T) {
	w := newWorld(t)
	if _, err := w.faults.Inject(faults.Fault{Kind: faults.Delay, Place: "talos/worker-5/boot", Delay: 2 * time.Second, Count: 1}); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	v := w.vm(t, 5)
	check(t, reach(t, v, 20*time.Second))
	if d := time.Since(started); d < 2*time.Second {
		t.Errorf("up after %s", d)
	}
}
