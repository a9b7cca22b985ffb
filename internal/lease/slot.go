package lease

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// SlotPool is a number of turns at one storage of one host.
type SlotPool struct {
	Cluster, Host, Storage string
	Size                   int // turns at once
}

func (p SlotPool) name() string {
	return segment(p.Cluster) + "." + segment(p.Host) + "." + segment(p.Storage)
}

// label is the pool as a label's value, which is shorter than a name may be.
func (p SlotPool) label() string { return holderLabel(p.name()) }

// String names the pool for people.
func (p SlotPool) String() string {
	return fmt.Sprintf("storage %s of host %s of cluster %s", p.Storage, p.Host, p.Cluster)
}

const (
	// SlotTTL is how long a turn lasts without being renewed.
	SlotTTL = 60 * time.Second
	// waitTTL is how long a place in the queue lasts without being renewed.
	waitTTL = 15 * time.Second
	// waitRenew is how old a place may get before it is renewed.
	waitRenew = 5 * time.Second
	// waitPoll is the pause between two looks of one who waits.
	waitPoll = 250 * time.Millisecond
)

// Waiting is what one who waits for a turn is told.
type Waiting struct {
	Position int // 1: next
	Holders  []Holder
}

// Acquire waits for a turn, at most until ctx ends, and tells waiting what it
// waits for at each look; waiting may be nil. A turn the holder has is renewed.
// The turn must be renewed within SlotTTL and given back with ReleaseSlot.
func (s *Store) Acquire(ctx context.Context, pool SlotPool, holder Holder, waiting func(Waiting)) error {
	for {
		have, wait, err := s.TryAcquire(ctx, pool, holder)
		if err != nil || have {
			return err
		}
		if waiting != nil {
			waiting(wait)
		}
		timer := time.NewTimer(waitPoll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait for a turn at %s, at position %d: %w", pool, wait.Position, ctx.Err())
		case <-timer.C:
		}
	}
}

// TryAcquire takes a turn when it is the holder's, and otherwise keeps the
// holder's place in the queue.
func (s *Store) TryAcquire(ctx context.Context, pool SlotPool, holder Holder) (bool, Waiting, error) {
	var leases coordinationv1.LeaseList
	if err := s.client.List(ctx, &leases, client.InNamespace(Namespace), client.MatchingLabels{LabelPool: pool.label()}); err != nil {
		return false, Waiting{}, fmt.Errorf("take a turn at %s: %w", pool, err)
	}
	d := decide(leases.Items, pool, holder.ID, s.now())
	if d.slot >= 0 {
		taken, err := s.takeSlot(ctx, pool, d, holder)
		if err != nil {
			return false, Waiting{}, fmt.Errorf("take a turn at %s: %w", pool, err)
		}
		if taken {
			return true, Waiting{}, s.leaveQueue(ctx, pool, holder.ID, d.stale)
		}
	}
	if err := s.queue(ctx, pool, holder, d.place); err != nil {
		return false, Waiting{}, fmt.Errorf("wait for a turn at %s: %w", pool, err)
	}
	return false, d.waiting, nil
}

// decision is what to do about a turn.
type decision struct {
	slot    int                    // to take or renew; -1: wait
	object  *coordinationv1.Lease  // the slot's lease, nil when it has none
	place   *coordinationv1.Lease  // the holder's place in the queue
	stale   []coordinationv1.Lease // places of those who no longer wait
	waiting Waiting
}

// decide is the rule: one who has a turn keeps it; a free turn goes to whoever
// waits longest, and as many of the longest may take one as turns are free.
func decide(leases []coordinationv1.Lease, pool SlotPool, holderID string, now time.Time) decision {
	d := decision{slot: -1}
	slots := make([]*coordinationv1.Lease, pool.Size)
	var queue []*coordinationv1.Lease
	for i := range leases {
		l := &leases[i]
		switch l.Labels[LabelKind] {
		case kindSlot:
			index, err := strconv.Atoi(l.Name[strings.LastIndexByte(l.Name, '.')+1:])
			if err == nil && index >= 0 && index < pool.Size {
				slots[index] = l
			}
		case kindWait:
			switch {
			case expired(l, now):
				d.stale = append(d.stale, *l)
			default:
				queue = append(queue, l)
			}
			if read(l).Holder.ID == holderID {
				d.place = l
			}
		}
	}
	var free []int
	for i, l := range slots {
		switch {
		case l == nil || expired(l, now):
			free = append(free, i)
		case read(l).Holder.ID == holderID:
			d.slot, d.object = i, l
			return d
		default:
			d.waiting.Holders = append(d.waiting.Holders, read(l).Holder)
		}
	}
	slices.SortFunc(queue, byAge)
	position := slices.IndexFunc(queue, func(l *coordinationv1.Lease) bool { return read(l).Holder.ID == holderID })
	if position < 0 {
		position = len(queue) // not in the queue yet: behind all
	}
	d.waiting.Position = position + 1
	if position < len(free) {
		// Each of the first takes another one, so that they do not collide.
		d.slot = free[position]
		d.object = slots[d.slot]
	}
	return d
}

func byAge(a, b *coordinationv1.Lease) int {
	if order := a.Spec.AcquireTime.Compare(b.Spec.AcquireTime.Time); order != 0 {
		return order
	}
	return strings.Compare(a.Name, b.Name)
}

func expired(l *coordinationv1.Lease, now time.Time) bool {
	if l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil || l.Spec.AcquireTime == nil {
		return true
	}
	return now.After(l.Spec.RenewTime.Add(time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second))
}

func (s *Store) takeSlot(ctx context.Context, pool SlotPool, d decision, holder Holder) (bool, error) {
	lease := s.timed(kindSlot, pool, strconv.Itoa(d.slot), holder, SlotTTL)
	if d.object == nil {
		err := s.client.Create(ctx, lease)
		if apierrors.IsAlreadyExists(err) {
			return false, nil
		}
		return err == nil, err
	}
	if read(d.object).Holder.ID == holder.ID {
		lease.Spec.AcquireTime = d.object.Spec.AcquireTime
	}
	lease.ResourceVersion = d.object.ResourceVersion
	err := s.client.Update(ctx, lease)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// queue writes or renews the holder's place; when it began to wait stays.
func (s *Store) queue(ctx context.Context, pool SlotPool, holder Holder, place *coordinationv1.Lease) error {
	lease := s.timed(kindWait, pool, digest(holder.ID), holder, waitTTL)
	if place == nil {
		err := s.client.Create(ctx, lease)
		if apierrors.IsAlreadyExists(err) {
			return nil // an attempt beside this one; the next look renews it
		}
		return err
	}
	if !expired(place, s.now()) {
		if s.now().Sub(place.Spec.RenewTime.Time) < waitRenew {
			return nil
		}
		lease.Spec.AcquireTime = place.Spec.AcquireTime
	}
	lease.Name, lease.ResourceVersion = place.Name, place.ResourceVersion
	err := s.client.Update(ctx, lease)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// leaveQueue removes the holder's place and those of who no longer waits.
func (s *Store) leaveQueue(ctx context.Context, pool SlotPool, holderID string, stale []coordinationv1.Lease) error {
	leases := make([]*coordinationv1.Lease, 0, len(stale)+1)
	for i := range stale {
		leases = append(leases, &stale[i])
	}
	place := &coordinationv1.Lease{}
	err := s.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: timedName(kindWait, pool, digest(holderID))}, place)
	if err == nil {
		leases = append(leases, place)
	} else if !apierrors.IsNotFound(err) {
		return fmt.Errorf("leave the queue for %s: %w", pool, err)
	}
	return s.drop(ctx, leases)
}

func timedName(kind string, pool SlotPool, last string) string {
	return kind + "." + pool.name() + "." + last
}

func (s *Store) timed(kind string, pool SlotPool, last string, holder Holder, ttl time.Duration) *coordinationv1.Lease {
	now, seconds := metav1.NewMicroTime(s.now()), int32(ttl.Seconds())
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Name: timedName(kind, pool, last),
			Labels:      map[string]string{LabelKind: kind, LabelPool: pool.label(), LabelHolder: holderLabel(holder.ID), LabelTenant: holder.Tenant},
			Annotations: map[string]string{AnnotationPurpose: holder.Purpose},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder.ID, AcquireTime: &now, RenewTime: &now, LeaseDurationSeconds: &seconds},
	}
}

// RenewSlot keeps the holder's turn for another SlotTTL. It returns false when
// the turn was lost: not renewed in time and taken by another.
func (s *Store) RenewSlot(ctx context.Context, pool SlotPool, holder Holder) (bool, error) {
	mine, err := s.slotOf(ctx, pool, holder.ID)
	if err != nil || mine == nil {
		return false, err
	}
	now := metav1.NewMicroTime(s.now())
	mine.Spec.RenewTime = &now
	err = s.client.Update(ctx, mine)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		// Someone wrote it since: it counts who has it now.
		mine, err = s.slotOf(ctx, pool, holder.ID)
		return mine != nil, err
	}
	if err != nil {
		return false, fmt.Errorf("renew the turn at %s: %w", pool, err)
	}
	return true, nil
}

// ReleaseSlot gives the holder's turn and its place in the queue back. It can
// be repeated.
func (s *Store) ReleaseSlot(ctx context.Context, pool SlotPool, holderID string) error {
	mine, err := s.slotOf(ctx, pool, holderID)
	if err != nil {
		return err
	}
	if mine != nil {
		if err := s.drop(ctx, []*coordinationv1.Lease{mine}); err != nil {
			return err
		}
	}
	return s.leaveQueue(ctx, pool, holderID, nil)
}

func (s *Store) slotOf(ctx context.Context, pool SlotPool, holderID string) (*coordinationv1.Lease, error) {
	var leases coordinationv1.LeaseList
	if err := s.client.List(ctx, &leases, client.InNamespace(Namespace), client.MatchingLabels{LabelKind: kindSlot, LabelPool: pool.label()}); err != nil {
		return nil, fmt.Errorf("find the turn at %s: %w", pool, err)
	}
	for i := range leases.Items {
		if read(&leases.Items[i]).Holder.ID == holderID {
			return &leases.Items[i], nil
		}
	}
	return nil, nil
}
