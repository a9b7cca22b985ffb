package cilium

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"helm.sh/helm/v3/pkg/action"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// getter hands a kubeconfig's bytes to Helm, which would otherwise read files
// and the environment.
type getter struct {
	raw  []byte
	rest *rest.Config
}

func newGetter(kubeconfig []byte) (*getter, error) {
	config, err := restConfig(kubeconfig)
	return &getter{raw: kubeconfig, rest: config}, err
}

func restConfig(kubeconfig []byte) (*rest.Config, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		// The parser's error may quote what it read.
		return nil, errors.New("the tenant's kubeconfig does not parse")
	}
	config.Timeout = callTimeout
	config.QPS, config.Burst = 50, 100
	return config, nil
}

// ToRESTConfig implements action.RESTClientGetter.
func (g *getter) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(g.rest), nil }

// ToDiscoveryClient implements action.RESTClientGetter.
func (g *getter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	client, err := discovery.NewDiscoveryClientForConfig(g.rest)
	if err != nil {
		return nil, fmt.Errorf("make a discovery client: %w", err)
	}
	return memory.NewMemCacheClient(client), nil
}

// ToRESTMapper implements action.RESTClientGetter.
func (g *getter) ToRESTMapper() (meta.RESTMapper, error) {
	client, err := g.ToDiscoveryClient()
	if err != nil {
		return nil, err
	}
	return restmapper.NewDeferredDiscoveryRESTMapper(client), nil
}

// ToRawKubeConfigLoader implements genericclioptions.RESTClientGetter.
func (g *getter) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	config, err := clientcmd.NewClientConfigFromBytes(g.raw)
	if err != nil {
		// newGetter has parsed it, so this is never reached; the interface
		// has no room for an error.
		return clientcmd.NewDefaultClientConfig(clientcmdapi.Config{}, nil)
	}
	return config
}

// configuration is Helm's, for one tenant.
func configuration(kubeconfig []byte, log *slog.Logger) (*action.Configuration, error) {
	g, err := newGetter(kubeconfig)
	if err != nil {
		return nil, err
	}
	config := &action.Configuration{}
	debug := func(format string, arguments ...any) { log.Debug("helm", "message", fmt.Sprintf(format, arguments...)) }
	if err := config.Init(g, Namespace, "secret", debug); err != nil {
		return nil, fmt.Errorf("set up helm: %w", err)
	}
	return config, nil
}

const (
	lockName  = "aether-cilium-release"
	lockTTL   = 15 * time.Second
	lockRenew = 4 * time.Second
	lockPoll  = time.Second
)

// lockTenant takes the one writer's Lease in the tenant and renews it until
// unlock. A writer that died loses it after lockTTL.
func lockTenant(ctx context.Context, kubeconfig []byte, beat func(string)) (func(), error) {
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of the tenant: %w", err)
	}
	return lock(ctx, client, beat)
}

func lock(ctx context.Context, client kubernetes.Interface, beat func(string)) (func(), error) {
	me := uuid.NewString()
	for {
		holder, err := takeLock(ctx, client, me)
		if err != nil {
			return nil, fmt.Errorf("take the lock of release %s: %w", ReleaseName, err)
		}
		if holder == me {
			break
		}
		if beat != nil {
			beat("another writer of release " + ReleaseName + " to end or time out")
		}
		timer := time.NewTimer(lockPoll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("wait for another writer of release %s: %w", ReleaseName, ctx.Err())
		case <-timer.C:
		}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go keepLock(context.WithoutCancel(ctx), client, me, beat, stop, done)
	return func() {
		close(stop)
		<-done
	}, nil
}

// keepLock renews the lock until stop, then gives it back.
func keepLock(ctx context.Context, client kubernetes.Interface, me string, beat func(string), stop, done chan struct{}) {
	defer close(done)
	ticker := time.NewTicker(lockRenew)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			// A renewal that fails is tried again; if the lock was lost, the
			// next writer finds a release it can recover.
			_, _ = takeLock(ctx, client, me) //nolint:errcheck // see above
			if beat != nil {
				beat("release " + ReleaseName + " to be written")
			}
		case <-stop:
			leases := client.CoordinationV1().Leases(Namespace)
			if lease, err := leases.Get(ctx, lockName, metav1.GetOptions{}); err == nil && text(lease.Spec.HolderIdentity) == me {
				// It expires by itself when this fails.
				_ = leases.Delete(ctx, lockName, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &lease.ResourceVersion}}) //nolint:errcheck // see above
			}
			return
		}
	}
}

// takeLock takes or renews the lock and returns who has it.
func takeLock(ctx context.Context, client kubernetes.Interface, me string) (string, error) {
	leases := client.CoordinationV1().Leases(Namespace)
	now, seconds := metav1.NowMicro(), int32(lockTTL.Seconds())
	wanted := coordinationv1.LeaseSpec{HolderIdentity: &me, RenewTime: &now, LeaseDurationSeconds: &seconds}
	lease, err := leases.Get(ctx, lockName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: lockName, Namespace: Namespace}, Spec: wanted}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return "", nil
		}
		return me, err
	case err != nil:
		return "", err
	}
	holder := text(lease.Spec.HolderIdentity)
	if holder != me && lease.Spec.RenewTime != nil && now.Sub(lease.Spec.RenewTime.Time) < lockTTL {
		return holder, nil
	}
	lease.Spec = wanted
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return "", nil
	}
	return me, err
}

func text(pointer *string) string {
	if pointer == nil {
		return ""
	}
	return *pointer
}
