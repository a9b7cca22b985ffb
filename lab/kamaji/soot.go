package kamaji

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

// sootStop is how long a tenant-side manager may take to stop when its API
// server is already gone; then it is left alone.
const sootStop = 10 * time.Second

const sootWorkers = 4

// soot keeps one tenant-side manager for each control plane that is up.
type soot struct {
	*Kamaji

	mu      sync.Mutex
	tenants map[types.NamespacedName]*tenant
}

// tenant is a running tenant-side manager.
type tenant struct {
	stop  context.CancelFunc
	done  chan struct{}
	nudge chan struct{}
}

func (k *Kamaji) setUpSoot(mgr ctrl.Manager) error {
	s := &soot{Kamaji: k, tenants: map[types.NamespacedName]*tenant{}}
	err := ctrl.NewControllerManagedBy(mgr).Named("soot").
		For(&v1alpha1.TenantControlPlane{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: sootWorkers}).
		Complete(quiet{s})
	if err != nil {
		return fmt.Errorf("set up the soot manager: %w", err)
	}
	return nil
}

// Reconcile starts, stops or nudges the tenant-side manager.
func (s *soot) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	tcp := &v1alpha1.TenantControlPlane{}
	if err := s.api.Get(ctx, req.NamespacedName, tcp); err != nil {
		if client.IgnoreNotFound(err) == nil {
			s.halt(ctx, req.NamespacedName, false)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, err
	}
	if _, paused := tcp.Annotations[annotationPaused]; paused {
		return ctrl.Result{}, nil
	}
	word := tcp.Status.Kubernetes.Version.Status
	switch {
	case !tcp.DeletionTimestamp.IsZero():
		s.halt(ctx, req.NamespacedName, false)
		return ctrl.Result{}, s.release(ctx, tcp)
	case slices.Contains([]v1alpha1.KubernetesVersionStatus{v1alpha1.VersionNotReady, v1alpha1.VersionSleeping, v1alpha1.VersionCARotating}, word):
		s.halt(ctx, req.NamespacedName, word == v1alpha1.VersionSleeping)
		return ctrl.Result{}, s.release(ctx, tcp)
	case word == v1alpha1.VersionReady || word == v1alpha1.VersionWriteLimited:
		return ctrl.Result{}, s.start(ctx, tcp)
	}
	s.wake(req.NamespacedName)
	return ctrl.Result{}, nil
}

func (s *soot) start(ctx context.Context, tcp *v1alpha1.TenantControlPlane) error {
	if controllerutil.AddFinalizer(tcp, sootFinalizer) {
		if err := s.api.Update(ctx, tcp); err != nil {
			return fmt.Errorf("add soot finalizer: %w", err)
		}
	}
	key := client.ObjectKeyFromObject(tcp)
	s.mu.Lock()
	defer s.mu.Unlock()
	if running := s.tenants[key]; running != nil {
		running.wake()
		return nil
	}
	// The context of a call is that of the controller: the tenant's manager
	// outlives the call, not the program.
	ctx, stop := context.WithCancel(ctx)
	t := &tenant{stop: stop, done: make(chan struct{}), nudge: make(chan struct{}, 1)}
	s.tenants[key] = t
	go func() {
		defer close(t.done)
		(&inside{Kamaji: s.Kamaji, log: s.cfg.Log.With("tenant", key.String()), key: key, nudge: t.nudge}).run(ctx)
	}()
	return nil
}

// halt stops a manager and waits for it. When the tenant's API server went
// first, the real one waits its whole limit.
func (s *soot) halt(ctx context.Context, key types.NamespacedName, gone bool) {
	s.mu.Lock()
	t := s.tenants[key]
	delete(s.tenants, key)
	s.mu.Unlock()
	if t == nil {
		return
	}
	t.stop()
	if gone {
		if pause(ctx, s.cfg.Clock.Scale(sootStop)) == nil {
			s.cfg.Log.Debug("soot manager didn't exit to timeout", "tenant", key.String())
		}
	}
	<-t.done
}

func (s *soot) release(ctx context.Context, tcp *v1alpha1.TenantControlPlane) error {
	if !controllerutil.RemoveFinalizer(tcp, sootFinalizer) {
		return nil
	}
	if err := client.IgnoreNotFound(s.api.Update(ctx, tcp)); err != nil {
		return fmt.Errorf("remove soot finalizer: %w", err)
	}
	return nil
}

func (s *soot) wake(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tenants[key]; t != nil {
		t.wake()
	}
}

func (t *tenant) wake() {
	select {
	case t.nudge <- struct{}{}:
	default:
	}
}
