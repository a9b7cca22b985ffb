package envoy

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ObjectSource reads tenants from Kubernetes objects, one or more proxies per
// object: two while one replaces the other.
type ObjectSource struct {
	// Cache watches the objects. The caller starts it.
	Cache ctrlcache.Cache
	// Object and List are empty values of the kind that is watched.
	Object client.Object
	List   client.ObjectList
	// Read turns an object into the proxies it asks for, none for one that is
	// not that far.
	Read func(runtime.Object) []Tenant
}

var _ TenantSource = (*ObjectSource)(nil)

// Watch implements TenantSource. A burst of changes is one call.
func (s *ObjectSource) Watch(ctx context.Context, apply func([]Tenant)) error {
	informer, err := s.Cache.GetInformer(ctx, s.Object)
	if err != nil {
		return fmt.Errorf("watch tenants: %w", err)
	}
	changed := make(chan struct{}, 1)
	poke := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { poke() },
		UpdateFunc: func(any, any) { poke() },
		DeleteFunc: func(any) { poke() },
	})
	if err != nil {
		return fmt.Errorf("watch tenants: %w", err)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return nil
	}
	for {
		tenants, err := s.read(ctx)
		if err != nil {
			return err
		}
		apply(tenants)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func (s *ObjectSource) read(ctx context.Context) ([]Tenant, error) {
	list, isList := s.List.DeepCopyObject().(client.ObjectList)
	if !isList {
		return nil, fmt.Errorf("list tenants: %T is not a list", s.List)
	}
	if err := s.Cache.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list tenants: %w", err)
	}
	var tenants []Tenant
	err := meta.EachListItem(list, func(object runtime.Object) error {
		tenants = append(tenants, s.Read(object)...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list tenants: %w", err)
	}
	return tenants, nil
}

// MemorySource holds the set of tenants in the process. The zero value is not
// ready; use NewMemorySource.
type MemorySource struct{ sets chan []Tenant }

var _ TenantSource = (*MemorySource)(nil)

// NewMemorySource returns a source that starts with these tenants.
func NewMemorySource(tenants ...Tenant) *MemorySource {
	s := &MemorySource{sets: make(chan []Tenant, 1)}
	s.sets <- slices.Clone(tenants)
	return s
}

// Set replaces the set. It must not be called from two goroutines at once.
func (s *MemorySource) Set(tenants ...Tenant) {
	select {
	case <-s.sets:
	default:
	}
	s.sets <- slices.Clone(tenants)
}

// Watch implements TenantSource.
func (s *MemorySource) Watch(ctx context.Context, apply func([]Tenant)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case set := <-s.sets:
			apply(set)
		}
	}
}
