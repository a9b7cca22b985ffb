package lease

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// ErrExhausted means that everything is held. The error is an *ExhaustedError.
var ErrExhausted = errors.New("nothing is free")

// ExhaustedError says that a pool has nothing free, and who holds it.
type ExhaustedError struct {
	What     string // what was asked for
	Remedy   string // what to do
	Holdings []Holding
	Refused  []string // values that something outside of Aether has
}

// Error tells who holds how much and what to do.
func (e *ExhaustedError) Error() string {
	byTenant := map[string]int{}
	quarantined, next := 0, time.Time{}
	for _, h := range e.Holdings {
		if h.FreeAt.IsZero() {
			byTenant[h.Holder.Tenant]++
			continue
		}
		quarantined++
		if next.IsZero() || h.FreeAt.Before(next) {
			next = h.FreeAt
		}
	}
	var parts []string
	for _, tenant := range slices.Sorted(maps.Keys(byTenant)) {
		parts = append(parts, fmt.Sprintf("tenant %s holds %d", tenant, byTenant[tenant]))
	}
	if quarantined > 0 {
		parts = append(parts, fmt.Sprintf("%d in quarantine, the first until %s", quarantined, next.UTC().Format(time.RFC3339)))
	}
	if len(e.Refused) > 0 {
		parts = append(parts, fmt.Sprintf("%d taken outside of Aether (%s)", len(e.Refused), strings.Join(e.Refused, ", ")))
	}
	return fmt.Sprintf("no %s is free: %s; %s", e.What, strings.Join(parts, "; "), e.Remedy)
}

// Unwrap gives ErrExhausted.
func (e *ExhaustedError) Unwrap() error { return ErrExhausted }

func (s *Store) exhausted(p pool, entries map[string]entry, refused map[string]bool) error {
	e := &ExhaustedError{What: p.what, Remedy: p.remedy, Refused: slices.Sorted(maps.Keys(refused))}
	for value := range p.values {
		if one, ok := entries[leaseName(p.kind, p.name, value)]; ok {
			e.Holdings = append(e.Holdings, s.holding(one))
		}
	}
	return e
}
