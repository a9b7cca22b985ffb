package lease

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func host() Host { return Host{Cluster: "homelab", Name: "pv1-1"} }

// lab is the origin's first host: stopped VMs hold memory too.
func lab() Capacity {
	return Capacity{MemoryMiB: 29900, VCPUs: 64, ReserveMemoryMiB: 2048, ReserveVCPUs: 4, Guests: []Guest{
		{VMID: 100, Name: "db", Cores: 4, MemoryMiB: 4096},
		{VMID: 201, Name: "lab-mgmt", Cores: 2, MemoryMiB: 4096, Running: true},
		{VMID: 901, Name: "talos", Cores: 2, MemoryMiB: 2048, Template: true},
	}}
}

func TestFree(t *testing.T) {
	reservations := []Reservation{{Machine: "a", VMID: 1000, Cores: 2, MemoryMiB: 2048}, {Machine: "b", Cores: 1, MemoryMiB: 512}}
	capacity := lab()
	capacity.Guests = append(capacity.Guests, Guest{VMID: 1000, Name: "ours", Cores: 2, MemoryMiB: 2048, Running: true})
	memory, vcpus, foreign := Free(reservations, capacity)
	if memory != 29900-2048-2048-512-4096-4096 || vcpus != 64-4-2-1-2 || len(foreign) != 2 {
		t.Errorf("got %d MiB, %d cores, foreign %v", memory, vcpus, foreign)
	}
}

func TestReserve(t *testing.T) {
	s, _, _ := newStore()
	ctx := context.Background()
	want := Reservation{Machine: "a", Tenant: "demo", VMID: 1000, Cores: 4, MemoryMiB: 8192}
	for range 2 {
		if err := s.Reserve(ctx, host(), want, lab()); err != nil {
			t.Fatal(err)
		}
	}
	book, err := s.Ledger(ctx, host())
	if err != nil || len(book) != 1 || book[0].Since.IsZero() {
		t.Fatalf("ledger: %+v and %v", book, err)
	}
	big := Reservation{Machine: "b", Tenant: "demo", Cores: 4, MemoryMiB: 16384}
	err = s.Reserve(ctx, host(), big, lab())
	var room *NoRoomError
	if !errors.As(err, &room) || room.FreeMemory != 11468 {
		t.Fatalf("got %v", err)
	}
	for _, part := range []string{"16384 MiB and 4 cores", "11468 MiB of 29900", `VM 100 "db", stopped, not Aether's: 4096 MiB`, "tenant demo, 1 machines: 8192 MiB", "choose a smaller class"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want %q in it", err, part)
		}
	}
	if book, _ := s.Ledger(ctx, host()); len(book) != 1 {
		t.Error("a refused reservation was written")
	}
	// Its own VM, cloned already, is not counted against it.
	seen := lab()
	seen.Guests = append(seen.Guests, Guest{VMID: 1000, MemoryMiB: 8192, Cores: 4, Running: true})
	grown := want
	grown.MemoryMiB = 19000
	if err := s.Reserve(ctx, host(), grown, seen); err != nil {
		t.Errorf("grow in place: %v", err)
	}
	for range 2 {
		if err := s.Unreserve(ctx, host(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Reserve(ctx, host(), big, lab()); err != nil {
		t.Errorf("after room was made: %v", err)
	}
	if err := s.Reserve(ctx, host(), Reservation{Machine: "c"}, lab()); err == nil {
		t.Error("a reservation of nothing was taken")
	}
}

func TestCoresAreCounted(t *testing.T) {
	s, _, _ := newStore()
	err := s.Reserve(context.Background(), host(), Reservation{Machine: "a", Cores: 59, MemoryMiB: 1}, lab())
	if !errors.Is(err, ErrNoRoom) {
		t.Errorf("got %v: the host has 58 virtual CPUs left", err)
	}
}

func TestLedgerIsNotOversoldAtOnce(t *testing.T) {
	s, _, _ := newStore()
	capacity := Capacity{MemoryMiB: 10 * 2048, VCPUs: 100}
	var group sync.WaitGroup
	var mu sync.Mutex
	granted := 0
	for n := range 16 {
		group.Go(func() {
			err := s.Reserve(context.Background(), host(), Reservation{Machine: machine(n).ID, Cores: 2, MemoryMiB: 2048}, capacity)
			if err != nil && !errors.Is(err, ErrNoRoom) {
				t.Errorf("machine %d: %v", n, err)
			}
			if err == nil {
				mu.Lock()
				granted++
				mu.Unlock()
			}
		})
	}
	group.Wait()
	book, err := s.Ledger(context.Background(), host())
	if granted != 10 || len(book) != 10 || err != nil {
		t.Errorf("granted %d, in the ledger %d, %v; want 10", granted, len(book), err)
	}
}

func TestBrokenLedgerIsNotOverwritten(t *testing.T) {
	s, _, c := newStore()
	ctx := context.Background()
	if err := s.Reserve(ctx, host(), Reservation{Machine: "a", Cores: 1, MemoryMiB: 1}, lab()); err != nil {
		t.Fatal(err)
	}
	var object corev1.ConfigMap
	if err := c.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: "ledger.homelab.pv1-1"}, &object); err != nil {
		t.Fatal(err)
	}
	object.Data[ledgerKey] = "{"
	if err := c.Update(ctx, &object); err != nil {
		t.Fatal(err)
	}
	if err := s.Unreserve(ctx, host(), "a"); err == nil || !strings.Contains(err.Error(), "aether-system/ledger.homelab.pv1-1") {
		t.Errorf("got %v", err)
	}
}
