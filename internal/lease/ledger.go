package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Host names a host of a Proxmox cluster.
type Host struct{ Cluster, Name string }

func (h Host) String() string { return h.Name + " of cluster " + h.Cluster }

// Reservation is memory and cores of a host that a machine has.
type Reservation struct {
	Machine   string    `json:"machine"`
	Tenant    string    `json:"tenant"`
	Purpose   string    `json:"purpose,omitempty"`
	VMID      int       `json:"vmid,omitempty"`
	Cores     int       `json:"cores"`
	MemoryMiB int       `json:"memoryMiB"`
	Since     time.Time `json:"since"`
}

// Guest is a VM or container that Proxmox shows on the host, running or
// stopped: a stopped one may be started at any time.
type Guest struct {
	VMID      int
	Name      string
	Cores     int
	MemoryMiB int
	Running   bool
	Template  bool // takes no memory
}

// Capacity is what a host has and what others use of it.
type Capacity struct {
	MemoryMiB        int     // of the host
	VCPUs            int     // that may be promised: cores times overcommit
	ReserveMemoryMiB int     // left to the host
	ReserveVCPUs     int     // left to the host
	Guests           []Guest // all that Proxmox shows, ours included
}

// ErrNoRoom means that the host cannot take it. The error is a *NoRoomError.
var ErrNoRoom = errors.New("host has no room")

// NoRoomError says what a host lacks and who holds what.
type NoRoomError struct {
	Host         Host
	Wanted       Reservation
	FreeMemory   int // MiB, may be negative
	FreeVCPUs    int // may be negative
	Capacity     Capacity
	Reservations []Reservation
	Foreign      []Guest
}

// Error lists who holds what, largest first.
func (e *NoRoomError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "host %s has no room for %d MiB and %d cores: free are %d MiB of %d and %d virtual CPUs of %d (%d MiB and %d are the host's own)",
		e.Host, e.Wanted.MemoryMiB, e.Wanted.Cores, e.FreeMemory, e.Capacity.MemoryMiB, e.FreeVCPUs, e.Capacity.VCPUs,
		e.Capacity.ReserveMemoryMiB, e.Capacity.ReserveVCPUs)
	foreign := slices.SortedFunc(slices.Values(e.Foreign), func(a, b Guest) int { return b.MemoryMiB - a.MemoryMiB })
	for _, g := range foreign {
		state := "stopped"
		if g.Running {
			state = "running"
		}
		fmt.Fprintf(&b, "; VM %d %q, %s, not Aether's: %d MiB, %d cores", g.VMID, g.Name, state, g.MemoryMiB, g.Cores)
	}
	tenants := map[string]Reservation{}
	for _, r := range e.Reservations {
		sum := tenants[r.Tenant]
		sum.MemoryMiB, sum.Cores, sum.VMID = sum.MemoryMiB+r.MemoryMiB, sum.Cores+r.Cores, sum.VMID+1
		tenants[r.Tenant] = sum
	}
	for _, tenant := range slices.Sorted(maps.Keys(tenants)) {
		sum := tenants[tenant]
		fmt.Fprintf(&b, "; tenant %s, %d machines: %d MiB, %d cores", tenant, sum.VMID, sum.MemoryMiB, sum.Cores)
	}
	b.WriteString("; remove or shrink VMs, choose a smaller class, or add a host")
	return b.String()
}

// Unwrap gives ErrNoRoom.
func (e *NoRoomError) Unwrap() error { return ErrNoRoom }

// Free returns what is left of a host for machines that are not in the
// ledger: pure, so that plans count the way reservations do.
func Free(reservations []Reservation, c Capacity) (memoryMiB, vcpus int, foreign []Guest) {
	ours := map[int]bool{}
	memoryMiB, vcpus = c.MemoryMiB-c.ReserveMemoryMiB, c.VCPUs-c.ReserveVCPUs
	for _, r := range reservations {
		ours[r.VMID] = true
		memoryMiB -= r.MemoryMiB
		vcpus -= r.Cores
	}
	for _, g := range c.Guests {
		if g.Template || ours[g.VMID] && g.VMID != 0 {
			continue
		}
		foreign = append(foreign, g)
		memoryMiB -= g.MemoryMiB
		// Only running VMs compete for the processor.
		if g.Running {
			vcpus -= g.Cores
		}
	}
	return memoryMiB, vcpus, foreign
}

// Reserve writes a reservation into the host's ledger, or refuses with a
// *NoRoomError. A reservation the machine has already is replaced, so it can
// be repeated. The machine's reservation on another host is not touched.
func (s *Store) Reserve(ctx context.Context, host Host, wanted Reservation, capacity Capacity) error {
	if wanted.Machine == "" || wanted.Cores <= 0 || wanted.MemoryMiB <= 0 {
		return fmt.Errorf("reserve on host %s: a reservation names its machine, cores and memory", host)
	}
	if wanted.Since.IsZero() {
		wanted.Since = s.now().UTC().Truncate(time.Second)
	}
	return s.changeLedger(ctx, host, func(book map[string]Reservation) (bool, error) {
		others := maps.Clone(book)
		if had, ok := others[wanted.Machine]; ok {
			delete(others, wanted.Machine)
			wanted.Since = had.Since
			if had == wanted {
				return false, nil
			}
		}
		reservations := sorted(others)
		seen := capacity
		if wanted.VMID != 0 {
			// Its own VM may be on the host already: it is no stranger.
			seen.Guests = slices.DeleteFunc(slices.Clone(seen.Guests), func(g Guest) bool { return g.VMID == wanted.VMID })
		}
		memory, vcpus, foreign := Free(reservations, seen)
		if memory < wanted.MemoryMiB || vcpus < wanted.Cores {
			return false, &NoRoomError{Host: host, Wanted: wanted, FreeMemory: memory, FreeVCPUs: vcpus, Capacity: capacity, Reservations: reservations, Foreign: foreign}
		}
		book[wanted.Machine] = wanted
		return true, nil
	})
}

// Unreserve removes a machine's reservation from the host's ledger. One that
// is not there is fine.
func (s *Store) Unreserve(ctx context.Context, host Host, machine string) error {
	return s.changeLedger(ctx, host, func(book map[string]Reservation) (bool, error) {
		_, had := book[machine]
		delete(book, machine)
		return had, nil
	})
}

// Ledger lists a host's reservations, by machine.
func (s *Store) Ledger(ctx context.Context, host Host) ([]Reservation, error) {
	_, book, err := s.openLedger(ctx, host)
	return sorted(book), err
}

func sorted(book map[string]Reservation) []Reservation {
	return slices.SortedFunc(maps.Values(book), func(a, b Reservation) int { return strings.Compare(a.Machine, b.Machine) })
}

const ledgerKey = "reservations.json"

func ledgerName(host Host) string {
	return kindLedger + "." + segment(host.Cluster) + "." + segment(host.Name)
}

// openLedger reads a host's ledger; a missing one is empty.
func (s *Store) openLedger(ctx context.Context, host Host) (*corev1.ConfigMap, map[string]Reservation, error) {
	object := &corev1.ConfigMap{}
	err := s.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: ledgerName(host)}, object)
	if apierrors.IsNotFound(err) {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Name: ledgerName(host),
			Labels: map[string]string{LabelKind: kindLedger, LabelPool: segment(host.Cluster)},
		}}, map[string]Reservation{}, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read ledger of host %s: %w", host, err)
	}
	var list []Reservation
	if text := object.Data[ledgerKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return nil, nil, fmt.Errorf("read ledger of host %s: ConfigMap %s/%s, key %s, is no list of reservations (%w); restore it, or delete the ConfigMap when no machine is on the host",
				host, Namespace, ledgerName(host), ledgerKey, err)
		}
	}
	book := make(map[string]Reservation, len(list))
	for _, r := range list {
		book[r.Machine] = r
	}
	return object, book, nil
}

// changeLedger changes a ledger by compare-and-swap until it wins.
func (s *Store) changeLedger(ctx context.Context, host Host, change func(map[string]Reservation) (changed bool, err error)) error {
	for {
		object, book, err := s.openLedger(ctx, host)
		if err != nil {
			return err
		}
		changed, err := change(book)
		if err != nil || !changed {
			return err
		}
		text, err := json.MarshalIndent(sorted(book), "", " ")
		if err != nil {
			return fmt.Errorf("write ledger of host %s: %w", host, err)
		}
		object.Data = map[string]string{ledgerKey: string(text)}
		if object.ResourceVersion == "" {
			err = s.client.Create(ctx, object)
		} else {
			err = s.client.Update(ctx, object)
		}
		switch {
		case err == nil:
			return nil
		case !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err):
			return fmt.Errorf("write ledger of host %s: %w", host, err)
		case ctx.Err() != nil:
			return fmt.Errorf("write ledger of host %s: %w", host, ctx.Err())
		}
	}
}
