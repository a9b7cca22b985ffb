package kamaji_test

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/lab/kamaji/kamajitest"
	"aether.internal/aether/lab/kamaji/v1alpha1"
)

// followWords collects the status words of a control plane as they change.
func followWords(ctx context.Context, t *testing.T, w *kamajitest.World, namespace, name string) func() []string {
	t.Helper()
	events, err := w.API.Watch(ctx, &v1alpha1.TenantControlPlaneList{}, client.InNamespace(namespace))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var words []string
	go func() {
		for event := range events.ResultChan() {
			tcp, ok := event.Object.(*v1alpha1.TenantControlPlane)
			if !ok || tcp.Name != name || event.Type == watch.Deleted {
				continue
			}
			mu.Lock()
			if word := string(tcp.Status.Kubernetes.Version.Status); len(words) == 0 || words[len(words)-1] != word {
				words = append(words, word)
			}
			mu.Unlock()
		}
	}()
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), words...)
	}
}

// followBirths collects the revisions at which objects of a tenant were made,
// and returns their names in that order.
func followBirths(ctx context.Context, t *testing.T, w *kamajitest.World, namespace, tenant string) func() []string {
	t.Helper()
	var mu sync.Mutex
	births := map[int]string{}
	for _, list := range []client.ObjectList{&corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.ServiceList{}, &appsv1.DeploymentList{}} {
		events, err := w.API.Watch(ctx, list, client.InNamespace(namespace), client.MatchingLabels{"kamaji.clastix.io/name": tenant})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for event := range events.ResultChan() {
				object, ok := event.Object.(client.Object)
				if !ok || event.Type != watch.Added {
					continue
				}
				revision, err := strconv.Atoi(object.GetResourceVersion())
				if err != nil {
					continue // the order then lacks a name, and the test says so
				}
				mu.Lock()
				births[revision] = object.GetName()
				mu.Unlock()
			}
		}()
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		var names []string
		for _, revision := range slices.Sorted(maps.Keys(births)) {
			names = append(names, births[revision])
		}
		return names
	}
}
