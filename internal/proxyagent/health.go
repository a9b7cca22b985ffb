package proxyagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// HealthPath is where the agent answers for itself.
const HealthPath = "/healthz"

const (
	adminTimeout = 2 * time.Second
	maxAdmin     = 1 << 20
	statListener = "listener_manager.lds.version_text"
	statCluster  = "cluster_manager.cds.version_text"
)

// Health is the body of the answer on HealthPath. The code is 200 when the
// proxy is fit to serve, and 503 when it is not.
type Health struct {
	// Ready sums it up: enrolled, not expired, Envoy live with a configuration.
	Ready bool `json:"ready"`
	// Enrolled tells that the machine has a certificate, good until NotAfter.
	Enrolled bool      `json:"enrolled"`
	NotAfter time.Time `json:"notAfter,omitzero"`
	// Refused says why there will be no certificate.
	Refused string `json:"refused,omitempty"`
	// EnvoyReady is what Envoy says of itself.
	EnvoyReady bool `json:"envoyReady"`
	// ConfigVersion is the version that Envoy's listeners run, and
	// ClusterVersion that of its clusters.
	ConfigVersion  string `json:"configVersion,omitempty"`
	ClusterVersion string `json:"clusterVersion,omitempty"`
	// LinkUp tells whether the tenant-side card has carrier, and Announced how
	// often the address was announced.
	LinkUp    bool `json:"linkUp"`
	Announced int  `json:"announced"`
}

// health collects what the parts of the agent report.
type health struct {
	admin string
	now   func() time.Time

	mu   sync.Mutex
	told Health
}

func (h *health) enrolled(notAfter time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told.Enrolled, h.told.NotAfter, h.told.Refused = true, notAfter, ""
}

func (h *health) refuse(reason error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told.Enrolled, h.told.Refused = false, reason.Error()
}

func (h *health) link(up bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told.LinkUp = up
}

func (h *health) announced() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told.Announced++
}

// read asks Envoy and sums up. A certificate that ran out is told as such even
// if its keeper has not looked yet.
func (h *health) read(ctx context.Context) Health {
	h.mu.Lock()
	now := h.told
	h.mu.Unlock()
	now.Enrolled = now.Enrolled && h.now().Before(now.NotAfter)
	_, err := h.ask(ctx, "/ready")
	now.EnvoyReady = err == nil
	if stats, err := h.ask(ctx, "/stats?filter=version_text"); err == nil {
		now.ConfigVersion = textStat(stats, statListener)
		now.ClusterVersion = textStat(stats, statCluster)
	}
	now.Ready = now.Enrolled && now.EnvoyReady && now.ConfigVersion != ""
	return now
}

func (h *health) ask(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.admin+path, http.NoBody)
	if err != nil {
		return "", fmt.Errorf("ask Envoy %s: %w", path, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", fmt.Errorf("ask Envoy %s: %w", path, err)
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAdmin))
	if err != nil {
		return "", fmt.Errorf("ask Envoy %s: %w", path, err)
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("ask Envoy %s: %s", path, response.Status)
	}
	return string(data), nil
}

// textStat finds a text in Envoy's list of statistics: `name: "value"`.
func textStat(stats, name string) string {
	for line := range strings.Lines(stats) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), name+": "); found {
			return strings.Trim(value, `"`)
		}
	}
	return ""
}

// serve answers on the listener until the context ends.
func (h *health) serve(ctx context.Context, listener net.Listener, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+HealthPath, func(w http.ResponseWriter, r *http.Request) {
		now := h.read(r.Context())
		w.Header().Set("Content-Type", "application/json")
		if !now.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if err := json.NewEncoder(w).Encode(now); err != nil {
			log.Debug("health not sent", "error", err)
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: adminTimeout}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("health: %w", err)
	}
	return nil
}
