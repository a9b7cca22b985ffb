package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// proxy is the whole program: what it was told and what it runs.
type proxy struct {
	boot      *boot
	drainTime time.Duration
	stdout    io.Writer
	log       *slog.Logger
	stats     *stats
	started   time.Time
	draining  bool

	mu        sync.Mutex
	versions  map[string]string
	clusters  map[string]*cluster
	listeners map[string]*listener
}

func newProxy(b *boot, drainTime time.Duration, stdout io.Writer, log *slog.Logger) *proxy {
	return &proxy{
		boot: b, drainTime: drainTime, stdout: &lockedWriter{w: stdout}, log: log, stats: newStats(), started: time.Now(),
		versions: map[string]string{}, clusters: map[string]*cluster{}, listeners: map[string]*listener{},
	}
}

// lockedWriter keeps the access log's lines whole.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(data)
}

func (p *proxy) version(kind string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.versions[kind]
}

func (p *proxy) setVersion(kind, version string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.versions[kind] = version
}

// live tells whether the start is over: both types have arrived and every
// cluster knows of its servers' health.
func (p *proxy) live() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.versions[resource.ClusterType] == "" || p.versions[resource.ListenerType] == "" {
		return false
	}
	for _, c := range p.clusters {
		if !c.warm() {
			return false
		}
	}
	return true
}

func (p *proxy) cluster(name string) (*cluster, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, found := p.clusters[name]
	return c, found
}

// takeClusters makes these the clusters. Each is checked by itself, so that of
// an update with a bad one the others are applied all the same.
func (p *proxy) takeClusters(ctx context.Context, resources []*anypb.Any) error {
	wanted := map[string]bool{}
	var errs []error
	for _, item := range resources {
		var config clusterv3.Cluster
		if err := item.UnmarshalTo(&config); err != nil {
			errs = append(errs, err)
			continue
		}
		wanted[config.GetName()] = true
		if err := p.setCluster(ctx, &config); err != nil {
			errs = append(errs, fmt.Errorf("Error adding/updating cluster(s) %s: %w", config.GetName(), err)) //nolint:staticcheck // the real one's text
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, c := range p.clusters {
		if !wanted[name] {
			c.stop()
			delete(p.clusters, name)
		}
	}
	p.stats.set("cluster_manager.active_clusters", int64(len(p.clusters)))
	return errors.Join(errs...)
}

func (p *proxy) setCluster(ctx context.Context, config *clusterv3.Cluster) error {
	old, known := p.cluster(config.GetName())
	if known && proto.Equal(old.config, config) {
		return nil
	}
	fresh, err := newCluster(config, p.stats)
	if err != nil {
		return err
	}
	fresh.start(context.WithoutCancel(ctx))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clusters[config.GetName()] = fresh
	if known {
		old.stop() // its connections live on
	}
	return nil
}

// takeListeners makes these the listeners, each by itself as well.
func (p *proxy) takeListeners(_ context.Context, resources []*anypb.Any) error {
	wanted := map[string]bool{}
	var errs []error
	for _, item := range resources {
		var config listenerv3.Listener
		if err := item.UnmarshalTo(&config); err != nil {
			errs = append(errs, err)
			continue
		}
		wanted[config.GetName()] = true
		if err := p.setListener(&config); err != nil {
			errs = append(errs, fmt.Errorf("Error adding/updating listener(s) %s: %w", config.GetName(), err)) //nolint:staticcheck // the real one's text
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, l := range p.listeners {
		if !wanted[name] {
			l.retire(p.drainTime)
			delete(p.listeners, name)
		}
	}
	p.stats.set("listener_manager.total_listeners_active", int64(len(p.listeners)))
	return errors.Join(errs...)
}

func (p *proxy) setListener(config *listenerv3.Listener) error {
	p.mu.Lock()
	old, known := p.listeners[config.GetName()]
	p.mu.Unlock()
	if known && proto.Equal(old.config, config) {
		return nil
	}
	fresh, err := p.newListener(config)
	if err != nil {
		return err
	}
	if known && old.address == fresh.address {
		// The socket passes from the one to the other: nobody is refused.
		fresh.socket = old.socket.share()
	} else if fresh.socket, err = listen(fresh.address, config.GetSocketOptions()); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listeners[config.GetName()] = fresh
	fresh.start()
	if known {
		old.retire(p.drainTime)
	}
	return nil
}

// drainListeners stops accepting, as the admin call asks for.
func (p *proxy) drainListeners() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining = true
	for name, l := range p.listeners {
		l.retire(p.drainTime)
		delete(p.listeners, name)
	}
	p.stats.set("listener_manager.total_listeners_active", 0)
}

func (p *proxy) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.listeners)) {
		p.listeners[name].retire(0)
	}
	for _, c := range p.clusters {
		c.stop()
	}
}
