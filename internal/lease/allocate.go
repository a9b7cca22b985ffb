package lease

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Taken tells whether something outside of Aether has a value already, for
// instance a VMID that Proxmox knows. Nil: nothing has.
type Taken func(ctx context.Context, value string) (bool, error)

// VMIDRange is a range of VMIDs, both ends included.
type VMIDRange struct{ From, To int }

// AddressRange is a range of addresses, both ends included.
type AddressRange struct{ From, To netip.Addr }

// VMID returns the VMID the holder has in the cluster, or allocates the next
// free one. taken is asked about a new one before it is returned. When all
// are held the error is an *ExhaustedError.
func (s *Store) VMID(ctx context.Context, cluster string, within VMIDRange, holder Holder, taken Taken) (int, error) {
	const lowest = 1000
	if within.From < lowest || within.To < within.From {
		return 0, fmt.Errorf("allocate a VMID of cluster %s: the range %d to %d is not one of %d and above", cluster, within.From, within.To, lowest)
	}
	p := pool{
		kind: kindVMID, name: cluster, what: fmt.Sprintf("VMID of cluster %s in %d to %d", cluster, within.From, within.To),
		remedy: "widen spec.proxmox[].vmids of the site, or remove machines",
		values: func(yield func(string) bool) {
			for id := within.From; id <= within.To; id++ {
				if !yield(strconv.Itoa(id)) {
					return
				}
			}
		},
	}
	value, err := s.allocate(ctx, p, holder, taken)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(value)
}

// Address returns the address the holder has in the network, or allocates the
// next free one of the ranges.
func (s *Store) Address(ctx context.Context, network string, within []AddressRange, holder Holder, taken Taken) (netip.Addr, error) {
	texts := make([]string, 0, len(within))
	for _, r := range within {
		texts = append(texts, r.From.String()+" to "+r.To.String())
	}
	p := pool{
		kind: kindIP, name: network, what: fmt.Sprintf("address of network %s in %s", network, strings.Join(texts, ", ")),
		remedy: "widen spec.networks[].ranges of the site, or remove machines",
		values: func(yield func(string) bool) {
			for _, r := range within {
				for a := r.From; a.IsValid() && a.Compare(r.To) <= 0; a = a.Next() {
					if !yield(a.String()) {
						return
					}
				}
			}
		},
	}
	value, err := s.allocate(ctx, p, holder, taken)
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(value)
}

// ReleaseVMID gives a VMID back. What is free, or another's by now, is left
// alone, so it can be repeated.
func (s *Store) ReleaseVMID(ctx context.Context, cluster string, vmid int, holderID string) error {
	return s.release(ctx, leaseName(kindVMID, cluster, strconv.Itoa(vmid)), holderID)
}

// AbandonVMID gives back a VMID that turned out to be another's, without a
// quarantine: the next allocation asks about it anew.
func (s *Store) AbandonVMID(ctx context.Context, cluster string, vmid int, holderID string) error {
	var lease coordinationv1.Lease
	err := s.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: leaseName(kindVMID, cluster, strconv.Itoa(vmid))}, &lease)
	if apierrors.IsNotFound(err) || err == nil && read(&lease).Holder.ID != holderID {
		return nil
	}
	if err != nil {
		return fmt.Errorf("abandon VMID %d of cluster %s: %w", vmid, cluster, err)
	}
	return s.drop(ctx, []*coordinationv1.Lease{&lease})
}

// ReleaseAddress gives an address back. What is free, or another's by now, is
// left alone, so it can be repeated.
func (s *Store) ReleaseAddress(ctx context.Context, network string, address netip.Addr, holderID string) error {
	return s.release(ctx, leaseName(kindIP, network, address.String()), holderID)
}

// ReleaseAll gives back every VMID and address of a holder.
func (s *Store) ReleaseAll(ctx context.Context, holderID string) error {
	held, err := s.Held(ctx, holderID)
	if err != nil {
		return err
	}
	var failed []error
	for _, h := range held {
		failed = append(failed, s.release(ctx, h.Name, holderID))
	}
	return errors.Join(failed...)
}

// Holding is something that is held, or a tombstone.
type Holding struct {
	Name   string // of the Lease
	Kind   string // vmid or ip
	Pool   string // cluster or network
	Value  string // the VMID or address
	Holder Holder
	Since  time.Time
	// FreeAt is when a tombstone can be given out again; zero: it is held.
	FreeAt time.Time
}

// Held lists the VMIDs and addresses of a holder, by name.
func (s *Store) Held(ctx context.Context, holderID string) ([]Holding, error) {
	return s.list(ctx, client.MatchingLabels{LabelHolder: holderLabel(holderID)})
}

// HeldByTenant lists the VMIDs and addresses of a tenant, by name. It is what
// a sweep looks at after a tenant was deleted.
func (s *Store) HeldByTenant(ctx context.Context, tenant string) ([]Holding, error) {
	return s.list(ctx, client.MatchingLabels{LabelTenant: tenant}, client.HasLabels{LabelHolder})
}

// InPool lists all VMIDs of a cluster or addresses of a network that are held
// or in quarantine, by name.
func (s *Store) InPool(ctx context.Context, name string) ([]Holding, error) {
	return s.list(ctx, client.MatchingLabels{LabelPool: segment(name)})
}

func (s *Store) list(ctx context.Context, options ...client.ListOption) ([]Holding, error) {
	var leases coordinationv1.LeaseList
	if err := s.client.List(ctx, &leases, append(options, client.InNamespace(Namespace))...); err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	var list []Holding
	for i := range leases.Items {
		if kind := leases.Items[i].Labels[LabelKind]; kind == kindVMID || kind == kindIP {
			list = append(list, s.holding(read(&leases.Items[i])))
		}
	}
	slices.SortFunc(list, func(a, b Holding) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func (s *Store) holding(e entry) Holding {
	h := Holding{Name: e.Lease.Name, Kind: e.Lease.Labels[LabelKind], Pool: e.Lease.Labels[LabelPool], Holder: e.Holder, Since: e.Lease.CreationTimestamp.Time}
	h.Value = strings.TrimPrefix(e.Lease.Name, h.Kind+"."+h.Pool+".")
	if e.Lease.Spec.AcquireTime != nil {
		h.Since = e.Lease.Spec.AcquireTime.Time
	}
	if e.released() {
		h.FreeAt = e.ReleasedAt.Add(s.quarantine)
		h.Holder.ID = e.Lease.Annotations[AnnotationLastHolder]
	}
	return h
}

// pool is a set of values of which each can be held once.
type pool struct {
	kind, name   string
	what, remedy string // for people
	values       func(yield func(string) bool)
}

// leaseName is the name of the Lease that stands for a value.
func leaseName(kind, poolName, value string) string {
	return kind + "." + segment(poolName) + "." + strings.ReplaceAll(value, ":", "-")
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:4])
}

// holderLabel is a holder as a label's value.
func holderLabel(id string) string {
	if len(id) <= 63 {
		return id
	}
	return id[:54] + "-" + digest(id)
}

// allocate finds what the holder has, or creates it.
func (s *Store) allocate(ctx context.Context, p pool, holder Holder, taken Taken) (string, error) {
	op := "allocate a " + p.what
	if holder.ID == "" {
		return "", fmt.Errorf("%s: no holder is given", op)
	}
	refused := map[string]bool{} // values something else has, in this call
	for {
		entries, err := s.entries(ctx, p)
		if err != nil {
			return "", fmt.Errorf("%s: %w", op, err)
		}
		if own, extra := owned(entries, holder.ID); own != nil {
			if err := s.drop(ctx, extra); err != nil {
				return "", fmt.Errorf("%s: %w", op, err)
			}
			return valueOf(p, own), nil
		}
		lease, value, err := s.claimOne(ctx, p, entries, holder, refused)
		if err != nil {
			return "", fmt.Errorf("%s: %w", op, err)
		}
		if taken != nil {
			busy, err := taken(ctx, value)
			if err != nil {
				// It stays ours and is found again by the next attempt, which
				// must ask again: so give it up.
				return "", fmt.Errorf("%s: %w", op, errors.Join(err, s.drop(ctx, []*coordinationv1.Lease{lease})))
			}
			if busy {
				refused[value] = true
				if err := s.drop(ctx, []*coordinationv1.Lease{lease}); err != nil {
					return "", fmt.Errorf("%s: %w", op, err)
				}
			}
		}
		// Look again: an earlier attempt for the same holder may have been
		// under way. The first of the two counts, for both.
	}
}

func (s *Store) entries(ctx context.Context, p pool) (map[string]entry, error) {
	var leases coordinationv1.LeaseList
	if err := s.client.List(ctx, &leases, client.InNamespace(Namespace), client.MatchingLabels{LabelKind: p.kind, LabelPool: segment(p.name)}); err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	entries := make(map[string]entry, len(leases.Items))
	for i := range leases.Items {
		entries[leases.Items[i].Name] = read(&leases.Items[i])
	}
	return entries, nil
}

func valueOf(p pool, l *coordinationv1.Lease) string {
	value := strings.TrimPrefix(l.Name, p.kind+"."+segment(p.name)+".")
	if p.kind == kindIP && !strings.Contains(value, ".") {
		return strings.ReplaceAll(value, "-", ":") // IPv6
	}
	return value
}

// owned returns the holder's lease, and those it has beyond it: two attempts
// that overlapped may each have made one. The one that was written first
// counts: resource versions of one API server grow with each write.
func owned(entries map[string]entry, holderID string) (own *coordinationv1.Lease, extra []*coordinationv1.Lease) {
	var mine []*coordinationv1.Lease
	for _, e := range entries {
		if !e.released() && e.Holder.ID == holderID {
			mine = append(mine, e.Lease)
		}
	}
	if len(mine) == 0 {
		return nil, nil
	}
	slices.SortFunc(mine, func(a, b *coordinationv1.Lease) int {
		if la, lb := len(a.ResourceVersion), len(b.ResourceVersion); la != lb {
			return la - lb
		}
		if order := strings.Compare(a.ResourceVersion, b.ResourceVersion); order != 0 {
			return order
		}
		return strings.Compare(a.Name, b.Name)
	})
	return mine[0], mine[1:]
}

// claimOne makes one value the holder's: the first that was never given out,
// else the tombstone that is free for the longest.
func (s *Store) claimOne(ctx context.Context, p pool, entries map[string]entry, holder Holder, refused map[string]bool) (*coordinationv1.Lease, string, error) {
	fresh, reusable := candidates(p, entries, refused, s.now().Add(-s.quarantine))
	for _, value := range fresh {
		lease := s.lease(p, value, holder)
		err := s.client.Create(ctx, lease)
		if err == nil {
			return lease, value, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, "", fmt.Errorf("create lease %s: %w", lease.Name, err)
		}
	}
	for _, value := range reusable {
		lease := s.lease(p, value, holder)
		lease.ResourceVersion = entries[lease.Name].Lease.ResourceVersion
		err := s.client.Update(ctx, lease)
		if err == nil {
			return lease, value, nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return nil, "", fmt.Errorf("take over lease %s: %w", lease.Name, err)
		}
	}
	return nil, "", s.exhausted(p, entries, refused)
}

// candidates returns the values that can be taken, best first: those without
// a lease in their order, and those whose release was before the given time,
// longest ago first.
func candidates(p pool, entries map[string]entry, refused map[string]bool, before time.Time) (fresh, reusable []string) {
	for value := range p.values {
		e, exists := entries[leaseName(p.kind, p.name, value)]
		switch {
		case refused[value]:
		case !exists:
			fresh = append(fresh, value)
		case e.released() && !e.ReleasedAt.After(before):
			reusable = append(reusable, value)
		}
	}
	slices.SortStableFunc(reusable, func(a, b string) int {
		return entries[leaseName(p.kind, p.name, a)].ReleasedAt.Compare(entries[leaseName(p.kind, p.name, b)].ReleasedAt)
	})
	return fresh, reusable
}

func (s *Store) lease(p pool, value string, holder Holder) *coordinationv1.Lease {
	now := metav1.NewMicroTime(s.now())
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Name: leaseName(p.kind, p.name, value),
			Labels:      map[string]string{LabelKind: p.kind, LabelPool: segment(p.name), LabelHolder: holderLabel(holder.ID), LabelTenant: holder.Tenant},
			Annotations: map[string]string{AnnotationPurpose: holder.Purpose},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder.ID, AcquireTime: &now},
	}
}

// release turns a held lease into a tombstone.
func (s *Store) release(ctx context.Context, name, holderID string) error {
	for {
		var lease coordinationv1.Lease
		err := s.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: name}, &lease)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("release lease %s: %w", name, err)
		}
		if e := read(&lease); e.released() || e.Holder.ID != holderID {
			return nil
		}
		if lease.Annotations == nil {
			lease.Annotations = map[string]string{}
		}
		lease.Annotations[AnnotationReleasedAt] = s.now().UTC().Format(time.RFC3339)
		lease.Annotations[AnnotationLastHolder] = holderID
		delete(lease.Labels, LabelHolder)
		lease.Spec.HolderIdentity = nil
		err = s.client.Update(ctx, &lease)
		switch {
		case err == nil, apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err):
			return fmt.Errorf("release lease %s: %w", name, err)
		}
	}
}

// drop removes leases that were never used, without a quarantine.
func (s *Store) drop(ctx context.Context, leases []*coordinationv1.Lease) error {
	var failed []error
	for _, lease := range leases {
		err := s.client.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			failed = append(failed, fmt.Errorf("delete lease %s: %w", lease.Name, err))
		}
	}
	return errors.Join(failed...)
}

// SweepTombstones deletes tombstones whose quarantine is over and returns how
// many it deleted. Allocation does not need it; the objects would only pile up.
func (s *Store) SweepTombstones(ctx context.Context) (int, error) {
	var leases coordinationv1.LeaseList
	if err := s.client.List(ctx, &leases, client.InNamespace(Namespace), client.HasLabels{LabelKind, LabelPool}); err != nil {
		return 0, fmt.Errorf("list leases: %w", err)
	}
	count := 0
	for i := range leases.Items {
		if e := read(&leases.Items[i]); e.released() && e.ReleasedAt.Add(s.quarantine).Before(s.now()) {
			if err := s.drop(ctx, []*coordinationv1.Lease{e.Lease}); err != nil {
				return count, err
			}
			count++
		}
	}
	return count, nil
}
