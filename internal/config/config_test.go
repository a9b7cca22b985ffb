package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"aether.internal/aether/internal/config"
)

func parse(t *testing.T, args ...string) config.Options {
	t.Helper()
	var o config.Options
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.Bind(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestFlagsComeBeforeTheEnvironment, and that before the default.
func TestFlagsComeBeforeTheEnvironment(t *testing.T) {
	t.Setenv("AETHER_SITE", "from-env.yaml")
	t.Setenv("AETHER_TEMPORAL_ADDRESS", "192.0.2.1:7233")
	o := parse(t, "--site", "from-flag.yaml")
	if o.Site != "from-flag.yaml" || o.TemporalAddress != "192.0.2.1:7233" || o.LogFormat != "text" || o.LogLevel != "info" {
		t.Errorf("got %+v", o)
	}
	if got := o.Temporal(nil); got.Address != "192.0.2.1:7233" {
		t.Errorf("temporal %+v", got)
	}
}

func TestLogger(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string // in the error; empty: a logger
	}{
		{nil, ""},
		{[]string{"--log-level=debug", "--log-format=json"}, ""},
		{[]string{"--log-level=loud"}, `--log-level: found "loud"; allowed: debug, info, warn, error`},
		{[]string{"--log-format=xml"}, `--log-format: found "xml"; allowed: text, json`},
	} {
		o := parse(t, test.args...)
		log, err := o.Logger()
		if (test.want == "") != (err == nil && log != nil) || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: got %v", test.args, err)
		}
	}
}

func TestLoadSite(t *testing.T) {
	missing, empty := parse(t, "--site", filepath.Join(t.TempDir(), "no.yaml")), parse(t)
	if _, err := empty.LoadSite(); err == nil || !strings.Contains(err.Error(), "--site: found nothing") || !strings.Contains(err.Error(), "AETHER_SITE") {
		t.Errorf("got %v", err)
	}
	if _, err := missing.LoadSite(); err == nil || !strings.Contains(err.Error(), "no.yaml") {
		t.Errorf("got %v", err)
	}
}

func TestRestConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	const content = `{apiVersion: v1, kind: Config, clusters: [{name: a, cluster: {server: "https://192.0.2.1:6443"}}], contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a}], current-context: a}`
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	good, missing := parse(t, "--kubeconfig", file), parse(t, "--kubeconfig", file+"x")
	if got, err := good.RestConfig(); err != nil || got.Host != "https://192.0.2.1:6443" || got.QPS < 50 {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := missing.RestConfig(); err == nil || !strings.Contains(err.Error(), "give --kubeconfig or set KUBECONFIG") {
		t.Errorf("got %v", err)
	}
}
