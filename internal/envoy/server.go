package envoy

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
)

// settleInterval is how often the server looks for what is left to do: retries
// after NACKs, writes that failed, reports that are due.
const settleInterval = time.Second

// Server serves each tenant's configuration to that tenant's proxy.
type Server struct {
	versions Versions
	reporter Reporter
	log      *slog.Logger
	now      func() time.Time
	cache    cachev3.SnapshotCache
	wake     chan struct{}

	mu      sync.Mutex
	synced  bool // a set of tenants was given
	proxies map[ID]*proxy
}

// NewServer returns a server that serves nobody until Apply was called, and
// does its own writing while Run runs.
func NewServer(versions Versions, reporter Reporter, log *slog.Logger, now func() time.Time) *Server {
	return &Server{
		versions: versions, reporter: reporter, log: log, now: now,
		cache:   cachev3.NewSnapshotCache(true, cachev3.IDHash{}, nil),
		wake:    make(chan struct{}, 1),
		proxies: map[ID]*proxy{},
	}
}

// Apply makes these the tenants that are served. A proxy that is no longer
// among them, such as one of an old generation, loses its stream. One that
// cannot be rendered keeps what it had, and its status says why.
func (s *Server) Apply(tenants []Tenant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced = true
	present := make(map[ID]bool, len(tenants))
	for _, t := range tenants {
		id := t.ID()
		if err := id.Validate(); err != nil {
			s.log.Error("tenant is not served", "tenant", t.Name, "error", err)
			continue
		}
		present[id] = true
		p, known := s.proxies[id]
		if !known {
			p = &proxy{acked: map[string]string{}, streams: map[*stream]struct{}{}}
			s.proxies[id] = p
		}
		if err := p.want(t); err != nil {
			s.log.Error("configuration is not served", "tenant", id.Tenant, "generation", id.Generation, "error", err)
		}
	}
	for id, p := range s.proxies {
		if present[id] {
			continue
		}
		for st := range p.streams {
			st.end(errRevoked)
		}
		delete(s.proxies, id)
		s.cache.ClearSnapshot(id.NodeID())
	}
	s.poke()
}

// Serves tells whether the proxy is one that is served now.
func (s *Server) Serves(id ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.proxies[id]
	return known
}

// Status returns what is known of a proxy, and false when it is not served.
func (s *Server) Status(id ID) (Status, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, known := s.proxies[id]
	if !known {
		return Status{ID: id}, false
	}
	status := p.status(id)
	status.ReportedAt = s.now()
	return status, true
}

// Run numbers and publishes configurations, rolls back after NACKs, tries
// again, and reports, until the context ends.
func (s *Server) Run(ctx context.Context) error {
	ticker := time.NewTicker(settleInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-s.wake:
		}
		for _, id := range s.ids() {
			if err := s.settle(ctx, id); err != nil && ctx.Err() == nil {
				s.log.Error("proxy is not settled, will try again", "tenant", id.Tenant, "generation", id.Generation, "error", err)
			}
		}
	}
}

func (s *Server) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Server) ids() []ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]ID, 0, len(s.proxies))
	for id := range s.proxies {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b ID) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Generation, b.Generation))
	})
	return ids
}

// settle does what is due for one proxy. Only Run's goroutine calls it; it
// holds no lock while it writes, and looks again after.
func (s *Server) settle(ctx context.Context, id ID) error {
	view, known := s.view(id)
	if !known {
		return nil
	}
	var err error
	switch {
	case view.hash != "" && view.version == "":
		err = s.publish(ctx, id, view, false)
	case view.rejected != nil && !s.now().Before(view.retryAt):
		err = s.publish(ctx, id, view, true)
	case view.rejected != nil && !view.undone:
		err = s.rollBack(ctx, id, view)
	case view.applied() && view.goodHash != view.hash:
		err = s.recordGood(ctx, id, view)
	}
	if err != nil {
		return err
	}
	return s.report(ctx, id)
}

// view copies the parts of a proxy that settle decides on.
func (s *Server) view(id ID) (proxy, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, known := s.proxies[id]
	if !known {
		return proxy{}, false
	}
	view := *p
	view.acked = map[string]string{}
	for kind, version := range p.acked {
		view.acked[kind] = version
	}
	return view, true
}

// publish gives the wanted configuration a version and serves it.
func (s *Server) publish(ctx context.Context, id ID, view proxy, again bool) error {
	version, err := s.number(ctx, id, view.hash, again)
	if err != nil {
		return err
	}
	return s.serve(ctx, id, view, version, view.resources, func(p *proxy) {
		p.version, p.rolledBack, p.rejected, p.undone = version, false, nil, false
	})
}

// rollBack serves the last good configuration under a version of its own, so
// that what the proxy applied of the refused one is undone. Without a last good
// one, or with the same content, there is nothing better to serve.
func (s *Server) rollBack(ctx context.Context, id ID, view proxy) error {
	good, err := s.versions.LastGood(ctx, id)
	if err != nil {
		return err
	}
	if good == nil {
		s.noteUndone(id, view)
		return nil
	}
	resources, err := Snapshot(*good)
	if err != nil {
		return fmt.Errorf("last good configuration of %s: %w", id, err)
	}
	hash, err := resources.Hash()
	if err != nil {
		return err
	}
	if hash == view.hash {
		s.noteUndone(id, view)
		return nil
	}
	version, err := s.number(ctx, id, hash, false)
	if err != nil {
		return err
	}
	s.log.Warn("proxy refused its configuration, the last good one goes out again", "tenant", id.Tenant,
		"generation", id.Generation, "refused", view.version, "version", version, "reason", view.rejected.Reason)
	return s.serve(ctx, id, view, version, resources, func(p *proxy) { p.rolledBack, p.undone = true, true })
}

func (s *Server) noteUndone(id ID, view proxy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, known := s.proxies[id]; known && p.rejected == view.rejected {
		p.undone = true
	}
}

func (s *Server) number(ctx context.Context, id ID, hash string, again bool) (string, error) {
	number, err := s.versions.Number(ctx, id, hash, again)
	if err != nil {
		return "", err
	}
	return strconv.FormatUint(number, 10) + "-" + hash[:12], nil
}

// serve hands a snapshot out, unless the wanted state moved on meanwhile.
func (s *Server) serve(ctx context.Context, id ID, view proxy, version string, resources Resources, note func(*proxy)) error {
	snapshot, err := cachev3.NewSnapshot(version, resources.byType())
	if err != nil {
		return fmt.Errorf("configuration of %s: %w", id, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, known := s.proxies[id]
	if !known || p.hash != view.hash {
		s.poke()
		return nil
	}
	note(p)
	if err := s.cache.SetSnapshot(ctx, id.NodeID(), snapshot); err != nil {
		return fmt.Errorf("configuration of %s: %w", id, err)
	}
	return nil
}

func (s *Server) recordGood(ctx context.Context, id ID, view proxy) error {
	if err := s.versions.SetLastGood(ctx, id, view.wanted); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, known := s.proxies[id]; known {
		p.goodHash = view.hash
		if p.hash == view.hash {
			p.retries = 0
		}
	}
	return nil
}

// report tells what changed. Of several replicas only one that the proxy has
// talked to has anything to say.
func (s *Server) report(ctx context.Context, id ID) error {
	s.mu.Lock()
	p, known := s.proxies[id]
	if !known || !p.everOnline {
		s.mu.Unlock()
		return nil
	}
	status := p.status(id)
	status.ReportedAt = s.now()
	due := !status.same(p.reported) || (status.Connected && status.ReportedAt.Sub(p.reported.ReportedAt) >= ReportInterval)
	s.mu.Unlock()
	if !due {
		return nil
	}
	if err := s.reporter.Report(ctx, status); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.reported = status
	return nil
}
