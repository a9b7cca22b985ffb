package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/worker"
	"golang.org/x/sync/errgroup"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/activities"
	"aether.internal/aether/internal/capi"
	"aether.internal/aether/internal/cilium"
	"aether.internal/aether/internal/config"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/envoy"
	"aether.internal/aether/internal/kamaji"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/internal/mirror"
	"aether.internal/aether/internal/site"
	"aether.internal/aether/internal/siteclients"
	"aether.internal/aether/internal/talos"
	"aether.internal/aether/internal/telemetry"
	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/workflows"
)

// stopTimeout lets activities save where they are when the process is stopped.
const stopTimeout = 5 * time.Second

func run(ctx context.Context, options config.Options, serving telemetry.Options, concurrency int) error {
	log, err := options.Logger()
	if err != nil {
		return err
	}
	s, err := options.LoadSite()
	if err != nil {
		return err
	}
	set, err := newActivities(options, s, log)
	if err != nil {
		return err
	}
	temporal, err := temporalclient.Dial(ctx, options.Temporal(log))
	if err != nil {
		return err
	}
	defer temporal.Close()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return telemetry.Serve(ctx, serving, func(ctx context.Context) error {
			return temporalclient.CheckWorker(ctx, temporal, workflows.TaskQueue)
		})
	})
	group.Go(func() error { return host(ctx, temporal, set, concurrency) })
	return group.Wait()
}

// host runs the worker until the context ends.
func host(ctx context.Context, temporal client.Client, set activities.Set, concurrency int) error {
	w := worker.New(temporal, workflows.TaskQueue, worker.Options{
		MaxConcurrentActivityExecutionSize: concurrency,
		WorkerStopTimeout:                  stopTimeout,
		Interceptors:                       []interceptor.WorkerInterceptor{activities.Heartbeats(time.Now)},
		MaxHeartbeatThrottleInterval:       time.Second,
		DefaultHeartbeatThrottleInterval:   time.Second,
	})
	workflows.Register(w)
	set.Register(w)
	interrupted := make(chan any)
	go func() {
		<-ctx.Done()
		close(interrupted)
	}()
	if err := w.Run(interrupted); err != nil {
		return fmt.Errorf("run worker: %w", err)
	}
	return nil
}

// newActivities makes the activities with their clients.
func newActivities(options config.Options, s *site.Site, log *slog.Logger) (activities.Set, error) {
	restConfig, err := options.RestConfig()
	if err != nil {
		return activities.Set{}, err
	}
	scheme, err := capi.Scheme()
	if err != nil {
		return activities.Set{}, err
	}
	kube, err := kubeclient.NewWithWatch(restConfig, kubeclient.Options{Scheme: scheme})
	if err != nil {
		return activities.Set{}, fmt.Errorf("management cluster: %w", err)
	}
	clients := siteclients.New(s, kube, log)
	platform := activities.Platform{Kube: kube, Site: s, Proxmox: clients.Proxmox}
	leases := lease.New(kube)
	tenants := &activities.TenantClients{Kube: kube}
	images, err := mirror.New(s)
	if err != nil {
		return activities.Set{}, err
	}
	controlPlanes, err := kamaji.New(kube, kamaji.Options{})
	if err != nil {
		return activities.Set{}, err
	}
	maintenance := talos.NewMaintenance(talos.MaintenanceOptions{})
	return activities.Set{
		Machines: &activities.Machines{Platform: platform, Leases: leases},
		Proxmox:  &activities.Proxmox{Platform: platform, Leases: leases, Door: clients.Door},
		Talos:    &activities.Talos{Platform: platform, Tenants: tenants, Maintenance: maintenance, Deliverer: maintenance, Now: time.Now},
		Nodes:    &activities.Nodes{Platform: platform, Tenants: tenants},
		Tenants:  &activities.Tenants{Platform: platform, Leases: leases, Images: images},
		Pools:    &activities.Pools{Platform: platform},
		Kamaji:   &activities.Kamaji{Platform: platform, ControlPlanes: controlPlanes},
		Envoy:    &activities.Envoy{Platform: platform, Leases: leases, Tenants: tenants, Store: envoy.NewStore(kube, domain.SystemNamespace, time.Now), Now: time.Now},
		Cilium:   &activities.Cilium{Platform: platform, Tenants: tenants, Releases: cilium.New(log)},
	}, nil
}
