package kamaji

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"aether.internal/aether/lab/kamaji/v1alpha1"
	"aether.internal/aether/lab/latency"
)

// retryAfter is how long a control plane that cannot be made waits.
const retryAfter = time.Second

// errWaiting ends a pass that lacks something which is nobody's mistake.
var errWaiting = errors.New("waiting")

// walker turns one TenantControlPlane at a time into its objects.
type walker struct{ *Kamaji }

func (k *Kamaji) setUpWalk(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).Named("tenantcontrolplane").
		For(&v1alpha1.TenantControlPlane{}).
		Owns(&corev1.Service{}).Owns(&corev1.ConfigMap{}).Owns(&corev1.Secret{}).Owns(&appsv1.Deployment{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: k.cfg.Workers}).
		Complete(quiet{&walker{k}})
	if err != nil {
		return fmt.Errorf("set up the walk: %w", err)
	}
	return nil
}

// Reconcile makes one pass. What keeps a pass from its end is in the log of
// level debug and nowhere else.
func (w *walker) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	tcp := &v1alpha1.TenantControlPlane{}
	if err := w.api.Get(ctx, req.NamespacedName, tcp); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if _, paused := tcp.Annotations[annotationPaused]; paused {
		return ctrl.Result{}, nil
	}
	log := w.cfg.Log.With("tenant", req.String())
	var again time.Duration
	var err error
	if tcp.DeletionTimestamp.IsZero() {
		p := &pass{Kamaji: w.Kamaji, log: log, tcp: tcp, secrets: map[string]*corev1.Secret{}}
		err = p.run(ctx)
		again = p.again
	} else {
		err = w.remove(ctx, tcp)
	}
	if err != nil {
		log.Debug("pass did not reach its end", "error", err)
		return ctrl.Result{RequeueAfter: w.cfg.Clock.Scale(retryAfter)}, nil
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// pass is one walk over all steps, with what the steps learn on the way.
type pass struct {
	*Kamaji
	log *slog.Logger
	tcp *v1alpha1.TenantControlPlane

	store        *store
	service      *corev1.Service
	host         string // the address on the management side
	ca           *keyPair
	frontProxyCA *keyPair
	secrets      map[string]*corev1.Secret // by suffix
	deployment   *appsv1.Deployment

	again time.Duration // when to pass again though nothing changed
}

// step ensures one object and its entry in the status, and tells whether it
// wrote anything.
type step func(context.Context) (bool, error)

func (p *pass) steps() []step {
	return []step{
		p.ensureService, p.ensureFirstStatus, p.ensureKubeadmConfig,
		p.ensureCA, p.ensureFrontProxyCA, p.ensureServiceAccountKey,
		p.ensureAPIServerCertificate, p.ensureKubeletClient, p.ensureFrontProxyClient,
		p.ensureAdmin, p.ensureSuperAdmin, p.ensureControllerManager, p.ensureScheduler,
		p.ensureStoreConfig, p.ensureFinalizer, p.ensureStoreSetup, p.ensureStoreCertificate,
		p.ensureKonnectivity, p.ensureDeployment, p.ensureVersionStatus,
		p.ensureTunnel, p.ensureObserved,
	}
}

// run takes the steps in order; the first that fails ends the pass. A step
// that wrote takes at least its time in the latency table.
func (p *pass) run(ctx context.Context) error {
	store, err := p.loadStore(ctx, p.storeName())
	if err != nil {
		return err
	}
	p.store = store
	for _, do := range p.steps() {
		begin := time.Now()
		wrote, err := do(ctx)
		if err != nil {
			return err
		}
		if !wrote {
			continue
		}
		if rest := p.cfg.Clock.Of(latency.KamajiStep) - time.Since(begin); rest > 0 {
			if err := pause(ctx, rest); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *pass) storeName() string {
	if p.tcp.Spec.DataStore != "" {
		return p.tcp.Spec.DataStore
	}
	return p.cfg.DataStore
}

func (p *pass) spec() *v1alpha1.TenantControlPlaneSpec { return &p.tcp.Spec }

func (p *pass) port() int32 { return p.tcp.Spec.NetworkProfile.Port }

// name returns the name of an object of this tenant.
func (p *pass) name(suffix string) string { return p.tcp.Name + "-" + suffix }

// advertise is the address that the tenant's own clients are told.
func (p *pass) advertise() string {
	if address := p.tcp.Spec.NetworkProfile.AdvertiseAddress; address != "" {
		return address
	}
	return p.host
}

// own marks an object as this tenant's.
func (p *pass) own(object client.Object, component string) error {
	labels := object.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	for key, value := range objectLabels(p.tcp.Name, component) {
		labels[key] = value
	}
	object.SetLabels(labels)
	return controllerutil.SetControllerReference(p.tcp, object, p.scheme)
}

// setStatus changes the status and writes it if that changed anything.
func (p *pass) setStatus(ctx context.Context, change func(*v1alpha1.TenantControlPlaneStatus)) (bool, error) {
	return p.updateStatus(ctx, p.tcp, change)
}

// updateStatus retries on conflicts, since two controllers write it.
func (k *Kamaji) updateStatus(ctx context.Context, tcp *v1alpha1.TenantControlPlane, change func(*v1alpha1.TenantControlPlaneStatus)) (bool, error) {
	wrote, first := false, true
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if !first {
			fresh := &v1alpha1.TenantControlPlane{}
			if err := k.api.Get(ctx, client.ObjectKeyFromObject(tcp), fresh); err != nil {
				return err
			}
			fresh.Spec, fresh.Generation = tcp.Spec, tcp.Generation // this pass goes on with what it began with
			*tcp = *fresh
		}
		first = false
		before := tcp.Status.DeepCopy()
		change(&tcp.Status)
		if equality.Semantic.DeepEqual(before, &tcp.Status) {
			return nil
		}
		wrote = true
		return k.api.Status().Update(ctx, tcp)
	})
	if err != nil {
		return false, fmt.Errorf("write status: %w", err)
	}
	return wrote, nil
}

// fetch reads an object, and tells whether it exists.
func (k *Kamaji) fetch(ctx context.Context, object client.Object) (bool, error) {
	err := k.api.Get(ctx, client.ObjectKeyFromObject(object), object)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

func (p *pass) ensureFinalizer(ctx context.Context) (bool, error) {
	if controllerutil.ContainsFinalizer(p.tcp, finalizer) {
		return false, nil
	}
	status := p.tcp.Status
	controllerutil.AddFinalizer(p.tcp, finalizer)
	// A whole update: it also writes out the empty structs of our types, which
	// is why the generation of every control plane begins at 2.
	if err := p.api.Update(ctx, p.tcp); err != nil {
		return false, fmt.Errorf("add finalizer: %w", err)
	}
	p.tcp.Status = status
	return true, nil
}

func (p *pass) ensureObserved(ctx context.Context) (bool, error) {
	return p.setStatus(ctx, func(s *v1alpha1.TenantControlPlaneStatus) { s.ObservedGeneration = p.tcp.Generation })
}

// now is a time as the status holds it: whole seconds.
func now() *metav1.Time {
	t := metav1.Now().Rfc3339Copy()
	return &t
}
