package cilium

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage/driver"
)

// Namespace and ReleaseName are where the release is.
const (
	Namespace   = "kube-system"
	ReleaseName = "cilium"
)

const (
	// maxHistory: each revision is a Secret of some 300 KB.
	maxHistory = 3
	// callTimeout bounds each request to the tenant's API server.
	callTimeout = 30 * time.Second
)

// Action is what Apply did.
type Action string

// The actions.
const (
	Installed Action = "installed"
	Upgraded  Action = "upgraded"
	Unchanged Action = "unchanged"
)

// Outcome is what Apply did and what there is now.
type Outcome struct {
	Action   Action
	Revision int
	Version  string // of the chart
	// Recovered tells that an earlier attempt had been cut off.
	Recovered bool
}

// Manager applies releases.
type Manager struct {
	log       *slog.Logger
	configure func(kubeconfig []byte, log *slog.Logger) (*action.Configuration, error)
	lock      func(ctx context.Context, kubeconfig []byte, beat func(string)) (unlock func(), err error)
}

// New returns a manager.
func New(log *slog.Logger) *Manager {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Manager{log: log, configure: configuration, lock: lockTenant}
}

// Apply brings the tenant's release to the chart and values and returns
// without waiting for pods. Repeated with the same it changes nothing. It
// takes a lock in the tenant, so there is one writer; beat, which may be nil,
// is told what it waits for. ctx ends the wait for the lock, but never an
// install that has begun: Helm goes on in the background when its context is
// cancelled, and writes the release from both sides.
func (m *Manager) Apply(ctx context.Context, kubeconfig []byte, chart *Chart, values map[string]any, beat func(string)) (Outcome, error) {
	unlock, err := m.lock(ctx, kubeconfig, beat)
	if err != nil {
		return Outcome{}, err
	}
	defer unlock()
	config, err := m.configure(kubeconfig, m.log)
	if err != nil {
		return Outcome{}, err
	}
	last, err := config.Releases.Last(ReleaseName)
	if err != nil && !errors.Is(err, driver.ErrReleaseNotFound) {
		return Outcome{}, fmt.Errorf("read the history of release %s: %w", ReleaseName, err)
	}
	if ctx.Err() != nil {
		return Outcome{}, fmt.Errorf("apply release %s: %w", ReleaseName, ctx.Err())
	}
	// The caller's values stay as they are.
	w := writer{config: config, chart: chart, values: maps.Clone(values)}
	return w.apply(context.WithoutCancel(ctx), last)
}

// step is what the history asks for.
type step int

const (
	install   step = iota // nothing is there
	reinstall             // only an uninstalled release is left
	upgrade               // a release is there
	recovery              // a release was cut off: mark it failed, then upgrade
)

// decide reads the last release. It is called with the lock held, so a
// release that is pending has no writer any more.
func decide(last *release.Release) step {
	switch {
	case last == nil:
		return install
	case last.Info == nil:
		return recovery
	case last.Info.Status == release.StatusUninstalled:
		return reinstall
	case last.Info.Status == release.StatusDeployed, last.Info.Status == release.StatusFailed, last.Info.Status == release.StatusSuperseded:
		return upgrade
	default: // pending-…, uninstalling, unknown
		return recovery
	}
}

// writer writes one release.
type writer struct {
	config *action.Configuration
	chart  *Chart
	values map[string]any
}

func (w writer) apply(ctx context.Context, last *release.Release) (Outcome, error) {
	w.keepCompatibility(last)
	switch next := decide(last); next {
	case install, reinstall:
		return w.install(ctx, next == reinstall)
	case recovery:
		last.SetStatus(release.StatusFailed, "Aether: the operation was cut off")
		if err := w.config.Releases.Update(last); err != nil {
			return Outcome{}, fmt.Errorf("mark revision %d of release %s as failed: %w", last.Version, ReleaseName, err)
		}
		outcome, err := w.upgrade(ctx)
		outcome.Recovered = true
		return outcome, err
	default:
		if last.Info.Status == release.StatusDeployed {
			same, err := w.same(ctx, last)
			if err != nil {
				return Outcome{}, err
			}
			if same {
				return Outcome{Action: Unchanged, Revision: last.Version, Version: last.Chart.Metadata.Version}, nil
			}
		}
		return w.upgrade(ctx)
	}
}

// keepCompatibility tells the chart which minor was installed first: it keeps
// defaults that a running cluster cannot change.
func (w writer) keepCompatibility(last *release.Release) {
	const key = "upgradeCompatibility"
	if last != nil {
		if first, ok := last.Config[key].(string); ok {
			w.values[key] = first
			return
		}
	}
	var major, minor int
	if n, err := fmt.Sscanf(w.chart.Version(), "%d.%d", &major, &minor); err == nil && n == 2 {
		w.values[key] = fmt.Sprintf("%d.%d", major, minor)
	}
}

func (w writer) install(ctx context.Context, replace bool) (Outcome, error) {
	run := action.NewInstall(w.config)
	run.ReleaseName, run.Namespace, run.Replace, run.Timeout = ReleaseName, Namespace, replace, callTimeout
	done, err := run.RunWithContext(ctx, w.chart.inner, w.values)
	if err != nil {
		return Outcome{}, fmt.Errorf("install release %s: %w", ReleaseName, err)
	}
	return Outcome{Action: Installed, Revision: done.Version, Version: w.chart.Version()}, nil
}

func (w writer) newUpgrade() *action.Upgrade {
	run := action.NewUpgrade(w.config)
	run.Namespace, run.Timeout, run.MaxHistory = Namespace, callTimeout, maxHistory
	// Without it an empty mapping means "as before".
	run.ResetValues = true
	return run
}

func (w writer) upgrade(ctx context.Context) (Outcome, error) {
	done, err := w.newUpgrade().RunWithContext(ctx, ReleaseName, w.chart.inner, w.values)
	if err != nil {
		return Outcome{}, fmt.Errorf("upgrade release %s: %w", ReleaseName, err)
	}
	return Outcome{Action: Upgraded, Revision: done.Version, Version: w.chart.Version()}, nil
}

// same renders what an upgrade would apply and compares it with what is
// deployed: each needless upgrade adds a revision.
func (w writer) same(ctx context.Context, last *release.Release) (bool, error) {
	if last.Chart == nil || last.Chart.Metadata == nil || last.Chart.Metadata.Version != w.chart.Version() {
		return false, nil
	}
	run := w.newUpgrade()
	run.DryRun, run.DryRunOption = true, "server"
	rendered, err := run.RunWithContext(ctx, ReleaseName, w.chart.inner, w.values)
	if err != nil {
		return false, fmt.Errorf("render release %s: %w", ReleaseName, err)
	}
	if rendered.Manifest == last.Manifest {
		return true, nil
	}
	// Hubble's certificates are new in each render: there, values decide.
	return hubble(w.values) && hubble(last.Config) && sameValues(w.values, last.Config), nil
}

func hubble(values map[string]any) bool {
	settings, _ := values["hubble"].(map[string]any)
	return settings["enabled"] == true
}

// sameValues compares as JSON, which is how Helm stores values.
func sameValues(a, b map[string]any) bool {
	left, err := json.Marshal(a)
	if err != nil {
		return false
	}
	right, err := json.Marshal(b)
	return err == nil && bytes.Equal(left, right)
}
