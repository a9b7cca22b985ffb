package activities

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

// looker waits for a ConfigMap and counts its looks.
type looker struct {
	client.WithWatch
	looks int
	fail  func(look int) error
}

func (l *looker) look(ctx context.Context) (string, error) {
	l.looks++
	if l.fail != nil {
		if err := l.fail(l.looks); err != nil {
			return "", err
		}
	}
	err := l.Get(ctx, client.ObjectKey{Namespace: "default", Name: "wanted"}, configMap(""))
	if apierrors.IsNotFound(err) {
		return "ConfigMap wanted", nil
	}
	return "", err
}

func (l *looker) until(ctx context.Context) error {
	return until(ctx, l.WithWatch, &corev1.ConfigMapList{}, []client.ListOption{client.InNamespace("default")}, l.look)
}

func TestUntilReturnsAtOnceWhenItIsSo(t *testing.T) {
	l := &looker{WithWatch: newKube(t, configMap("wanted"))}
	if err := l.until(t.Context()); err != nil || l.looks != 1 {
		t.Errorf("%v after %d looks", err, l.looks)
	}
}

// TestUntilIsWokenByAChange long before it would look by itself.
func TestUntilIsWokenByAChange(t *testing.T) {
	watching := make(chan struct{}, 10)
	kube := interceptor.NewClient(newKube(t), interceptor.Funcs{
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
			defer func() { watching <- struct{}{} }()
			return c.Watch(ctx, list, options...)
		},
	})
	l := &looker{WithWatch: kube}
	ended := make(chan error, 1)
	started := time.Now()
	go func() { ended <- l.until(t.Context()) }()
	<-watching
	for _, name := range []string{"other", "wanted"} {
		if err := kube.Create(t.Context(), configMap(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err != nil || time.Since(started) > lookAgain {
		t.Errorf("%v after %s", err, time.Since(started))
	}
}

// TestUntilOutlivesAnAPIServerThatIsAway: what cannot be asked is waited for,
// and says nothing about the object.
func TestUntilOutlivesAnAPIServerThatIsAway(t *testing.T) {
	away := &url.Error{Op: "Get", URL: "https://192.168.0.2:6443", Err: syscall.ECONNREFUSED}
	for name, err := range map[string]error{
		"refused":      fmt.Errorf("read: %w", away),
		"unavailable":  apierrors.NewServiceUnavailable("starting"),
		"time-out":     apierrors.NewTimeoutError("slow", 1),
		"unauthorized": apierrors.NewUnauthorized("not yet"),
		"too many":     apierrors.NewTooManyRequests("later", 1),
		"internal":     apierrors.NewInternalError(errors.New("etcd")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opened := 0
			kube := interceptor.NewClient(newKube(t, configMap("wanted")), interceptor.Funcs{
				Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
					opened++
					return nil, away
				},
			})
			l := &looker{WithWatch: kube, fail: func(look int) error {
				if look == 1 {
					return err
				}
				return nil
			}}
			started := time.Now()
			if err := l.until(t.Context()); err != nil || l.looks != 2 || opened != 1 {
				t.Errorf("%v after %d looks and %d watches", err, l.looks, opened)
			}
			if took := time.Since(started); took < afterFailure {
				t.Errorf("it looked again after %s", took)
			}
		})
	}
}

func TestUntilEndsWithAFinalError(t *testing.T) {
	for _, err := range []error{
		refused("wrong name"), apierrors.NewBadRequest("x"), apierrors.NewForbidden(corev1.Resource("configmaps"), "x", nil), context.Canceled,
	} {
		l := &looker{WithWatch: newKube(t), fail: func(int) error { return err }}
		if got := l.until(t.Context()); !errors.Is(got, err) || l.looks != 1 {
			t.Errorf("got %v after %d looks, want %v", got, l.looks, err)
		}
	}
}

func TestUntilEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	l := &looker{WithWatch: newKube(t)}
	err := l.until(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "wait for ConfigMap wanted") {
		t.Errorf("got %v", err)
	}
}

// TestUntilOpensAClosedWatchAgain: API servers end watches after a while.
func TestUntilOpensAClosedWatchAgain(t *testing.T) {
	opened := 0
	kube := newKube(t)
	closing := interceptor.NewClient(kube, interceptor.Funcs{
		Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
			opened++
			w := watch.NewFakeWithChanSize(1, false)
			if opened == 1 {
				w.Error(&metav1.Status{Reason: metav1.StatusReasonExpired})
				return w, nil
			}
			if opened == 2 {
				w.Stop()
				return w, nil
			}
			if err := kube.Create(t.Context(), configMap("wanted")); err != nil {
				t.Error(err)
			}
			w.Add(configMap("wanted"))
			return w, nil
		},
	})
	l := &looker{WithWatch: closing}
	if err := l.until(t.Context()); err != nil || opened != 3 {
		t.Errorf("%v after %d watches", err, opened)
	}
}
