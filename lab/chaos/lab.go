package chaos

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.temporal.io/sdk/client"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/activities"
	"aether.internal/aether/internal/capi"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/internal/site"
	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/lab/controlplane/pki"
	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/upstream/process"
	"aether.internal/aether/lab/world"
	"aether.internal/aether/workflows"
)

// Lab is a world whose worker is watched and can be struck.
type Lab struct {
	World     *world.World
	Kube      kubeclient.WithWatch // the management cluster
	Temporal  client.Client
	Site      *site.Site
	Leases    *lease.Store
	processes *temporalclient.Processes

	options  world.Options
	relay    *relay
	reports  *reports
	relayURL string
	queue    string // address of the relay to Temporal
	worker   *process.Process

	mu   sync.Mutex
	hits map[string]chan struct{} // by fault
	seen []timed                  // nil while nothing is recorded
	rec  bool
}

// timed is a call with its time.
type timed struct {
	call
	at time.Time
}

// Start starts a world and puts the relay before its worker.
func Start(ctx context.Context, dir string, out io.Writer) (*Lab, error) {
	options, err := world.FromCheckout(ctx, out, world.TestSpeed)
	if err != nil {
		return nil, err
	}
	options.Dir = dir
	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	options.Log = log
	w, err := world.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	l := &Lab{World: w, options: options, hits: map[string]chan struct{}{}}
	w.Faults().OnHit(l.hit)
	if err := l.connect(ctx, log); err != nil {
		return nil, errors.Join(err, l.Stop())
	}
	return l, nil
}

func (l *Lab) connect(ctx context.Context, log *slog.Logger) error {
	scheme, err := capi.Scheme()
	if err != nil {
		return err
	}
	if l.Kube, err = kubeclient.NewWithWatch(l.World.RestConfig(), kubeclient.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("client of the management cluster: %w", err)
	}
	l.Leases = lease.New(l.Kube)
	if l.Site, err = site.Load(l.World.SiteFile()); err != nil {
		return err
	}
	l.Temporal, err = temporalclient.Dial(ctx, temporalclient.Options{
		Address: l.World.Temporal.HostPort(), CodecKeys: l.World.CodecKeys(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	l.processes = temporalclient.NewProcesses(l.Temporal, workflows.TaskQueue)
	l.relay = &relay{faults: l.World.Faults(), seen: l.see, find: l.find, log: log}
	if l.relayURL, err = l.relay.start(ctx); err != nil {
		return err
	}
	l.reports = &reports{faults: l.World.Faults(), seen: l.see, log: log}
	l.queue, err = l.reports.start(ctx, l.World.Temporal.HostPort())
	return err
}

// Stop ends everything.
func (l *Lab) Stop() error {
	var errs []error
	if l.worker != nil && l.worker.Running() {
		errs = append(errs, l.worker.Stop(stopGrace))
	}
	if l.relayURL != "" {
		errs = append(errs, l.relay.close())
	}
	if l.queue != "" {
		errs = append(errs, l.reports.server.Close())
	}
	if l.Temporal != nil {
		l.Temporal.Close()
	}
	return errors.Join(append(errs, l.World.Stop())...)
}

// stopGrace is what the worker has to end by itself.
const stopGrace = 10 * time.Second

// Watch replaces the world's worker by one behind the relay.
func (l *Lab) Watch(ctx context.Context) error {
	if err := l.World.Kill("worker"); err != nil {
		return err
	}
	return l.startWorker(ctx)
}

// Unwatch gives the world its own worker back.
func (l *Lab) Unwatch(ctx context.Context) error {
	if err := l.worker.Stop(stopGrace); err != nil {
		return fmt.Errorf("stop the watched worker: %w", err)
	}
	return l.World.Restart(ctx, "worker")
}

const (
	workerHealth = "127.0.0.1:8291"
	// direct is what the worker reaches without the relay: registries, hosts and
	// machines. API servers stand at 192.168.0.2 and from 192.168.0.100.
	direct = "192.168.0.5,192.168.0.8,192.168.0.10,10.1.0.0/16"
)

func (l *Lab) startWorker(ctx context.Context) error {
	p, err := process.Start(process.Spec{
		Name: "watched worker", Program: filepath.Join(l.options.Product, "worker"), LogFile: l.World.LogFile("watched-worker"),
		Args: []string{
			"--kubeconfig=" + l.World.ManagementKubeconfig(), "--site=" + l.World.SiteFile(), "--temporal-address=" + l.queue,
			"--codec-keys=" + l.World.CodecKeys(), "--health-address=" + workerHealth,
		},
		Env: []string{"HOME=" + filepath.Join(l.options.Dir, "run", "home"), "HTTPS_PROXY=" + l.relayURL, "NO_PROXY=" + direct},
		Net: l.World.Fabric.Platform(),
	})
	if err != nil {
		return fmt.Errorf("start the watched worker: %w", err)
	}
	l.worker = p
	probe := process.HTTPProbe(process.HTTPClient(l.World.Fabric.Platform(), nil), "http://"+workerHealth+"/readyz")
	if err := p.WaitReady(ctx, probe); err != nil {
		return fmt.Errorf("start the watched worker: %w", err)
	}
	return nil
}

// see notes a call of the worker.
func (l *Lab) see(c call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rec {
		l.seen = append(l.seen, timed{c, time.Now()})
	}
}

// hit is told of every fault that happens.
func (l *Lab) hit(f faults.Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.hits[f.ID]; c != nil {
		close(c)
		delete(l.hits, f.ID)
	}
	if l.rec && f.Kind == faults.Delay && f.Place == placeTalos {
		l.seen = append(l.seen, timed{call{place: f.Place}, time.Now()})
	}
}

// placeTalos is where a machine gets its configuration.
const placeTalos = "talos/*/ApplyConfiguration"

// record returns the changing calls of the worker while run runs.
func (l *Lab) record(run func() error) ([]call, error) {
	talos, err := l.World.Faults().Inject(faults.Fault{Kind: faults.Delay, Place: placeTalos})
	if err != nil {
		return nil, err
	}
	defer l.World.Faults().Clear(talos)
	begin := time.Now()
	l.mu.Lock()
	l.rec, l.seen = true, nil
	l.mu.Unlock()
	err = run()
	l.mu.Lock()
	l.rec = false
	seen := l.seen
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for _, r := range l.World.ProxmoxRequests() {
		if r.Time.Add(r.Duration).Before(begin) || r.Verb == "GET" || r.Status != 200 {
			continue
		}
		seen = append(seen, timed{call{place: "pve/" + r.Verb + strings.TrimPrefix(r.Path, "/api2/json")}, r.Time.Add(r.Duration)})
	}
	slices.SortStableFunc(seen, func(a, b timed) int { return a.at.Compare(b.at) })
	calls := make([]call, 0, len(seen))
	for _, s := range seen {
		calls = append(calls, s.call)
	}
	return calls, nil
}

// find returns the API server at an address: the management cluster's, or a
// tenant's.
func (l *Lab) find(ctx context.Context, address string) (*target, error) {
	config := l.World.RestConfig()
	if serves(config.Host, address) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("address %q: %w", address, err)
		}
		ip, err := netip.ParseAddr(host)
		if err != nil {
			return nil, fmt.Errorf("address %q: %w", address, err)
		}
		pair, err := l.World.Management.IssueServing(pki.Request{CommonName: "kube-apiserver", Addresses: []netip.Addr{ip}})
		if err != nil {
			return nil, err
		}
		certificate, err := pair.TLS()
		if err != nil {
			return nil, err
		}
		return &target{place: placeManagement, certificate: certificate, config: config}, nil
	}
	list := &corev1.SecretList{}
	if err := l.Kube.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list Secrets: %w", err)
	}
	for _, secret := range list.Items {
		tenant, ok := strings.CutSuffix(secret.Name, "-kubeconfig")
		if !ok || secret.Type != clusterv1.ClusterSecretType || secret.Name != activities.ManagementKubeconfigSecret(tenant) {
			continue
		}
		config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data[activities.KubeconfigKey])
		if err != nil || !serves(config.Host, address) {
			continue
		}
		return l.tenantTarget(ctx, secret.Namespace, tenant, config)
	}
	return nil, nil //nolint:nilnil // not an API server
}

// tenantTarget stands in for a tenant's API server by a certificate of Kamaji's
// authority for it.
func (l *Lab) tenantTarget(ctx context.Context, namespace, tenant string, config *rest.Config) (*target, error) {
	serving := &corev1.Secret{}
	if err := l.Kube.Get(ctx, kubeclient.ObjectKey{Namespace: namespace, Name: tenant + "-api-server-certificate"}, serving); err != nil {
		return nil, fmt.Errorf("certificate of tenant %s: %w", tenant, err)
	}
	pair := pki.Pair{Certificate: serving.Data["apiserver.crt"], Key: serving.Data["apiserver.key"]}
	if block, _ := pem.Decode(pair.Certificate); block == nil {
		return nil, fmt.Errorf("certificate of tenant %s: Secret %s has none", tenant, serving.Name)
	}
	certificate, err := pair.TLS()
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return &target{place: placeTenant, certificate: certificate, config: config}, nil
}

// serves tells whether a server's URL is at an address.
func serves(server, address string) bool {
	u, err := url.Parse(server)
	return err == nil && u.Host == address
}
