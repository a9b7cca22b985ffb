package lease

import (
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Namespace is where everything of this package is kept.
const Namespace = "aether-system"

// DefaultQuarantine is how long a released VMID or address is not given out
// again. It is longer than any attempt of an activity lives and than
// neighbour caches remember.
const DefaultQuarantine = 30 * time.Minute

// Labels and annotations on the objects of this package.
const (
	LabelKind   = "lease.aether.internal/kind"   // vmid, ip, slot, wait or ledger
	LabelPool   = "lease.aether.internal/pool"   // cluster, network or slot pool
	LabelHolder = "lease.aether.internal/holder" // machine or tenant; absent on tombstones
	LabelTenant = "lease.aether.internal/tenant"

	AnnotationReleasedAt = "lease.aether.internal/released-at"
	AnnotationLastHolder = "lease.aether.internal/last-holder"
	AnnotationPurpose    = "lease.aether.internal/purpose" // for people
)

const (
	kindVMID   = "vmid"
	kindIP     = "ip"
	kindSlot   = "slot"
	kindWait   = "wait"
	kindLedger = "ledger"
)

// Holder is who holds something.
type Holder struct {
	// ID is the machine's UUID, or tenant.<name> for what belongs to a
	// tenant and outlives its VMs, such as the address of its proxy.
	ID string
	// Tenant is whose it is.
	Tenant string
	// Purpose is for people, as "worker" or "proxy".
	Purpose string
}

// Store hands things out. It is safe for concurrent use, in one process and
// over many.
type Store struct {
	client     client.Client
	now        func() time.Time
	quarantine time.Duration
}

// Option changes a Store.
type Option func(*Store)

// WithClock replaces the clock.
func WithClock(now func() time.Time) Option { return func(s *Store) { s.now = now } }

// WithQuarantine replaces DefaultQuarantine.
func WithQuarantine(d time.Duration) Option { return func(s *Store) { s.quarantine = d } }

// New returns a store on a client that reads from the API server itself.
func New(c client.Client, options ...Option) *Store {
	s := &Store{client: c, now: time.Now, quarantine: DefaultQuarantine}
	for _, option := range options {
		option(s)
	}
	return s
}

// entry is a Lease as this package sees it.
type entry struct {
	Lease      *coordinationv1.Lease
	Holder     Holder
	ReleasedAt time.Time // zero: held
}

func read(l *coordinationv1.Lease) entry {
	e := entry{Lease: l, Holder: Holder{Tenant: l.Labels[LabelTenant], Purpose: l.Annotations[AnnotationPurpose]}}
	if l.Spec.HolderIdentity != nil {
		e.Holder.ID = *l.Spec.HolderIdentity
	}
	if text := l.Annotations[AnnotationReleasedAt]; text != "" {
		released, err := time.Parse(time.RFC3339, text)
		if err != nil {
			// Someone edited it: the quarantine begins anew with the
			// earliest time that is safe, the last write we know of.
			released = l.CreationTimestamp.Time
		}
		e.ReleasedAt = released
	}
	return e
}

func (e entry) released() bool { return !e.ReleasedAt.IsZero() }

// segment makes a name usable as part of an object's name. Names that are
// lower-case DNS labels already stay as they are.
func segment(name string) string {
	lower := strings.ToLower(name)
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, lower)
	clean = strings.Trim(clean, "-")
	if clean == name {
		return clean
	}
	// Two names must not become one.
	return strings.Trim(clean+"-"+digest(name), "-")
}
