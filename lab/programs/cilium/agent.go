package cilium

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/network"
	"aether.internal/aether/lab/programs/clusterip"
)

// CNIConfig is the file whose appearance makes a node ready, in the host's CNI
// directory.
const CNIConfig = "05-cilium.conflist"

// cniDir is where the pod sees the host's CNI directory.
const cniDir = "/host/etc/cni/net.d"

// agent is one run of cilium-agent.
type agent struct {
	name     string
	settings settings
	api      *clients
	host     *network.Namespace
	log      *slog.Logger
	healthy  atomic.Bool
	changed  chan struct{}
	routes   map[netip.Prefix]netip.Addr // set by us
}

// Agent is the main of cilium-agent.
func Agent(ctx context.Context, args []string, log *slog.Logger) error {
	flags := flag.NewFlagSet("cilium-agent", flag.ContinueOnError)
	dir := flags.String("config-dir", configMapDir, "directory with the configuration")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("cilium-agent: %w", err)
	}
	a := &agent{name: os.Getenv("K8S_NODE_NAME"), log: log, changed: make(chan struct{}, 1), routes: map[netip.Prefix]netip.Addr{}}
	if a.name == "" {
		return errors.New("K8S_NODE_NAME is not set")
	}
	var err error
	if a.settings, err = readSettings(*dir); err != nil {
		return err
	}
	if a.api, err = inCluster(); err != nil {
		return err
	}
	if a.host, err = network.Here(); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serveHealth(ctx, "127.0.0.1:9879", a.healthy.Load) })
	group.Go(func() error { return a.run(ctx) })
	return group.Wait()
}

func (a *agent) run(ctx context.Context) error {
	lab, err := clock()
	if err != nil {
		return err
	}
	timeout, err := time.ParseDuration(a.settings.get("crd-wait-timeout", "5m"))
	if err != nil {
		return fmt.Errorf("crd-wait-timeout: %w", err)
	}
	a.log.Info("waiting for CRDs", "timeout", timeout)
	if err := waitForCRDs(ctx, a.api, timeout); err != nil {
		return err
	}
	if err := lab.Sleep(ctx, latency.CiliumAgent, 1); err != nil {
		return err
	}
	a.watch(ctx)
	group, ctx := errgroup.WithContext(ctx)
	if a.settings.get("kube-proxy-replacement", "false") == "true" {
		proxy := &clusterip.Proxy{Client: a.api.core, Net: a.host, Log: a.log}
		group.Go(func() error { return proxy.Run(ctx) })
	}
	group.Go(func() error { return a.loop(ctx) })
	return group.Wait()
}

// watch pokes the loop when this node or any CiliumNode changes.
func (a *agent) watch(ctx context.Context) {
	poke := func() {
		select {
		case a.changed <- struct{}{}:
		default: // a pass is due already
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { poke() }, UpdateFunc: func(any, any) { poke() }, DeleteFunc: func(any) { poke() },
	}
	own := informers.NewSharedInformerFactoryWithOptions(a.api.core, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", a.name).String()
	}))
	nodes := dynamicinformer.NewDynamicSharedInformerFactory(a.api.any, 0)
	for _, informer := range []cache.SharedIndexInformer{
		own.Core().V1().Nodes().Informer(), nodes.ForResource(nodesResource()).Informer(),
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			a.log.Error("cannot watch nodes", "error", err)
		}
	}
	own.Start(ctx.Done())
	nodes.Start(ctx.Done())
}

const agentRetry = time.Second

func (a *agent) loop(ctx context.Context) error {
	for {
		var again <-chan time.Time
		if err := a.pass(ctx); err != nil {
			a.log.Warn("not everything is in place", "error", err)
			again = time.After(agentRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.changed:
		case <-again:
		}
	}
}

var errNoRange = errors.New("waiting for a pod CIDR")

// pass brings the node's network to what the cluster says.
func (a *agent) pass(ctx context.Context) error {
	self, err := a.api.core.CoreV1().Nodes().Get(ctx, a.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get own node: %w", err)
	}
	if err := publish(ctx, a.api, self, a.settings.get("ipam", "cluster-pool") == "kubernetes"); err != nil {
		return err
	}
	nodes, err := listNodes(ctx, a.api)
	if err != nil {
		return err
	}
	var own netip.Prefix
	var others []node
	for _, n := range nodes {
		if n.Name == a.name {
			own = n.podCIDR()
		} else {
			others = append(others, n)
		}
	}
	if !own.IsValid() {
		return errNoRange
	}
	if err := a.route(others); err != nil {
		return err
	}
	if a.settings.get("enable-ipv4-masquerade", "true") == "true" {
		if err := masquerade(a.host, own, others); err != nil {
			return err
		}
	}
	if err := a.writeCNI(own); err != nil {
		return err
	}
	a.healthy.Store(true)
	return nil
}

// route reaches every other node's pods by that node's address.
func (a *agent) route(others []node) error {
	if err := a.host.Sysctl("net/ipv4/ip_forward", "1"); err != nil {
		return err
	}
	wanted := map[netip.Prefix]netip.Addr{}
	for i := range others {
		if cidr, ip := others[i].podCIDR(), others[i].internalIP(); cidr.IsValid() && ip.IsValid() {
			wanted[cidr] = ip
		}
	}
	var errs []error
	for cidr := range a.routes {
		if _, still := wanted[cidr]; !still {
			errs = append(errs, a.host.DelRoute(cidr))
			delete(a.routes, cidr)
		}
	}
	for cidr, ip := range wanted {
		if a.routes[cidr] == ip {
			continue
		}
		if err := a.host.AddRoute(cidr, ip); err != nil {
			errs = append(errs, err)
			continue
		}
		a.routes[cidr] = ip
		a.log.Info("route to another node's pods", "cidr", cidr, "node", ip)
	}
	return errors.Join(errs...)
}

// writeCNI writes the CNI configuration, and moves others out of the way.
func (a *agent) writeCNI(own netip.Prefix) error {
	config, err := json.MarshalIndent(map[string]any{
		"cniVersion": "0.3.1", "name": "cilium",
		"plugins": []any{map[string]any{
			"type": "cilium-cni", "enable-debug": false, "log-file": "/var/run/cilium/cilium-cni.log",
			"ipam": map[string]any{"subnet": own.String()},
		}},
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("CNI configuration: %w", err)
	}
	path := filepath.Join(cniDir, CNIConfig)
	if known, err := os.ReadFile(path); err == nil && string(known) == string(config) {
		return nil
	}
	if a.settings.get("cni-exclusive", "true") == "true" {
		if err := moveOthers(); err != nil {
			return err
		}
	}
	if err := os.WriteFile(path+".new", config, 0o644); err != nil { //nolint:gosec // every runtime reads it
		return fmt.Errorf("CNI configuration: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("CNI configuration: %w", err)
	}
	a.log.Info("CNI configuration written", "path", path, "pod_cidr", own)
	return nil
}

func moveOthers() error {
	entries, err := os.ReadDir(cniDir)
	if err != nil {
		return fmt.Errorf("CNI directory: %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if name == CNIConfig || !strings.Contains(name, ".conf") || strings.HasSuffix(name, ".cilium_bak") {
			continue
		}
		path := filepath.Join(cniDir, name)
		if err := os.Rename(path, path+".cilium_bak"); err != nil {
			return fmt.Errorf("CNI directory: %w", err)
		}
	}
	return nil
}
