package cilium

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chartutil"
	kubefake "helm.sh/helm/v3/pkg/kube/fake"
	"helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
)

// tenant is a tenant with Helm's memory driver and a client that only prints.
type tenant struct {
	config *action.Configuration
	kube   *kubefake.FailingKubeClient
	locked int
}

func newTenant(t *testing.T) (*Manager, *tenant) {
	t.Helper()
	kube := &kubefake.FailingKubeClient{PrintingKubeClient: kubefake.PrintingKubeClient{Out: io.Discard}}
	memory := driver.NewMemory()
	memory.SetNamespace(Namespace)
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1.35.4", Major: "1", Minor: "35"}
	x := &tenant{kube: kube, config: &action.Configuration{
		Releases: storage.Init(memory), KubeClient: kube, Capabilities: capabilities,
		Log: func(string, ...any) {},
	}}
	m := New(nil)
	m.configure = func([]byte, *slog.Logger) (*action.Configuration, error) { return x.config, nil }
	m.lock = func(context.Context, []byte, func(string)) (func(), error) {
		x.locked++
		return func() { x.locked-- }, nil
	}
	return m, x
}

func testChart(t *testing.T) *Chart {
	t.Helper()
	c, err := LoadChart(context.Background(), ChartRef{Path: "testdata/cilium", Version: "v1.20.2"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func apply(t *testing.T, m *Manager, mtu int) (Outcome, error) {
	t.Helper()
	s := settings()
	s.NetworkMTU = mtu
	values, err := Values(s)
	if err != nil {
		t.Fatal(err)
	}
	return m.Apply(context.Background(), nil, testChart(t), values, nil)
}

func TestApplyIsRepeatable(t *testing.T) {
	m, x := newTenant(t)
	for i, test := range []struct {
		mtu  int
		want Outcome
	}{
		{1500, Outcome{Action: Installed, Revision: 1, Version: "1.20.2"}},
		{1500, Outcome{Action: Unchanged, Revision: 1, Version: "1.20.2"}},
		{9000, Outcome{Action: Upgraded, Revision: 2, Version: "1.20.2"}},
		{9000, Outcome{Action: Unchanged, Revision: 2, Version: "1.20.2"}},
	} {
		got, err := apply(t, m, test.mtu)
		if err != nil || got != test.want {
			t.Errorf("call %d: got %+v and %v, want %+v", i, got, err, test.want)
		}
	}
	last, err := x.config.Releases.Last(ReleaseName)
	if err != nil || !strings.Contains(last.Manifest, `mtu: "8950"`) || !strings.Contains(last.Manifest, "10.1.1.10:6443") || !strings.Contains(last.Manifest, `compatibility: "1.20"`) {
		t.Errorf("manifest: %v, %v", last, err)
	}
	if x.locked != 0 {
		t.Error("the lock was kept")
	}
}

func TestApplyRecovers(t *testing.T) {
	for _, status := range []release.Status{release.StatusPendingInstall, release.StatusPendingUpgrade, release.StatusPendingRollback, release.StatusUninstalling, release.StatusUnknown} {
		t.Run(string(status), func(t *testing.T) {
			m, x := newTenant(t)
			if _, err := apply(t, m, 1500); err != nil {
				t.Fatal(err)
			}
			last, err := x.config.Releases.Last(ReleaseName)
			if err != nil {
				t.Fatal(err)
			}
			last.SetStatus(status, "cut off")
			if err := x.config.Releases.Update(last); err != nil {
				t.Fatal(err)
			}
			got, err := apply(t, m, 1500)
			if err != nil || got.Action != Upgraded || !got.Recovered || got.Revision != 2 {
				t.Errorf("got %+v and %v", got, err)
			}
			if got, err := apply(t, m, 1500); err != nil || got.Action != Unchanged || got.Recovered {
				t.Errorf("afterwards: got %+v and %v", got, err)
			}
		})
	}
}

func TestApplyRetriesAFailedRelease(t *testing.T) {
	m, x := newTenant(t)
	if _, err := apply(t, m, 1500); err != nil {
		t.Fatal(err)
	}
	x.kube.UpdateError = errors.New("privileged: Forbidden")
	if _, err := apply(t, m, 9000); err == nil || !strings.Contains(err.Error(), "Forbidden") {
		t.Fatalf("got %v", err)
	}
	x.kube.UpdateError = nil
	if got, err := apply(t, m, 9000); err != nil || got.Action != Upgraded || got.Revision != 3 {
		t.Errorf("got %+v and %v: a failed release must not be taken for done", got, err)
	}
}

func TestApplyReplacesAnUninstalledRelease(t *testing.T) {
	m, x := newTenant(t)
	if _, err := apply(t, m, 1500); err != nil {
		t.Fatal(err)
	}
	run := action.NewUninstall(x.config)
	run.KeepHistory = true
	if _, err := run.Run(ReleaseName); err != nil {
		t.Fatal(err)
	}
	if got, err := apply(t, m, 1500); err != nil || got.Action != Installed {
		t.Errorf("got %+v and %v", got, err)
	}
}

func TestApplyIsRepeatableWithHubble(t *testing.T) {
	m, _ := newTenant(t)
	s := settings()
	s.Extra = map[string]any{"hubble": map[string]any{"enabled": true}}
	values, err := Values(s)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []Action{Installed, Unchanged} {
		if got, err := m.Apply(context.Background(), nil, testChart(t), values, nil); err != nil || got.Action != want {
			t.Errorf("call %d: got %+v and %v", i, got, err)
		}
	}
	values["MTU"] = 1400
	if got, err := m.Apply(context.Background(), nil, testChart(t), values, nil); err != nil || got.Action != Upgraded {
		t.Errorf("changed: got %+v and %v", got, err)
	}
}

func TestApplyBoundsTheHistory(t *testing.T) {
	m, x := newTenant(t)
	for i := range 6 {
		if _, err := apply(t, m, 1500+i); err != nil {
			t.Fatal(err)
		}
	}
	history, err := x.config.Releases.History(ReleaseName)
	if err != nil || len(history) > maxHistory {
		t.Errorf("%d revisions, %v", len(history), err)
	}
}

func TestApplyKeepsTheFirstMinor(t *testing.T) {
	m, x := newTenant(t)
	old := testChart(t)
	old.inner.Metadata.Version = "1.19.4"
	values, err := Values(settings())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Apply(context.Background(), nil, old, values, nil); err != nil {
		t.Fatal(err)
	}
	if _, set := values["upgradeCompatibility"]; set {
		t.Error("the caller's values were changed")
	}
	if got, err := apply(t, m, 1500); err != nil || got.Action != Upgraded {
		t.Fatalf("got %+v and %v", got, err)
	}
	last, err := x.config.Releases.Last(ReleaseName)
	if err != nil || !strings.Contains(last.Manifest, `compatibility: "1.19"`) {
		t.Errorf("manifest: %v, %v", last.Manifest, err)
	}
}

func TestApplyStopsBeforeItBegins(t *testing.T) {
	m, x := newTenant(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := m.Apply(ctx, nil, testChart(t), map[string]any{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := x.config.Releases.Last(ReleaseName); !errors.Is(err, driver.ErrReleaseNotFound) {
		t.Errorf("a release was written: %v", err)
	}
}

func TestLoadChart(t *testing.T) {
	c := testChart(t)
	for _, file := range c.inner.Files {
		if strings.Contains(file.Name, "dashboards") || strings.HasPrefix(file.Name, "README") {
			t.Errorf("%s was not left out", file.Name)
		}
	}
	if len(c.inner.Files) != 1 {
		t.Errorf("files: %v, want the one a template may use", c.inner.Files)
	}
	for name, ref := range map[string]ChartRef{
		"missing":       {Path: "testdata/none"},
		"no chart":      {Path: "testdata/golden"},
		"wrong version": {Path: "testdata/cilium", Version: "v1.19.0"},
	} {
		if _, err := LoadChart(context.Background(), ref); !errors.Is(err, ErrChart) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestTheLabsChartTakesTheValues renders the lab's chart, which has the real
// one's schema for these keys.
func TestTheLabsChartTakesTheValues(t *testing.T) {
	c, err := LoadChart(context.Background(), ChartRef{Path: "../../lab/charts/cilium"})
	if err != nil {
		t.Fatal(err)
	}
	m, x := newTenant(t)
	values, err := Values(settings())
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []Action{Installed, Unchanged} {
		if got, err := m.Apply(context.Background(), nil, c, values, nil); err != nil || got.Action != want {
			t.Fatalf("call %d: got %+v and %v", i, got, err)
		}
	}
	last, err := x.config.Releases.Last(ReleaseName)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"name: cilium-operator", "kind: DaemonSet", "10.1.1.10"} {
		if !strings.Contains(last.Manifest, part) {
			t.Errorf("the manifest lacks %q", part)
		}
	}
}
