package world

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestChosen(t *testing.T) {
	t.Parallel()
	parts := []part{{name: "a"}, {name: "b", needs: []string{"a"}}, {name: "c", needs: []string{"b"}}, {name: "d"}}
	for name, tc := range map[string]struct {
		names []string
		want  []string
		err   string
	}{
		"all":               {want: []string{"a", "b", "c", "d"}},
		"one without needs": {names: []string{"d"}, want: []string{"d"}},
		"with all needs":    {names: []string{"c"}, want: []string{"a", "b", "c"}},
		"unknown":           {names: []string{"x"}, err: `"x" is not a part of the lab; there are a, b, c, d`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := chosen(parts, tc.names)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error is %v, want %q in it", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, p := range got {
				names = append(names, p.name)
			}
			if diff := cmp.Diff(tc.want, names); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAllPartsNeedKnownParts(t *testing.T) {
	t.Parallel()
	parts := (&World{}).parts()
	for _, p := range parts {
		if _, err := chosen(parts, []string{p.name}); err != nil {
			t.Errorf("%s: %v", p.name, err)
		}
	}
}

func TestStartAllKeepsTheOrderOfNeeds(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var order []string
	note := func(name string) func(context.Context) error {
		return func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
			return nil
		}
	}
	parts := []part{
		{"late", []string{"middle", "side"}, note("late")},
		{"middle", []string{"first"}, note("middle")},
		{"side", nil, note("side")},
		{"first", nil, note("first")},
	}
	if err := startAll(t.Context(), parts, func(string, time.Duration) {}); err != nil {
		t.Fatal(err)
	}
	if len(order) != len(parts) || order[len(order)-1] != "late" || slices.Index(order, "first") > slices.Index(order, "middle") {
		t.Errorf("order is %v", order)
	}
}

func TestStartAllEndsWithTheFirstFailure(t *testing.T) {
	t.Parallel()
	broken := errors.New("does not work")
	parts := []part{
		{"broken", nil, func(context.Context) error { return broken }},
		{"waits", nil, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
		{"never", []string{"broken"}, func(context.Context) error { t.Error("was started without what it needs"); return nil }},
	}
	err := startAll(t.Context(), parts, func(string, time.Duration) {})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "start broken") {
		t.Errorf("error is %v", err)
	}
}
