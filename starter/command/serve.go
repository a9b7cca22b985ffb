package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/internal/capi"
	"aether.internal/aether/internal/codec"
	"aether.internal/aether/internal/config"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/envoy"
	"aether.internal/aether/internal/telemetry"
	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/workflows"
)

func newServe(options *config.Options) *cobra.Command {
	command := group(&cobra.Command{Use: "serve", Short: "Run one of the platform's own servers"})
	command.AddCommand(newServeShim(options), newServeXDS(options), newServeCodec(options))
	return command
}

func newServeShim(options *config.Options) *cobra.Command {
	var metrics, health string
	var elect bool
	command := &cobra.Command{
		Use:   "shim",
		Short: "Run the Cluster API provider: objects into workflows",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := options.Logger()
			if err != nil {
				return err
			}
			site, err := options.LoadSite()
			if err != nil {
				return err
			}
			restConfig, err := options.RestConfig()
			if err != nil {
				return err
			}
			temporal, err := temporalclient.Lazy(options.Temporal(log))
			if err != nil {
				return err
			}
			defer temporal.Close()
			return capi.Run(cmd.Context(), capi.Options{
				RestConfig: restConfig, Processes: temporalclient.NewProcesses(temporal, workflows.TaskQueue), Site: site, Log: log,
				MetricsAddress: metrics, HealthAddress: health, LeaderElection: elect,
			})
		},
	}
	command.Flags().StringVar(&metrics, "metrics-address", "127.0.0.1:8080", "where to serve /metrics; 0 for nowhere")
	command.Flags().StringVar(&health, "health-address", "127.0.0.1:8081", "where to serve /healthz and /readyz; 0 for nowhere")
	command.Flags().BoolVar(&elect, "leader-elect", true, "let one of several replicas act")
	return command
}

func newServeXDS(options *config.Options) *cobra.Command {
	var serving telemetry.Options
	command := &cobra.Command{
		Use:   "xds",
		Short: "Serve the proxies their configuration and certificates",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := options.Logger()
			if err != nil {
				return err
			}
			return serveXDS(cmd.Context(), options, serving, log)
		},
	}
	serving.Bind(command.Flags())
	return command
}

// errNotSynced tells that the tenants are not known yet.
var errNotSynced = errors.New("the tenants' objects are not read yet")

func serveXDS(ctx context.Context, options *config.Options, serving telemetry.Options, log *slog.Logger) error {
	site, err := options.LoadSite()
	if err != nil {
		return err
	}
	restConfig, err := options.RestConfig()
	if err != nil {
		return err
	}
	scheme, err := capi.Scheme()
	if err != nil {
		return err
	}
	kube, err := kubeclient.New(restConfig, kubeclient.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("management cluster: %w", err)
	}
	objects, err := ctrlcache.New(restConfig, ctrlcache.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("management cluster: %w", err)
	}
	listen := net.ListenConfig{}
	xds, err := listen.Listen(ctx, "tcp", site.Spec.Proxy.XDS.String())
	if err != nil {
		return fmt.Errorf("spec.proxy.xds of the site: %w", err)
	}
	enrolment, err := listen.Listen(ctx, "tcp", site.Spec.Proxy.Enrolment.String())
	if err != nil {
		return fmt.Errorf("spec.proxy.enrolment of the site: %w", err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return objects.Start(ctx) })
	group.Go(func() error {
		return telemetry.Serve(ctx, serving, func(ctx context.Context) error {
			if !objects.WaitForCacheSync(ctx) {
				return errNotSynced
			}
			return nil
		})
	})
	group.Go(func() error {
		return envoy.Serve(ctx, envoy.Config{
			Client: kube, Namespace: domain.SystemNamespace, XDS: xds, Enrolment: enrolment, Log: log,
			Source: envoy.NewClusterSource(objects),
		})
	})
	return group.Wait()
}

func newServeCodec(options *config.Options) *cobra.Command {
	var address string
	var origins []string
	var serving telemetry.Options
	command := &cobra.Command{
		Use:   "codec",
		Short: "Decode payloads for Temporal's web UI",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			keys, err := codec.LoadKeys(options.CodecKeys)
			if err != nil {
				return err
			}
			group, ctx := errgroup.WithContext(cmd.Context())
			group.Go(func() error {
				return telemetry.Serve(ctx, serving, func(context.Context) error { return nil })
			})
			group.Go(func() error {
				return telemetry.HTTP(ctx, "--listen-address", address, codec.Handler(codec.New(keys), origins))
			})
			return group.Wait()
		},
	}
	serving.Bind(command.Flags())
	command.Flags().StringVar(&address, "listen-address", "127.0.0.1:8088", "where to listen; what is served is clear text, so keep it on loopback or behind authentication")
	command.Flags().StringSliceVar(&origins, "origin", []string{"http://127.0.0.1:8233"}, "pages that may call, as http://127.0.0.1:8233; repeat for more")
	return command
}
