package world

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"aether.internal/aether/lab/upstream"
)

// Options say what lab to start. All but the writers can be stored as JSON:
// that is how the outside of the namespaces hands them to the inside.
type Options struct {
	// Dir is the state folder: logs, site file, kubeconfigs, sockets and what
	// the parts keep. It is emptied of an earlier lab's state.
	Dir string `json:"dir"`
	// Source is the checkout, for examples/site.yaml and the lab's charts.
	Source string `json:"source"`
	// Self is a program that calls Dispatch first: the lab's binary, or a test
	// binary that uses RunTests. Empty is this process's own.
	Self string `json:"self"`
	// Speed scales the lab's latency table.
	Speed float64 `json:"speed"`
	// Programs are the upstream programs.
	Programs upstream.Paths `json:"programs"`
	// CAPI are the manifests of Cluster API core.
	CAPI upstream.CAPIManifests `json:"capi"`
	// Product is the folder of the product's binaries.
	Product string `json:"product"`
	// Parts names the parts to start, with all they need; empty is all.
	Parts []string `json:"parts,omitempty"`
	// Outside are the addresses of the machine's loopback that lead into the
	// lab, by name; see Forwards.
	Outside map[string]string `json:"outside,omitempty"`
	// ProxyURL is the CONNECT proxy on the machine's loopback; empty is none.
	ProxyURL string `json:"proxyURL,omitempty"`

	// Out gets a line for each part that is ready; nil is nobody.
	Out io.Writer `json:"-"`
	// Log gets what concerns the whole; nil discards it.
	Log *slog.Logger `json:"-"`
}

// optionsFile is where the options of a lab are stored in its state folder.
func optionsFile(dir string) string { return filepath.Join(dir, "options.json") }

// Store writes the options to the state folder.
func (o Options) Store() error {
	data, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return fmt.Errorf("store options: %w", err)
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return fmt.Errorf("store options: %w", err)
	}
	if err := os.WriteFile(optionsFile(o.Dir), data, 0o600); err != nil {
		return fmt.Errorf("store options: %w", err)
	}
	return nil
}

// LoadOptions reads the options that were stored in a state folder.
func LoadOptions(dir string) (Options, error) {
	var o Options
	data, err := os.ReadFile(optionsFile(dir))
	if err != nil {
		return o, fmt.Errorf("load options: %w", err)
	}
	if err := json.Unmarshal(data, &o); err != nil {
		return o, fmt.Errorf("load options: %s: %w", optionsFile(dir), err)
	}
	return o, nil
}

// complete checks the options and fills in what has a default.
func (o *Options) complete() error {
	if o.Dir == "" || o.Source == "" {
		return errors.New("options: Dir and Source must be set")
	}
	for _, dir := range []*string{&o.Dir, &o.Source, &o.Product} {
		if *dir == "" {
			continue
		}
		absolute, err := filepath.Abs(*dir)
		if err != nil {
			return fmt.Errorf("options: %w", err)
		}
		*dir = absolute
	}
	if o.Self == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("options: find this program: %w", err)
		}
		o.Self = self
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// stateEntries are what a lab leaves in its state folder.
func stateEntries() []string { return []string{"logs", "run", "site", "kubeconfig"} }

// prepareDir removes an earlier lab's state.
func (o *Options) prepareDir() error {
	for _, name := range stateEntries() {
		if err := os.RemoveAll(filepath.Join(o.Dir, name)); err != nil {
			return fmt.Errorf("empty state folder: %w", err)
		}
	}
	for _, name := range []string{"logs", "run"} {
		if err := os.MkdirAll(filepath.Join(o.Dir, name), 0o755); err != nil {
			return fmt.Errorf("make state folder: %w", err)
		}
	}
	return nil
}
