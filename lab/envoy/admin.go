package envoy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func (p *proxy) listenAdmin(ctx context.Context) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", p.boot.admin)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	return listener, nil
}

// serveAdmin answers the calls of the admin interface that are of use here.
func (p *proxy) serveAdmin(ctx context.Context, listener net.Listener, quit func()) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", p.adminReady)
	mux.HandleFunc("GET /stats", p.adminStats)
	mux.HandleFunc("GET /config_dump", p.adminDump)
	mux.HandleFunc("GET /clusters", p.adminClusters)
	mux.HandleFunc("GET /listeners", p.adminListeners)
	mux.HandleFunc("GET /server_info", p.adminInfo)
	mux.HandleFunc("POST /drain_listeners", func(w http.ResponseWriter, _ *http.Request) {
		p.drainListeners()
		fmt.Fprintln(w, "OK")
	})
	mux.HandleFunc("POST /quitquitquit", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "OK")
		quit()
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin: %w", err)
	}
	return nil
}

func (p *proxy) stateName() string {
	p.mu.Lock()
	draining := p.draining
	p.mu.Unlock()
	switch {
	case draining:
		return "DRAINING"
	case p.live():
		return "LIVE"
	default:
		return "INITIALIZING"
	}
}

func (p *proxy) adminReady(w http.ResponseWriter, _ *http.Request) {
	name := p.stateName()
	if name != "LIVE" {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintln(w, name)
}

func (p *proxy) adminStats(w http.ResponseWriter, r *http.Request) {
	var filter *regexp.Regexp
	if text := r.URL.Query().Get("filter"); text != "" {
		var err error
		if filter, err = regexp.Compile(text); err != nil {
			http.Error(w, "Invalid re2 regex", http.StatusBadRequest)
			return
		}
	}
	p.stats.print(w, map[string]string{
		"cluster_manager.cds.version_text":  p.version(resource.ClusterType),
		"listener_manager.lds.version_text": p.version(resource.ListenerType),
	}, filter)
}

func (p *proxy) adminInfo(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"version": "lab/" + Version + "/Clean/RELEASE/none", "state": p.stateName(),
		"uptime_current_epoch": fmt.Sprintf("%ds", int(time.Since(p.started).Seconds())),
		"node":                 map[string]string{"id": p.boot.node.GetId(), "cluster": p.boot.node.GetCluster()},
	})
}

func (p *proxy) adminClusters(w http.ResponseWriter, _ *http.Request) {
	for _, c := range p.sortedClusters() {
		for _, h := range c.hosts {
			health := "healthy"
			if !h.healthy.Load() {
				health = "/failed_active_hc"
			}
			fmt.Fprintf(w, "%s::%s::health_flags::%s\n", c.config.GetName(), h.address, health)
		}
	}
}

func (p *proxy) adminListeners(w http.ResponseWriter, _ *http.Request) {
	for _, l := range p.sortedListeners() {
		fmt.Fprintf(w, "%s::%s\n", l.config.GetName(), l.address)
	}
}

// adminDump is the configuration as it runs, in the real one's sections.
func (p *proxy) adminDump(w http.ResponseWriter, _ *http.Request) {
	clusters := &adminv3.ClustersConfigDump{VersionInfo: p.version(resource.ClusterType)}
	for _, c := range p.sortedClusters() {
		clusters.DynamicActiveClusters = append(clusters.DynamicActiveClusters, &adminv3.ClustersConfigDump_DynamicCluster{
			VersionInfo: clusters.GetVersionInfo(), Cluster: pack(c.config),
		})
	}
	listeners := &adminv3.ListenersConfigDump{VersionInfo: p.version(resource.ListenerType)}
	for _, l := range p.sortedListeners() {
		listeners.DynamicListeners = append(listeners.DynamicListeners, &adminv3.ListenersConfigDump_DynamicListener{
			Name: l.config.GetName(),
			ActiveState: &adminv3.ListenersConfigDump_DynamicListenerState{
				VersionInfo: listeners.GetVersionInfo(), Listener: pack(l.config),
			},
		})
	}
	dump := &adminv3.ConfigDump{Configs: []*anypb.Any{
		pack(&adminv3.BootstrapConfigDump{Bootstrap: p.boot.digest}), pack(clusters), pack(listeners),
	}}
	data, err := protojson.MarshalOptions{UseProtoNames: true, Multiline: true}.Marshal(dump)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
}

// pack wraps a message; one that was parsed from the wire always packs.
func pack(message proto.Message) *anypb.Any {
	packed, err := anypb.New(message)
	if err != nil {
		return &anypb.Any{}
	}
	return packed
}

func (p *proxy) sortedClusters() []*cluster {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*cluster, 0, len(p.clusters))
	for _, c := range p.clusters {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *cluster) int { return cmp.Compare(a.config.GetName(), b.config.GetName()) })
	return list
}

func (p *proxy) sortedListeners() []*listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*listener, 0, len(p.listeners))
	for _, l := range p.listeners {
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b *listener) int { return cmp.Compare(a.config.GetName(), b.config.GetName()) })
	return list
}
