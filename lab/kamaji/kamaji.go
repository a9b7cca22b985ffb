package kamaji

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/kamaji/v1alpha1"
	"aether.internal/aether/lab/latency"
)

// PlaceManager is the place of faults where the whole program can be Away:
// its controllers stand still and its webhooks refuse connections.
const PlaceManager = "kamaji/manager"

// PlaceDataStore is the place of faults where the DataStore can be Away.
const PlaceDataStore = "kamaji/datastore"

const pollFault = 100 * time.Millisecond

// Config is what the stand-in needs.
type Config struct {
	// RestConfig reaches the management cluster as an administrator.
	RestConfig *rest.Config
	// Clock scales its delays; nil is real time.
	Clock *latency.Clock
	// Faults may be nil.
	Faults *faults.Set
	Log    *slog.Logger

	// DataStore is taken by control planes that name none. Empty is "default".
	DataStore string
	// WebhookAddress is the host:port where the admission webhooks listen and
	// the management API server finds them. Empty leaves them unregistered:
	// then nothing is defaulted or refused beyond the CRD.
	WebhookAddress string
	// Workers reconcile control planes; 0 is the real one's default, 1.
	Workers int
	// Dial opens connections to tenants and to the DataStore; nil dials from
	// the calling thread's network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Started is the moment certificates are counted from, as the real one
	// counts them from the start of its process. Zero is the call of New.
	Started time.Time
}

// Kamaji is the stand-in. Run may be called again after it returned: that is
// a restart.
type Kamaji struct {
	cfg     Config
	scheme  *runtime.Scheme
	api     client.Client
	serving *keyPair
	hooksCA *keyPair
}

// New checks the configuration and makes the webhooks' certificate.
func New(cfg Config) (*Kamaji, error) {
	if cfg.RestConfig == nil {
		return nil, errors.New("kamaji: RestConfig: missing; give the management cluster's")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.DataStore == "" {
		cfg.DataStore = "default"
	}
	if cfg.Workers == 0 {
		cfg.Workers = 1
	}
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{}).DialContext
	}
	if cfg.Started.IsZero() {
		cfg.Started = time.Now()
	}
	if cfg.Clock == nil {
		clock, err := latency.NewClock(1)
		if err != nil {
			return nil, fmt.Errorf("kamaji: %w", err)
		}
		cfg.Clock = clock
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	api, err := client.New(cfg.RestConfig, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("kamaji: client: %w", err)
	}
	k := &Kamaji{cfg: cfg, scheme: scheme, api: client.WithFieldOwner(api, fieldManager)}
	if cfg.WebhookAddress != "" {
		if err := k.makeServingCertificate(); err != nil {
			return nil, fmt.Errorf("kamaji: webhooks: %w", err)
		}
	}
	return k, nil
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("kamaji: scheme: %w", err)
		}
	}
	return scheme, nil
}

// Run serves the webhooks and reconciles until the context ends. While the
// fault Away is in force at PlaceManager it does neither.
func (k *Kamaji) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		if k.away() {
			if err := pause(ctx, pollFault); err != nil {
				return nil //nolint:nilerr // the context's end is how Run ends
			}
			continue
		}
		if err := k.runOnce(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("kamaji: %w", err)
		}
	}
	return nil
}

func (k *Kamaji) away() bool { return k.cfg.Faults.InForce(PlaceManager, faults.Away) }

// runOnce runs a manager until the context ends or the program goes away.
func (k *Kamaji) runOnce(parent context.Context) error {
	ctx, stop := context.WithCancel(parent)
	defer stop()
	go func() {
		for pause(ctx, pollFault) == nil {
			if k.away() {
				k.cfg.Log.Info("kamaji goes away")
				stop()
			}
		}
	}()
	if k.cfg.WebhookAddress != "" {
		closeHooks, err := k.serveWebhooks(ctx)
		if err != nil {
			return err
		}
		defer closeHooks()
	}
	mgr, err := k.newManager()
	if err != nil {
		return err
	}
	return mgr.Start(logr.NewContext(ctx, k.logger()))
}

// logger is for the libraries: what they find worth telling is detail here.
func (k *Kamaji) logger() logr.Logger { return logr.FromSlogHandler(k.cfg.Log.Handler()).V(1) }

func (k *Kamaji) newManager() (ctrl.Manager, error) {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{labelProject: projectName})}
	skip := true
	mgr, err := ctrl.NewManager(k.cfg.RestConfig, ctrl.Options{
		Scheme:                 k.scheme,
		Logger:                 k.logger(),
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Controller:             config.Controller{SkipNameValidation: &skip},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: ours, &corev1.ConfigMap{}: ours, &corev1.Service{}: ours, &appsv1.Deployment{}: ours,
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("manager: %w", err)
	}
	for _, setUp := range []func(ctrl.Manager) error{k.setUpWalk, k.setUpSoot, k.setUpDataStores} {
		if err := setUp(mgr); err != nil {
			return nil, err
		}
	}
	return mgr, nil
}

// quiet keeps errors that are only the end of the context from the log.
type quiet struct{ reconcile.Reconciler }

// Reconcile passes the call on.
func (q quiet) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	result, err := q.Reconciler.Reconcile(ctx, req)
	if ctx.Err() != nil {
		return reconcile.Result{}, nil //nolint:nilerr // the program is ending
	}
	return result, err
}

// pause waits, and returns the context's error when that ends first.
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
