package envoy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Labels on what the store keeps.
const (
	LabelTenant     = "aether.internal/proxy-tenant"
	LabelGeneration = "aether.internal/proxy-generation"
)

// Keys of a proxy's ConfigMap.
const (
	keyCounter = "counter"
	keyHash    = "hash"
	keyGood    = "lastGood"
	keyStatus  = "status"
)

// ErrNoStatus tells that nothing was ever reported of a proxy.
var ErrNoStatus = errors.New("proxy has not reported")

// Versions numbers snapshots and remembers the last that a proxy accepted.
// All replicas of the server share it, and it outlives them.
type Versions interface {
	// Number returns the number of a snapshot with that content hash: the one
	// it had if it was the last one asked for, else a greater one. With again
	// it is always a greater one: Envoy is not sent a version it knows.
	Number(ctx context.Context, id ID, hash string, again bool) (uint64, error)
	// LastGood returns the last accepted configuration, or nil.
	LastGood(ctx context.Context, id ID) (*Tenant, error)
	// SetLastGood remembers it.
	SetLastGood(ctx context.Context, id ID, good Tenant) error
}

// Reporter tells the world what a proxy said.
type Reporter interface {
	Report(ctx context.Context, status Status) error
}

// Store keeps tokens (hashed), version numbers and reports in Kubernetes:
// one Secret per token, one ConfigMap per proxy.
type Store struct {
	client    client.Client
	namespace string
	now       func() time.Time
}

var (
	_ Versions       = (*Store)(nil)
	_ Reporter       = (*Store)(nil)
	_ EnrolmentStore = (*Store)(nil)
)

// NewStore returns a store in that namespace. The client must not serve
// Secrets and ConfigMaps from a cache: a token is good once, and a cache lags.
func NewStore(c client.Client, namespace string, now func() time.Time) *Store {
	return &Store{client: c, namespace: namespace, now: now}
}

// Number implements Versions by compare-and-swap on the proxy's ConfigMap.
func (s *Store) Number(ctx context.Context, id ID, hash string, again bool) (uint64, error) {
	var number uint64
	err := s.change(ctx, id, func(data map[string]string) error {
		number = 0
		if text, found := data[keyCounter]; found {
			var err error
			if number, err = strconv.ParseUint(text, 10, 64); err != nil {
				return fmt.Errorf("%s: %w", keyCounter, err)
			}
		}
		if data[keyHash] != hash || again {
			number++
		}
		data[keyCounter], data[keyHash] = strconv.FormatUint(number, 10), hash
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("number configuration of %s: %w", id, err)
	}
	return number, nil
}

// LastGood implements Versions.
func (s *Store) LastGood(ctx context.Context, id ID) (*Tenant, error) {
	var record corev1.ConfigMap
	err := s.client.Get(ctx, s.recordKey(id), &record)
	if apierrors.IsNotFound(err) || (err == nil && record.Data[keyGood] == "") {
		return nil, nil //nolint:nilnil // nil is the documented answer for "none yet"
	}
	if err != nil {
		return nil, fmt.Errorf("last good configuration of %s: %w", id, err)
	}
	var good Tenant
	if err := json.Unmarshal([]byte(record.Data[keyGood]), &good); err != nil {
		return nil, fmt.Errorf("last good configuration of %s: ConfigMap %s: %w", id, record.Name, err)
	}
	return &good, nil
}

// SetLastGood implements Versions.
func (s *Store) SetLastGood(ctx context.Context, id ID, good Tenant) error {
	return s.put(ctx, id, keyGood, good)
}

// Report implements Reporter.
func (s *Store) Report(ctx context.Context, status Status) error {
	return s.put(ctx, status.ID, keyStatus, status)
}

// ReadStatus returns what was last reported of a proxy, for processes other
// than the server. It returns ErrNoStatus before the first report.
func (s *Store) ReadStatus(ctx context.Context, id ID) (Status, error) {
	var record corev1.ConfigMap
	err := s.client.Get(ctx, s.recordKey(id), &record)
	if apierrors.IsNotFound(err) || (err == nil && record.Data[keyStatus] == "") {
		return Status{ID: id}, fmt.Errorf("%s: %w", id, ErrNoStatus)
	}
	if err != nil {
		return Status{ID: id}, fmt.Errorf("status of %s: %w", id, err)
	}
	var status Status
	if err := json.Unmarshal([]byte(record.Data[keyStatus]), &status); err != nil {
		return Status{ID: id}, fmt.Errorf("status of %s: ConfigMap %s: %w", id, record.Name, err)
	}
	return status, nil
}

// Forget removes everything kept about a tenant's proxies.
func (s *Store) Forget(ctx context.Context, tenant string) error {
	in, of := client.InNamespace(s.namespace), client.MatchingLabels{LabelTenant: tenant}
	if err := s.client.DeleteAllOf(ctx, &corev1.Secret{}, in, of); err != nil {
		return fmt.Errorf("forget proxies of %s: tokens: %w", tenant, err)
	}
	if err := s.client.DeleteAllOf(ctx, &corev1.ConfigMap{}, in, of); err != nil {
		return fmt.Errorf("forget proxies of %s: records: %w", tenant, err)
	}
	return nil
}

func (s *Store) put(ctx context.Context, id ID, key string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("%s of %s: %w", key, id, err)
	}
	err = s.change(ctx, id, func(data map[string]string) error {
		data[key] = string(text)
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s of %s: %w", key, id, err)
	}
	return nil
}

// change applies edit to the proxy's ConfigMap, which it makes when missing,
// as often as others write in between.
func (s *Store) change(ctx context.Context, id ID, edit func(data map[string]string) error) error {
	contended := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	return retry.OnError(retry.DefaultBackoff, contended, func() error {
		var record corev1.ConfigMap
		err := s.client.Get(ctx, s.recordKey(id), &record)
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return err
		}
		if record.Data == nil {
			record.Data = map[string]string{}
		}
		if err := edit(record.Data); err != nil {
			return err
		}
		if missing {
			record.ObjectMeta = metav1.ObjectMeta{Namespace: s.namespace, Name: s.recordKey(id).Name, Labels: labels(id)}
			return s.client.Create(ctx, &record)
		}
		return s.client.Update(ctx, &record)
	})
}

func (s *Store) recordKey(id ID) client.ObjectKey {
	return client.ObjectKey{Namespace: s.namespace, Name: "aether-proxy." + id.Tenant + "." + strconv.FormatInt(id.Generation, 10)}
}

func labels(id ID) map[string]string {
	return map[string]string{LabelTenant: id.Tenant, LabelGeneration: strconv.FormatInt(id.Generation, 10)}
}
