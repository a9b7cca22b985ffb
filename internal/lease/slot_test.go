package lease

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

func slots(size int) SlotPool {
	return SlotPool{Cluster: "homelab", Host: "pv1-1", Storage: "local-lvm", Size: size}
}

func TestTurnsAreBounded(t *testing.T) {
	s, _, _ := newStore()
	ctx := context.Background()
	for n, want := range []bool{true, true, false, false} {
		have, wait, err := s.TryAcquire(ctx, slots(2), machine(n))
		if err != nil || have != want {
			t.Fatalf("machine %d: got %t, %+v, %v", n, have, wait, err)
		}
		if !want && (wait.Position != n-1 || len(wait.Holders) != 2) {
			t.Errorf("machine %d waits as %+v", n, wait)
		}
	}
	if have, _, err := s.TryAcquire(ctx, slots(2), machine(0)); !have || err != nil {
		t.Errorf("a turn one has: got %t and %v", have, err)
	}
	other := slots(2)
	other.Storage = "tank"
	if have, _, _ := s.TryAcquire(ctx, other, machine(3)); !have {
		t.Error("another storage has its own turns")
	}
}

func TestTheLongestWaitGoesFirst(t *testing.T) {
	s, clock, _ := newStore()
	ctx := context.Background()
	try := func(n int) bool {
		t.Helper()
		have, _, err := s.TryAcquire(ctx, slots(1), machine(n))
		if err != nil {
			t.Fatal(err)
		}
		clock.pass(time.Second)
		return have
	}
	if !try(0) || try(1) || try(2) {
		t.Fatal("machine 0 has the turn, 1 and 2 wait")
	}
	for range 2 { // a repeated release is fine
		if err := s.ReleaseSlot(ctx, slots(1), machine(0).ID); err != nil {
			t.Fatal(err)
		}
	}
	if try(2) {
		t.Error("machine 2 overtook machine 1")
	}
	if try(3) {
		t.Error("machine 3, just come, overtook those who wait")
	}
	if !try(1) {
		t.Error("machine 1 waits longest and got no turn")
	}
	if err := s.ReleaseSlot(ctx, slots(1), machine(1).ID); err != nil {
		t.Fatal(err)
	}
	// Machine 2 is gone: its place expires and machine 3 moves up.
	for range 8 {
		try(3)
		clock.pass(2 * time.Second)
	}
	if !try(3) {
		t.Error("a place nobody renews still blocks the queue")
	}
}

func TestTurnsExpire(t *testing.T) {
	s, clock, c := newStore()
	ctx := context.Background()
	if have, _, _ := s.TryAcquire(ctx, slots(1), machine(0)); !have {
		t.Fatal("no turn")
	}
	clock.pass(SlotTTL - time.Second)
	if kept, err := s.RenewSlot(ctx, slots(1), machine(0)); !kept || err != nil {
		t.Fatalf("renewed in time: got %t and %v", kept, err)
	}
	clock.pass(SlotTTL - time.Second)
	if have, _, _ := s.TryAcquire(ctx, slots(1), machine(1)); have {
		t.Error("a renewed turn was given away")
	}
	clock.pass(2 * time.Second)
	if have, _, err := s.TryAcquire(ctx, slots(1), machine(1)); !have {
		t.Errorf("a turn nobody renewed was not given on: %v", err)
	}
	if kept, err := s.RenewSlot(ctx, slots(1), machine(0)); kept || err != nil {
		t.Errorf("a lost turn: got %t and %v", kept, err)
	}
	if err := s.ReleaseSlot(ctx, slots(1), machine(0).ID); err != nil {
		t.Fatal(err)
	}
	if kept, _ := s.RenewSlot(ctx, slots(1), machine(1)); !kept {
		t.Error("a late release took the next one's turn away")
	}
	if err := s.ReleaseSlot(ctx, slots(1), machine(1).ID); err != nil {
		t.Fatal(err)
	}
	var leases coordinationv1.LeaseList
	if err := c.List(ctx, &leases); err != nil || len(leases.Items) != 0 {
		t.Errorf("left over: %v and %v", leases.Items, err)
	}
}

func TestNeverMoreAtOnceThanTurns(t *testing.T) {
	c, _, _ := newStore()
	s := New(c.client) // real clock: they really wait
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var group sync.WaitGroup
	var now, most, done atomic.Int32
	for n := range 8 {
		group.Go(func() {
			if err := s.Acquire(ctx, slots(3), machine(n), nil); err != nil {
				t.Errorf("machine %d: %v", n, err)
				return
			}
			at := now.Add(1)
			for m := most.Load(); at > m && !most.CompareAndSwap(m, at); m = most.Load() {
			}
			time.Sleep(20 * time.Millisecond)
			now.Add(-1)
			if err := s.ReleaseSlot(ctx, slots(3), machine(n).ID); err != nil {
				t.Errorf("machine %d: %v", n, err)
			}
			done.Add(1)
		})
	}
	group.Wait()
	if most.Load() > 3 || done.Load() != 8 {
		t.Errorf("%d at once, %d done", most.Load(), done.Load())
	}
}

func TestAcquireTellsAndStops(t *testing.T) {
	s, _, _ := newStore()
	if have, _, _ := s.TryAcquire(context.Background(), slots(1), machine(0)); !have {
		t.Fatal("no turn")
	}
	ctx, cancel := context.WithCancel(context.Background())
	told := Waiting{}
	err := s.Acquire(ctx, slots(1), machine(1), func(w Waiting) { told = w; cancel() })
	if !errors.Is(err, context.Canceled) || told.Position != 1 || len(told.Holders) != 1 || told.Holders[0].ID != machine(0).ID {
		t.Errorf("got %v, told %+v", err, told)
	}
}
