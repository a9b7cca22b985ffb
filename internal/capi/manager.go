package capi

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	controlplanev1 "aether.internal/aether/api/controlplane/v1alpha1"
	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/site"
	"aether.internal/aether/internal/temporalclient"
)

// Processes is what the shim needs of Temporal.
type Processes interface {
	Start(ctx context.Context, r temporalclient.Request) (temporalclient.Run, error)
	Latest(ctx context.Context, id string) (temporalclient.Run, bool, error)
	Cancel(ctx context.Context, id string) error
}

// Options are what the shim is made of.
type Options struct {
	RestConfig *rest.Config
	Processes  Processes
	Site       *site.Site
	Log        *slog.Logger
	// MetricsAddress and HealthAddress to listen on; 0 switches off.
	MetricsAddress, HealthAddress string
	// LeaderElection lets several replicas run, of which one acts.
	LeaderElection bool
}

// Scheme returns the scheme of the objects that the shim and the activities
// work with.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, clusterv1.AddToScheme, v1alpha1.AddToScheme, controlplanev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("build scheme: %w", err)
		}
	}
	return scheme, nil
}

// Run runs the shim until the context ends.
func Run(ctx context.Context, o Options) error {
	scheme, err := Scheme()
	if err != nil {
		return err
	}
	ofTenants, err := labels.NewRequirement(domain.TenantLabel, selection.Exists, nil)
	if err != nil {
		return fmt.Errorf("select the tenants' Secrets: %w", err)
	}
	ctrl.SetLogger(logr.FromSlogHandler(o.Log.Handler()))
	manager, err := ctrl.NewManager(o.RestConfig, ctrl.Options{
		Scheme: scheme,
		// Of all Secrets only tenants' are looked at, so only those are held.
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Label: labels.NewSelector().Add(*ofTenants)},
		}},
		Metrics:                 metricsserver.Options{BindAddress: o.MetricsAddress},
		HealthProbeBindAddress:  o.HealthAddress,
		LeaderElection:          o.LeaderElection,
		LeaderElectionID:        "aether-shim",
		LeaderElectionNamespace: domain.SystemNamespace,
	})
	if err != nil {
		return fmt.Errorf("make manager: %w", err)
	}
	recorder := manager.GetEventRecorder("aether")
	approver := newApprover(manager.GetClient(), o.Log)
	for _, setup := range []func(ctrl.Manager) error{
		(&clusterReconciler{client: manager.GetClient(), processes: o.Processes, events: recorder}).setup,
		(&machineReconciler{client: manager.GetClient(), reader: manager.GetAPIReader(), processes: o.Processes, site: o.Site, events: recorder}).setup,
		(&templateReconciler{client: manager.GetClient(), site: o.Site}).setup,
		(&tenantWatcher{client: manager.GetClient(), approver: approver}).setup,
	} {
		if err := setup(manager); err != nil {
			return fmt.Errorf("set up reconciler: %w", err)
		}
	}
	if err := manager.Add(approver); err != nil {
		return fmt.Errorf("add approver: %w", err)
	}
	if err := addChecks(manager); err != nil {
		return err
	}
	return manager.Start(ctx)
}
