package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// clock is a clock that a test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newStore() (*Store, *clock, client.Client) {
	c, time := fake.NewClientBuilder().Build(), newClock()
	return New(c, WithClock(time.Now)), time, c
}

func machine(n int) Holder {
	return Holder{ID: fmt.Sprintf("machine-%d", n), Tenant: fmt.Sprintf("tenant-%d", n%3), Purpose: "worker"}
}

func TestVMIDIsFoundAgain(t *testing.T) {
	s, _, _ := newStore()
	ctx := context.Background()
	for range 2 {
		for n := range 3 {
			got, err := s.VMID(ctx, "homelab", VMIDRange{1000, 1009}, machine(n), nil)
			if err != nil || got != 1000+n {
				t.Fatalf("machine %d: got %d and %v", n, got, err)
			}
		}
	}
	if got, err := s.VMID(ctx, "other", VMIDRange{1000, 1009}, machine(2), nil); err != nil || got != 1000 {
		t.Errorf("another cluster has its own VMIDs: got %d and %v", got, err)
	}
	held, err := s.Held(ctx, machine(2).ID)
	if err != nil || len(held) != 2 || held[0].Value != "1002" || held[0].Pool != "homelab" || held[0].Name != "vmid.homelab.1002" {
		t.Errorf("held: %+v and %v", held, err)
	}
}

func TestVMIDsBelow1000AreRefused(t *testing.T) {
	s, _, _ := newStore()
	for _, r := range []VMIDRange{{100, 2000}, {2000, 1000}, {}} {
		if got, err := s.VMID(context.Background(), "homelab", r, machine(1), nil); err == nil {
			t.Errorf("%+v: got %d", r, got)
		}
	}
}

func TestTakenOutsideIsPassedOver(t *testing.T) {
	s, _, c := newStore()
	ctx := context.Background()
	taken := func(_ context.Context, value string) (bool, error) { return value == "1000" || value == "1001", nil }
	got, err := s.VMID(ctx, "homelab", VMIDRange{1000, 1002}, machine(1), taken)
	if err != nil || got != 1002 {
		t.Fatalf("got %d and %v", got, err)
	}
	var leases coordinationv1.LeaseList
	if err := c.List(ctx, &leases); err != nil || len(leases.Items) != 1 {
		t.Errorf("leases left for refused values: %v and %v", leases.Items, err)
	}
	_, err = s.VMID(ctx, "homelab", VMIDRange{1000, 1002}, machine(2), taken)
	var exhausted *ExhaustedError
	if !errors.As(err, &exhausted) || len(exhausted.Refused) != 2 || !strings.Contains(err.Error(), "2 taken outside of Aether (1000, 1001)") {
		t.Errorf("got %v", err)
	}
	broken := errors.New("proxmox is away")
	if _, err := s.VMID(ctx, "homelab", VMIDRange{1003, 1009}, machine(3), func(context.Context, string) (bool, error) { return false, broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if held, _ := s.Held(ctx, machine(3).ID); len(held) != 0 {
		t.Errorf("a value that could not be asked about is kept: %v", held)
	}
}

func TestAbandonedVMIDIsAskedAboutAgain(t *testing.T) {
	s, _, _ := newStore()
	ctx := context.Background()
	if _, err := s.VMID(ctx, "homelab", VMIDRange{1000, 1009}, machine(1), nil); err != nil {
		t.Fatal(err)
	}
	if err := s.AbandonVMID(ctx, "homelab", 1000, machine(2).ID); err != nil {
		t.Fatal(err)
	}
	if held, _ := s.Held(ctx, machine(1).ID); len(held) != 1 {
		t.Error("another's VMID was abandoned")
	}
	for range 2 {
		if err := s.AbandonVMID(ctx, "homelab", 1000, machine(1).ID); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.VMID(ctx, "homelab", VMIDRange{1000, 1009}, machine(1), func(_ context.Context, v string) (bool, error) { return v == "1000", nil })
	if err != nil || got != 1001 {
		t.Errorf("got %d and %v", got, err)
	}
}

func TestAddresses(t *testing.T) {
	s, clock, _ := newStore()
	ctx := context.Background()
	within := []AddressRange{{netip.MustParseAddr("10.1.1.254"), netip.MustParseAddr("10.1.2.0")}, {netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::1")}}
	want := []string{"10.1.1.254", "10.1.1.255", "10.1.2.0", "fd00::1"}
	for n, text := range want {
		for range 2 {
			if got, err := s.Address(ctx, "tenant", within, machine(n), nil); err != nil || got.String() != text {
				t.Fatalf("machine %d: got %s and %v, want %s", n, got, err, text)
			}
		}
	}
	_, err := s.Address(ctx, "tenant", within, machine(9), nil)
	for _, part := range []string{"no address of network tenant in 10.1.1.254 to 10.1.2.0", "tenant tenant-0 holds 2", "tenant tenant-1 holds 1", "widen spec.networks[].ranges"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want %q in it", err, part)
		}
	}
	if !errors.Is(err, ErrExhausted) {
		t.Errorf("got %v", err)
	}
	if err := s.ReleaseAddress(ctx, "tenant", netip.MustParseAddr("10.1.1.255"), machine(1).ID); err != nil {
		t.Fatal(err)
	}
	if _, err = s.Address(ctx, "tenant", within, machine(9), nil); err == nil || !strings.Contains(err.Error(), "1 in quarantine, the first until 2026-11-30T12:30:00Z") {
		t.Errorf("during the quarantine: got %v", err)
	}
	clock.pass(DefaultQuarantine)
	if got, err := s.Address(ctx, "tenant", within, machine(9), nil); err != nil || got.String() != "10.1.1.255" {
		t.Errorf("after the quarantine: got %s and %v", got, err)
	}
	// The last holder's late release must not free what is another's now.
	if err := s.ReleaseAddress(ctx, "tenant", netip.MustParseAddr("10.1.1.255"), machine(1).ID); err != nil {
		t.Fatal(err)
	}
	if held, _ := s.Held(ctx, machine(9).ID); len(held) != 1 {
		t.Error("a late release freed the next holder's address")
	}
}

func TestFreshValuesComeBeforeTombstones(t *testing.T) {
	s, clock, _ := newStore()
	ctx := context.Background()
	for n := range 3 {
		if _, err := s.VMID(ctx, "homelab", VMIDRange{1000, 1003}, machine(n), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []int{1, 0} {
		if err := s.ReleaseAll(ctx, machine(n).ID); err != nil {
			t.Fatal(err)
		}
		clock.pass(time.Minute)
	}
	clock.pass(DefaultQuarantine)
	for n, want := range map[int]int{10: 1003} {
		if got, _ := s.VMID(ctx, "homelab", VMIDRange{1000, 1003}, machine(n), nil); got != want {
			t.Errorf("machine %d: got %d, want %d, never used before", n, got, want)
		}
	}
	if got, _ := s.VMID(ctx, "homelab", VMIDRange{1000, 1003}, machine(11), nil); got != 1001 {
		t.Errorf("got %d, want 1001, which is free for the longest", got)
	}
}

func TestReleaseLeavesATombstone(t *testing.T) {
	s, clock, c := newStore()
	ctx := context.Background()
	if _, err := s.VMID(ctx, "homelab", VMIDRange{1000, 1003}, machine(1), nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.ReleaseVMID(ctx, "homelab", 1000, machine(1).ID); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.ReleaseVMID(ctx, "homelab", 1003, machine(1).ID); err != nil {
		t.Errorf("a VMID that nobody has: %v", err)
	}
	all, err := s.InPool(ctx, "homelab")
	if err != nil || len(all) != 1 || all[0].FreeAt.IsZero() || all[0].Holder.ID != machine(1).ID {
		t.Fatalf("tombstone: %+v and %v", all, err)
	}
	if held, _ := s.HeldByTenant(ctx, machine(1).Tenant); len(held) != 0 {
		t.Errorf("a tombstone counts as held: %v", held)
	}
	if n, err := s.SweepTombstones(ctx); n != 0 || err != nil {
		t.Errorf("swept %d in quarantine, %v", n, err)
	}
	clock.pass(DefaultQuarantine + time.Second)
	if n, err := s.SweepTombstones(ctx); n != 1 || err != nil {
		t.Errorf("swept %d after it, %v", n, err)
	}
	var leases coordinationv1.LeaseList
	if err := c.List(ctx, &leases); err != nil || len(leases.Items) != 0 {
		t.Errorf("left: %v and %v", leases.Items, err)
	}
}

func TestTheFirstOfTwoOverlappingAttemptsCounts(t *testing.T) {
	lease := func(name, version string) entry {
		return read(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &[]string{"me"}[0]}})
	}
	own, extra := owned(map[string]entry{"a": lease("vmid.x.1000", "1002"), "b": lease("vmid.x.1001", "998")}, "me")
	if own == nil || own.Name != "vmid.x.1001" || len(extra) != 1 || extra[0].Name != "vmid.x.1000" {
		t.Errorf("got %v and %v, want the one written first", own, extra)
	}
}

func TestNothingIsGivenOutTwiceAtOnce(t *testing.T) {
	s, _, _ := newStore()
	const machines = 24
	var group sync.WaitGroup
	var mu sync.Mutex
	got := map[int]int{}
	for n := range machines {
		group.Go(func() {
			for range 2 { // the second finds the first
				id, err := s.VMID(context.Background(), "homelab", VMIDRange{1000, 1000 + machines - 1}, machine(n), nil)
				if err != nil {
					t.Errorf("machine %d: %v", n, err)
					return
				}
				mu.Lock()
				if other, ok := got[id]; ok && other != n {
					t.Errorf("%d was given to machines %d and %d", id, other, n)
				}
				got[id] = n
				mu.Unlock()
			}
		})
	}
	group.Wait()
	if len(got) != machines {
		t.Errorf("%d VMIDs for %d machines", len(got), machines)
	}
}

// TestNothingIsGivenOutTwice walks random allocations, releases and pauses and
// compares with a model after each step.
func TestNothingIsGivenOutTwice(t *testing.T) {
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, seed))
		s, clock, _ := newStore()
		ctx := context.Background()
		held := map[string]int{}            // holder → VMID
		releasedAt := map[int]time.Time{}   // VMID → when
		within := VMIDRange{1000, 1000 + 5} // fewer than machines
		for step := range 120 {
			holder := machine(random.IntN(9))
			switch random.IntN(4) {
			case 0, 1:
				id, err := s.VMID(ctx, "homelab", within, holder, nil)
				had, hadOne := held[holder.ID]
				switch {
				case hadOne && id != had:
					t.Fatalf("seed %d, step %d: %s has %d and got %d (%v)", seed, step, holder.ID, had, id, err)
				case err != nil:
					if !errors.Is(err, ErrExhausted) {
						t.Fatalf("seed %d, step %d: %v", seed, step, err)
					}
					continue
				}
				for other, theirs := range held {
					if theirs == id && other != holder.ID {
						t.Fatalf("seed %d, step %d: %d is held by %s and was given to %s", seed, step, id, other, holder.ID)
					}
				}
				if at, ok := releasedAt[id]; ok && !hadOne && clock.Now().Sub(at) < DefaultQuarantine {
					t.Fatalf("seed %d, step %d: %d was given out %s after its release", seed, step, id, clock.Now().Sub(at))
				}
				held[holder.ID] = id
			case 2:
				if id, ok := held[holder.ID]; ok {
					if err := s.ReleaseVMID(ctx, "homelab", id, holder.ID); err != nil {
						t.Fatal(err)
					}
					delete(held, holder.ID)
					releasedAt[id] = clock.Now()
				}
			case 3:
				clock.pass(time.Duration(random.IntN(20)) * time.Minute)
			}
		}
	}
}

func TestNamesAreValid(t *testing.T) {
	for _, name := range []string{
		leaseName(kindVMID, "homelab", "1000"), leaseName(kindIP, "Tenant_A", "10.1.1.1"), leaseName(kindIP, "tenant", "fd00::1"),
		ledgerName(Host{"homelab", "PV1"}), timedName(kindSlot, SlotPool{Cluster: "homelab", Host: "pv1-1", Storage: "local_lvm.X"}, "0"),
	} {
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			t.Errorf("%s: %v", name, problems)
		}
	}
	if segment("Local") == segment("local") || segment("a_b") == segment("a-b") {
		t.Error("two names became one")
	}
	long := strings.Repeat("x", 100)
	if problems := validation.IsValidLabelValue(holderLabel(long)); len(problems) > 0 || holderLabel(long) == holderLabel(long+"y") {
		t.Errorf("label of a long holder: %s, %v", holderLabel(long), problems)
	}
}
