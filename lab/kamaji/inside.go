package kamaji

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/lab/kamaji/v1alpha1"
	"aether.internal/aether/lab/latency"
)

const (
	nsSystem = "kube-system"
	nsPublic = "kube-public"

	// Of the time that the tenant side comes after Ready, this part passes
	// before the first object; the rest is spread over the objects.
	insideLead  = 0.8
	insideEach  = 0.025
	insideRetry = time.Second
	healDelay   = 100 * time.Millisecond
	syncTimeout = 15 * time.Second
)

// inside is what Kamaji does in one tenant: it makes the objects and puts
// back what was changed.
type inside struct {
	*Kamaji
	log   *slog.Logger
	key   types.NamespacedName
	nudge chan struct{}

	api   client.Client // of the tenant; reads come from a cache
	caPEM []byte
	set   bool // the tenant side was complete once
	open  bool // nothing blocks writes
}

// run serves the tenant until the context ends, and begins anew when the
// connection cannot be made.
func (n *inside) run(ctx context.Context) {
	if n.cfg.Clock.Sleep(ctx, latency.KamajiTenantSide, insideLead) != nil {
		return
	}
	for ctx.Err() == nil {
		if err := n.serve(ctx); err != nil && ctx.Err() == nil {
			n.log.Debug("tenant side", "error", err)
		}
		if pause(ctx, n.cfg.Clock.Scale(insideRetry)) != nil {
			return
		}
	}
}

func (n *inside) serve(parent context.Context) error {
	ctx, stop := context.WithCancel(logr.NewContext(parent, n.logger()))
	defer stop()
	if err := n.connect(ctx); err != nil {
		return err
	}
	for {
		if err := n.heal(ctx); err != nil {
			n.log.Debug("tenant side is not complete", "error", err)
			if pause(ctx, healDelay) != nil {
				return nil //nolint:nilerr // the end of the context is the end of the work
			}
			continue
		}
		n.set = true
		select {
		case <-ctx.Done():
			return nil
		case <-n.nudge:
		}
		if pause(ctx, healDelay) != nil { // several changes at once are one
			return nil //nolint:nilerr // as above
		}
	}
}

// connect opens the tenant with the super administrator's credentials, at the
// Service's name, and watches what is healed.
func (n *inside) connect(ctx context.Context) error {
	cfg, err := n.tenantConfig(ctx)
	if err != nil {
		return err
	}
	watched, err := cache.New(cfg, cache.Options{Scheme: n.scheme, ByObject: watchedObjects()})
	if err != nil {
		return fmt.Errorf("tenant cache: %w", err)
	}
	handler := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { n.wake() },
		UpdateFunc: func(any, any) { n.wake() },
		DeleteFunc: func(any) { n.wake() },
	}
	for object := range watchedObjects() {
		informer, err := watched.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch tenant: %w", err)
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watch tenant: %w", err)
		}
	}
	go func() {
		if err := watched.Start(ctx); err != nil {
			n.log.Debug("tenant cache", "error", err)
		}
	}()
	wait, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	if !watched.WaitForCacheSync(wait) {
		return fmt.Errorf("tenant cache did not fill within %s", syncTimeout)
	}
	api, err := client.New(cfg, client.Options{Scheme: n.scheme, Cache: &client.CacheOptions{
		Reader: watched, DisableFor: []client.Object{writeHooks(v1alpha1.Permissions{})},
	}})
	if err != nil {
		return fmt.Errorf("tenant client: %w", err)
	}
	n.api = client.WithFieldOwner(api, fieldManager)
	return nil
}

func watchedObjects() map[client.Object]cache.ByObject {
	in := func(namespaces ...string) cache.ByObject {
		by := cache.ByObject{Namespaces: map[string]cache.Config{}}
		for _, namespace := range namespaces {
			by.Namespaces[namespace] = cache.Config{}
		}
		return by
	}
	return map[client.Object]cache.ByObject{
		&corev1.ConfigMap{}: in(nsSystem, nsPublic), &rbacv1.Role{}: in(nsSystem, nsPublic), &rbacv1.RoleBinding{}: in(nsSystem, nsPublic),
		&rbacv1.ClusterRole{}: {}, &rbacv1.ClusterRoleBinding{}: {},
		&corev1.ServiceAccount{}: in(nsSystem), &corev1.Service{}: in(nsSystem),
		&appsv1.Deployment{}: in(nsSystem), &appsv1.DaemonSet{}: in(nsSystem),
	}
}

func (n *inside) wake() {
	select {
	case n.nudge <- struct{}{}:
	default:
	}
}

// tenantConfig dials the Service's DNS name, as the real one does; here the
// name is resolved by looking at the Service's endpoints.
func (n *inside) tenantConfig(ctx context.Context) (*rest.Config, error) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: n.key.Namespace, Name: n.key.Name + "-" + suffixAdmin}}
	if err := n.management().Get(ctx, client.ObjectKeyFromObject(secret), secret); err != nil {
		return nil, fmt.Errorf("read secret %s: %w", secret.Name, err)
	}
	cluster, user, err := readKubeconfig(secret.Data["super-admin.svc"])
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", secret.Name, err)
	}
	n.caPEM = cluster.CertificateAuthorityData
	return &rest.Config{
		Host:            cluster.Server,
		TLSClientConfig: rest.TLSClientConfig{CAData: cluster.CertificateAuthorityData, CertData: user.ClientCertificateData, KeyData: user.ClientKeyData},
		Dial:            n.dialService,
		QPS:             -1,
	}, nil
}

// management is the client of the management cluster, which the tenant's
// shadows.
func (n *inside) management() client.Client { return n.Kamaji.api }
