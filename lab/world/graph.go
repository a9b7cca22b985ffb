package world

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// part is one step of starting the world. It is ready when start returns.
type part struct {
	name  string
	needs []string
	start func(ctx context.Context) error
}

// partTime bounds the start of one part, so that a part that is never ready
// is named instead of waited for.
const partTime = 3 * time.Minute

// chosen returns the parts of that names and all they need; no names are all
// parts.
func chosen(parts []part, names []string) ([]part, error) {
	if len(names) == 0 {
		return parts, nil
	}
	byName := map[string]part{}
	all := make([]string, 0, len(parts))
	for _, p := range parts {
		byName[p.name] = p
		all = append(all, p.name)
	}
	wanted := map[string]bool{}
	var want func(name string) error
	want = func(name string) error {
		p, ok := byName[name]
		if !ok {
			return fmt.Errorf("parts: %q is not a part of the lab; there are %s", name, strings.Join(all, ", "))
		}
		if wanted[name] {
			return nil
		}
		wanted[name] = true
		for _, need := range p.needs {
			if err := want(need); err != nil {
				return err
			}
		}
		return nil
	}
	for _, name := range names {
		if err := want(name); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return !wanted[p.name] }), nil
}

// startAll starts the parts, each as soon as what it needs is ready. started
// is called, from any goroutine, after each.
func startAll(ctx context.Context, parts []part, started func(name string, took time.Duration)) error {
	ready := map[string]chan struct{}{}
	for _, p := range parts {
		ready[p.name] = make(chan struct{})
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range parts {
		group.Go(func() error {
			for _, need := range p.needs {
				select {
				case <-ready[need]:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			begin := time.Now()
			if err := startPart(ctx, p); err != nil {
				return err
			}
			started(p.name, time.Since(begin))
			close(ready[p.name])
			return nil
		})
	}
	return group.Wait()
}

func startPart(ctx context.Context, p part) error {
	ctx, cancel := context.WithTimeout(ctx, partTime)
	defer cancel()
	if err := p.start(ctx); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	return nil
}
