// Package config holds the settings that Aether's programs have in common, as
// flags with a fallback to the environment. Nothing else reads the environment,
// but for Temporal's own TEMPORAL_ variables.
package config

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"aether.internal/aether/internal/site"
	"aether.internal/aether/internal/temporalclient"
)

// Options are the common settings.
type Options struct {
	// Kubeconfig of the management cluster; empty: KUBECONFIG, the usual file,
	// or the pod's own account.
	Kubeconfig string
	// Site file.
	Site string
	// TemporalAddress and TemporalNamespace; empty: Temporal's own settings.
	TemporalAddress   string
	TemporalNamespace string
	// CodecKeys file; empty: payloads in clear.
	CodecKeys string
	// LogFormat is text or json, LogLevel debug, info, warn or error.
	LogFormat string
	LogLevel  string
}

// Bind adds the flags. Each may also be given as AETHER_<NAME> in the
// environment, as AETHER_SITE.
func (o *Options) Bind(flags *pflag.FlagSet) {
	flags.StringVar(&o.Kubeconfig, "kubeconfig", env("kubeconfig", ""), "kubeconfig of the management cluster")
	flags.StringVar(&o.Site, "site", env("site", ""), "site file")
	flags.StringVar(&o.TemporalAddress, "temporal-address", env("temporal-address", ""), "address of the Temporal frontend (default TEMPORAL_ADDRESS or 127.0.0.1:7233)")
	flags.StringVar(&o.TemporalNamespace, "temporal-namespace", env("temporal-namespace", ""), "Temporal namespace (default TEMPORAL_NAMESPACE or default)")
	flags.StringVar(&o.CodecKeys, "codec-keys", env("codec-keys", ""), "file with the keys of the payload codec")
	flags.StringVar(&o.LogFormat, "log-format", env("log-format", "text"), "text or json")
	flags.StringVar(&o.LogLevel, "log-level", env("log-level", "info"), "debug, info, warn or error")
}

func env(name, fallback string) string {
	if value := os.Getenv("AETHER_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))); value != "" {
		return value
	}
	return fallback
}

// Logger returns the logger that the settings ask for.
func (o *Options) Logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.LogLevel)); err != nil {
		return nil, fmt.Errorf("--log-level: found %q; allowed: debug, info, warn, error", o.LogLevel)
	}
	options := &slog.HandlerOptions{Level: level}
	switch o.LogFormat {
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, options)), nil
	}
	return nil, fmt.Errorf("--log-format: found %q; allowed: text, json", o.LogFormat)
}

// LoadSite reads the site file.
func (o *Options) LoadSite() (*site.Site, error) {
	if o.Site == "" {
		return nil, errors.New("--site: found nothing; give the site file, as examples/site.yaml, or set AETHER_SITE")
	}
	return site.Load(o.Site)
}

// RestConfig returns how to reach the management cluster.
func (o *Options) RestConfig() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("management cluster: %w; give --kubeconfig or set KUBECONFIG", err)
	}
	config.QPS, config.Burst = 100, 200
	return config, nil
}

// Temporal returns how to reach Temporal.
func (o *Options) Temporal(log *slog.Logger) temporalclient.Options {
	return temporalclient.Options{Address: o.TemporalAddress, Namespace: o.TemporalNamespace, CodecKeys: o.CodecKeys, Log: log}
}
