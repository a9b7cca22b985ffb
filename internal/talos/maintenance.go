package talos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
)

// Maintenance delivers configurations over the maintenance API.
type Maintenance struct {
	opts MaintenanceOptions
}

var _ Deliverer = (*Maintenance)(nil)

// MaintenanceOptions are the settings of a [Maintenance]; the zero value works.
type MaintenanceOptions struct {
	// Dial reaches the machines; a plain net.Dialer if nil.
	Dial Dialer
	// Interval between two looks at a machine; 250 ms if 0.
	Interval time.Duration
	// CallTimeout bounds each request; 10 s if 0.
	CallTimeout time.Duration
	// Settle is how long a port must stay closed before that means that the
	// machine left maintenance mode; 2 s if 0.
	Settle time.Duration
	Log    *slog.Logger
}

// NewMaintenance returns a deliverer.
func NewMaintenance(opts MaintenanceOptions) *Maintenance {
	if opts.Dial == nil {
		opts.Dial = (&net.Dialer{}).DialContext
	}
	opts.Interval = cmp.Or(opts.Interval, 250*time.Millisecond)
	opts.CallTimeout = cmp.Or(opts.CallTimeout, 10*time.Second)
	opts.Settle = cmp.Or(opts.Settle, 2*time.Second)
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Maintenance{opts: opts}
}

// WaitMaintenance returns when the right machine waits for its configuration.
// While nothing answers it keeps looking until the context ends, and tells
// heartbeat each time what it saw. Another machine, or one that has a
// configuration, is an error at once.
func (m *Maintenance) WaitMaintenance(ctx context.Context, target Target, heartbeat func(seen string)) error {
	for {
		err := m.look(ctx, target)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrWrongMachine), errors.Is(err, ErrNotMaintenance):
			return err
		}
		if heartbeat != nil {
			heartbeat(err.Error())
		}
		if stop := m.pause(ctx); stop != nil {
			return fmt.Errorf("wait for maintenance mode: %w (%w)", err, stop)
		}
	}
}

// look opens a session and reads the UUID.
func (m *Maintenance) look(ctx context.Context, target Target) error {
	s, err := openSession(ctx, m.opts.Dial, target, m.opts.CallTimeout)
	if err != nil {
		return err
	}
	return errors.Join(s.verify(ctx), s.close())
}

// Deliver implements [Deliverer]. On one connection it reads the UUID, checks
// that the configured disk exists, tries the configuration dry, and applies
// it. When the answer is lost it looks again: still in maintenance mode means
// that it did not arrive, a port that stays closed means that it did.
func (m *Maintenance) Deliver(ctx context.Context, target Target, configuration []byte) (Outcome, error) {
	provider, err := load(configuration)
	if err != nil {
		return "", &InvalidConfigError{Messages: messages(err.Error())}
	}
	log := m.opts.Log.With("address", target.Address.String(), "machine", target.UUID)
	installDisk := wantedDisk(provider.RawV1Alpha1())
	unknown := target.MayHaveConfig
	for {
		sent, err := m.attempt(ctx, target, configuration, installDisk)
		unknown = unknown || sent
		switch {
		case err == nil:
			log.Info("configuration applied")
			return Applied, nil
		case !errors.Is(err, ErrUnreachable) || !unknown:
			return "", err
		}
		log.Info("outcome of the delivery is not known yet", "reason", err.Error())
		switch gone, err := m.leftMaintenance(ctx, target); {
		case err != nil:
			return "", fmt.Errorf("outcome of the delivery is not known: %w", err)
		case gone:
			return AlreadyApplied, nil
		}
	}
}

// attempt makes one delivery over one connection. It tells whether the machine
// may have got the configuration.
func (m *Maintenance) attempt(ctx context.Context, target Target, configuration []byte, installDisk string) (sent bool, err error) {
	s, err := openSession(ctx, m.opts.Dial, target, m.opts.CallTimeout)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.verify(ctx); err != nil {
		return false, err
	}
	if err := s.hasDisk(ctx, installDisk); err != nil {
		return false, err
	}
	warnings, err := s.apply(ctx, configuration, true)
	if err != nil {
		return false, err
	}
	for _, w := range warnings {
		m.opts.Log.Warn("talos warns about the configuration", "machine", target.UUID, "warning", w)
	}
	_, err = s.apply(ctx, configuration, false)
	return !errors.Is(err, ErrInvalidConfig), err
}

// leftMaintenance finds out what became of a configuration whose answer was
// lost. It returns true when the port stayed closed for the settling time, and
// false when the machine is in maintenance mode, so that it can be sent again.
// A machine that cannot be reached is neither.
func (m *Maintenance) leftMaintenance(ctx context.Context, target Target) (bool, error) {
	var closedSince time.Time
	for {
		err := m.look(ctx, target)
		switch {
		case err == nil:
			return false, nil
		case errors.Is(err, errClosed):
			if closedSince.IsZero() {
				closedSince = time.Now()
			}
			if time.Since(closedSince) >= m.opts.Settle {
				return true, nil
			}
		case errors.Is(err, ErrUnreachable):
			closedSince = time.Time{}
		default:
			return false, err
		}
		if stop := m.pause(ctx); stop != nil {
			return false, fmt.Errorf("%w (%w)", err, stop)
		}
	}
}

func (m *Maintenance) pause(ctx context.Context) error {
	timer := time.NewTimer(m.opts.Interval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// wantedDisk is the device that the configuration names; empty for none.
func wantedDisk(c *v1alpha1.Config) string {
	if c == nil || c.MachineConfig == nil || c.MachineConfig.MachineInstall == nil {
		return ""
	}
	return c.MachineConfig.MachineInstall.InstallDisk
}

// hasDisk refuses a configuration whose disk the machine does not have: the
// answer would come much later, as a failed upgrade or a boot loop.
func (s *session) hasDisk(ctx context.Context, device string) error {
	disks, err := s.disks(ctx)
	if err != nil {
		return err
	}
	if device == "" || slices.ContainsFunc(disks, func(d disk) bool { return d.device == device }) {
		return nil
	}
	seen := make([]string, 0, len(disks))
	for _, d := range disks {
		seen = append(seen, fmt.Sprintf("%s (%d GiB)", d.device, d.bytes>>30))
	}
	return &InvalidConfigError{Messages: []string{fmt.Sprintf(
		"machine.install.disk: found %q, the machine has %s; name the disk by the VM's disk bus", device, strings.Join(seen, ", "))}}
}
