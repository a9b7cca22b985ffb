package cilium

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Times of cilium-dbg build-config. In a fast lab the first two are shorter, but
// never so short that a busy machine fails what would have worked.
const (
	configRetry     = 5 * time.Second
	configTimeout   = time.Minute
	configRequest   = 10 * time.Second
	shortestRetry   = 500 * time.Millisecond
	shortestTimeout = 10 * time.Second
)

// configMapDir is where the agent finds what build-config wrote.
const configMapDir = "/tmp/cilium/config-map"

// Debug is the main of cilium-dbg; build-config is all it knows.
func Debug(ctx context.Context, args []string, log *slog.Logger) error {
	if len(args) == 0 || args[0] != "build-config" {
		return fmt.Errorf("cilium-dbg: %q is not here; there is build-config", args)
	}
	flags := flag.NewFlagSet("build-config", flag.ContinueOnError)
	dest := flags.String("dest", configMapDir, "directory to write to")
	if err := flags.Parse(args[1:]); err != nil {
		return fmt.Errorf("build-config: %w", err)
	}
	log.Info("running build-config", "api_server_host", os.Getenv("KUBERNETES_SERVICE_HOST"), "api_server_port", os.Getenv("KUBERNETES_SERVICE_PORT"))
	api, err := inCluster()
	if err != nil {
		return err
	}
	lab, err := clock()
	if err != nil {
		return err
	}
	retry, timeout := max(lab.Scale(configRetry), shortestRetry), max(lab.Scale(configTimeout), shortestTimeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := buildConfig(ctx, api, *dest)
		if err == nil {
			log.Info("configuration written", "dest", *dest)
			return nil
		}
		log.Error("unable to build configuration, will retry", "error", err, "retry", retry)
		if pause(ctx, retry) != nil {
			return fmt.Errorf("failed to build configuration within %s: %w", timeout, err)
		}
	}
}

// buildConfig reads what the real one reads, in its order.
func buildConfig(ctx context.Context, api *clients, dest string) error {
	ctx, cancel := context.WithTimeout(ctx, configRequest)
	defer cancel()
	if _, err := api.core.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("unable to contact k8s api-server: %w", err)
	}
	namespace := os.Getenv("CILIUM_K8S_NAMESPACE")
	if namespace == "" {
		namespace = metav1.NamespaceSystem
	}
	config, err := api.core.CoreV1().ConfigMaps(namespace).Get(ctx, "cilium-config", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("failed to retrieve ConfigMap %s/cilium-config: %w", namespace, err)
	}
	data, err := withNodeConfigs(ctx, api, namespace, config)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dest, 0o755); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	for key, value := range data {
		if err := os.WriteFile(filepath.Join(dest, key), []byte(value), 0o644); err != nil {
			return fmt.Errorf("write configuration: %w", err)
		}
	}
	return nil
}

// withNodeConfigs lays CiliumNodeConfigs that select this node over the
// ConfigMap. Their CRD may not exist yet.
func withNodeConfigs(ctx context.Context, api *clients, namespace string, config *corev1.ConfigMap) (map[string]string, error) {
	resource := schema.GroupVersionResource{Group: crdGroup, Version: "v2", Resource: "ciliumnodeconfigs"}
	list, err := api.any.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return config.Data, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to list CiliumNodeConfigs: %w", err)
	}
	if len(list.Items) == 0 {
		return config.Data, nil
	}
	node, err := api.core.CoreV1().Nodes().Get(ctx, os.Getenv("K8S_NODE_NAME"), metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("failed to get node: %w", err)
	}
	data := map[string]string{}
	for key, value := range config.Data {
		data[key] = value
	}
	for i := range list.Items {
		if err := overlay(data, list.Items[i].Object, node.Labels); err != nil {
			return nil, fmt.Errorf("CiliumNodeConfig %s: %w", list.Items[i].GetName(), err)
		}
	}
	return data, nil
}

// SysctlFix is the main of the init container that writes the node's sysctl
// settings. On Talos the real one finds nothing to write to and ends well.
func SysctlFix(_ context.Context, _ []string, log *slog.Logger) error {
	log.Info("no sysctl.d on this host; nothing to do")
	return nil
}

// MountBPF is the main of the init container that mounts the BPF file system:
// the lab has none.
func MountBPF(_ context.Context, _ []string, log *slog.Logger) error {
	log.Info("bpf file system is not needed here")
	return nil
}

// CleanState is the main of the init container that forgets the agent's state
// when CILIUM_ALL_STATE asks for it.
func CleanState(_ context.Context, _ []string, log *slog.Logger) error {
	if os.Getenv("CILIUM_ALL_STATE") != "true" {
		log.Info("state is kept")
		return nil
	}
	if err := os.RemoveAll("/var/run/cilium/state"); err != nil {
		return fmt.Errorf("clean state: %w", err)
	}
	return nil
}

// InstallPlugin is the main of the init container that puts the CNI plugin on
// the host.
func InstallPlugin(_ context.Context, _ []string, log *slog.Logger) error {
	const target = "/host/opt/cni/bin"
	if _, err := os.Stat(target); err != nil {
		return fmt.Errorf("install CNI plugin: %w", err)
	}
	plugin := filepath.Join(target, "cilium-cni")
	if err := os.WriteFile(plugin, []byte("#!/bin/sh\n# the lab's kubelet attaches pods itself\n"), 0o755); err != nil { //nolint:gosec // a program
		return fmt.Errorf("install CNI plugin: %w", err)
	}
	log.Info("installed", "plugin", plugin)
	return nil
}

// Envoy is the main of cilium-envoy-starter.
func Envoy(ctx context.Context, _ []string, log *slog.Logger) error {
	if os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		return errors.New("KUBERNETES_SERVICE_HOST is not set")
	}
	log.Info("serving health and metrics")
	group, ctx := errgroup.WithContext(ctx)
	always := func() bool { return true }
	group.Go(func() error { return serveHealth(ctx, "127.0.0.1:9878", always) })
	group.Go(func() error { return serveHealth(ctx, ":9964", always) })
	return group.Wait()
}
