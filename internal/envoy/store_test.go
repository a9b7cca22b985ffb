package envoy_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"aether.internal/aether/internal/envoy"
)

const namespace = "aether-system"

// clock is a time that tests set.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func newStore(c client.Client, k *clock) *envoy.Store { return envoy.NewStore(c, namespace, k.now) }

var demoID = envoy.ID{Tenant: "demo", Generation: 1}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestTokenIsGoodOnce(t *testing.T) {
	k, kube := newClock(), fake.NewClientBuilder().Build()
	store := newStore(kube, k)
	token, err := store.Issue(t.Context(), demoID)
	check(t, err)

	// Of many who try at once with keys of their own, one gets it.
	var won sync.Map
	var all sync.WaitGroup
	for _, key := range strings.Split("abcdefgh", "") {
		all.Go(func() {
			id, err := store.Redeem(context.Background(), token, key)
			switch {
			case err == nil && id == demoID:
				won.Store(key, true)
			case !errors.Is(err, envoy.ErrTokenUsed):
				t.Errorf("Redeem(%s) = %v, %v", key, id, err)
			}
		})
	}
	all.Wait()
	winners := []string{}
	won.Range(func(key, _ any) bool { winners = append(winners, key.(string)); return true })
	if len(winners) != 1 {
		t.Fatalf("winners = %v, want one", winners)
	}

	// A new process knows the same, and the winner may repeat a lost call.
	store = newStore(kube, k)
	if _, err := store.Redeem(t.Context(), token, winners[0]); err != nil {
		t.Errorf("the same key again: %v", err)
	}
	if _, err := store.Redeem(t.Context(), token, "stranger"); !errors.Is(err, envoy.ErrTokenUsed) {
		t.Errorf("a replay: %v, want ErrTokenUsed", err)
	}
	k.add(envoy.TokenLifetime)
	if _, err := store.Redeem(t.Context(), token, winners[0]); !errors.Is(err, envoy.ErrTokenExpired) {
		t.Errorf("the same key too late: %v, want ErrTokenExpired", err)
	}
}

func TestTokenRefusals(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(t *testing.T, s *envoy.Store, k *clock)
		token func(string) string
		want  error
	}{
		"another":   {nil, func(string) string { return "another" }, envoy.ErrTokenUnknown},
		"empty":     {nil, func(string) string { return "" }, envoy.ErrTokenUnknown},
		"expired":   {func(_ *testing.T, _ *envoy.Store, k *clock) { k.add(envoy.TokenLifetime) }, nil, envoy.ErrTokenExpired},
		"replaced":  {func(t *testing.T, s *envoy.Store, _ *clock) { _, err := s.Issue(t.Context(), demoID); check(t, err) }, nil, envoy.ErrTokenUnknown},
		"forgotten": {func(t *testing.T, s *envoy.Store, _ *clock) { check(t, s.Forget(t.Context(), "demo")) }, nil, envoy.ErrTokenUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			k := newClock()
			store := newStore(fake.NewClientBuilder().Build(), k)
			token, err := store.Issue(t.Context(), demoID)
			check(t, err)
			if test.spoil != nil {
				test.spoil(t, store, k)
			}
			if test.token != nil {
				token = test.token(token)
			}
			if _, err := store.Redeem(t.Context(), token, "key"); !errors.Is(err, test.want) {
				t.Errorf("Redeem() = %v, want %v", err, test.want)
			}
		})
	}
}

func TestTokenIsKeptAsHashOnly(t *testing.T) {
	kube := fake.NewClientBuilder().Build()
	token, err := newStore(kube, newClock()).Issue(t.Context(), demoID)
	check(t, err)
	var secrets corev1.SecretList
	check(t, kube.List(t.Context(), &secrets))
	if len(secrets.Items) != 1 {
		t.Fatalf("%d Secrets, want 1", len(secrets.Items))
	}
	if strings.Contains(secrets.Items[0].String(), token) {
		t.Error("the Secret has the token")
	}
}

// Replicas share the numbers; a number never comes back.
func TestNumbers(t *testing.T) {
	kube := fake.NewClientBuilder().Build()
	for _, step := range []struct {
		hash  string
		again bool
		want  uint64
	}{
		{"a", false, 1}, {"a", false, 1}, {"b", false, 2}, {"a", false, 3}, {"a", true, 4}, {"a", false, 4}, {"b", true, 5},
	} {
		got, err := newStore(kube, newClock()).Number(t.Context(), demoID, step.hash, step.again)
		if got != step.want || err != nil {
			t.Errorf("Number(%s, %v) = %d, %v, want %d", step.hash, step.again, got, err, step.want)
		}
	}
	other := envoy.ID{Tenant: "demo", Generation: 2}
	if got, err := newStore(kube, newClock()).Number(t.Context(), other, "z", false); got != 1 || err != nil {
		t.Errorf("another proxy starts with %d, %v", got, err)
	}
}

func TestRecords(t *testing.T) {
	k := newClock()
	store := newStore(fake.NewClientBuilder().Build(), k)
	if good, err := store.LastGood(t.Context(), demoID); good != nil || err != nil {
		t.Errorf("LastGood() = %v, %v, want nil, nil", good, err)
	}
	if _, err := store.ReadStatus(t.Context(), demoID); !errors.Is(err, envoy.ErrNoStatus) {
		t.Errorf("ReadStatus() = %v, want ErrNoStatus", err)
	}
	want := demo()
	check(t, store.SetLastGood(t.Context(), demoID, want))
	status := envoy.Status{ID: demoID, Connected: true, Wanted: want, Version: "1-abc", Rejected: &envoy.Rejection{Reason: "why", At: k.now()}, ReportedAt: k.now()}
	check(t, store.Report(t.Context(), status))
	good, err := store.LastGood(t.Context(), demoID)
	check(t, err)
	equal := cmp.Comparer(func(a, b envoy.Tenant) bool { return cmp.Equal(toText(a), toText(b)) })
	if diff := cmp.Diff(&want, good, equal); diff != "" {
		t.Errorf("last good (-want +got):\n%s", diff)
	}
	got, err := store.ReadStatus(t.Context(), demoID)
	check(t, err)
	if diff := cmp.Diff(status, got, equal); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if !got.Fresh(k.now().Add(envoy.ReportInterval)) || got.Fresh(k.now().Add(time.Hour)) {
		t.Error("freshness of a report")
	}
}

func toText(t envoy.Tenant) []string {
	text := []string{t.Name, t.Address.String()}
	for _, u := range append(t.Upstreams, t.KonnectivityUpstreams...) {
		text = append(text, u.String())
	}
	return text
}
