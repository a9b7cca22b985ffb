package cilium

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"aether.internal/aether/lab/latency"
)

// SpeedVariable is how a container learns the speed of the lab's clock.
const SpeedVariable = "AETHER_LAB_SPEED"

// clients are the ways to the API server.
type clients struct {
	config *rest.Config
	core   kubernetes.Interface
	crds   apiextensions.Interface
	any    dynamic.Interface
}

// inCluster connects with nothing but what the pod was given.
func inCluster() (*clients, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("unable to create k8s client: %w", err)
	}
	return newClients(config)
}

func newClients(config *rest.Config) (*clients, error) {
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("unable to create k8s client: %w", err)
	}
	crds, err := apiextensions.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("unable to create k8s client: %w", err)
	}
	untyped, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("unable to create k8s client: %w", err)
	}
	return &clients{config: config, core: core, crds: crds, any: untyped}, nil
}

// nodesResource is where the CiliumNodes are.
func nodesResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: crdGroup, Version: "v2", Resource: "ciliumnodes"}
}

// settings are the keys of the configuration, one file each.
type settings map[string]string

func readSettings(dir string) (settings, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("config directory: %w", err)
	}
	found := settings{}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			var isDir *fs.PathError
			if errors.As(err, &isDir) && entry.IsDir() {
				continue
			}
			return nil, fmt.Errorf("config directory: %w", err)
		}
		found[entry.Name()] = strings.TrimSpace(string(data))
	}
	return found, nil
}

// get returns a key, or the fallback if it is missing or empty.
func (s settings) get(key, fallback string) string {
	if value := s[key]; value != "" {
		return value
	}
	return fallback
}

// clock returns the lab's clock as the container knows it.
func clock() (*latency.Clock, error) {
	speed := 1.0
	if text := os.Getenv(SpeedVariable); text != "" {
		var err error
		if speed, err = strconv.ParseFloat(text, 64); err != nil {
			return nil, fmt.Errorf("%s: %w", SpeedVariable, err)
		}
	}
	return latency.NewClock(speed)
}

// serveHealth answers 200 on every path while ok says so, else 503.
func serveHealth(ctx context.Context, address string, ok func() bool) error {
	server := &http.Server{
		Addr: address, ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if !ok() {
				http.Error(w, "not ready", http.StatusServiceUnavailable)
				return
			}
			_, _ = io.WriteString(w, "ok") // the prober may be gone
		}),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", address, err)
	}
	return nil
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
