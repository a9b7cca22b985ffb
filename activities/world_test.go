package activities

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	controlplanev1 "aether.internal/aether/api/controlplane/v1alpha1"
	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/internal/proxmox"
	"aether.internal/aether/internal/site"
	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/latency"
	labmachine "aether.internal/aether/lab/machine"
	simulator "aether.internal/aether/lab/proxmox"
	"aether.internal/aether/lab/proxmox/access"
	"aether.internal/aether/lab/proxmox/blank"
)

const (
	workerID  = "6f1e0c52-8e0f-4a36-9a0e-0f6f2a3c4d5e"
	worker2ID = "7a2f1d63-8e0f-4a36-9a0e-0f6f2a3c4d5e"
	proxyID   = "8b3a2e74-8e0f-4a36-9a0e-0f6f2a3c4d5e"
)

// world is the homelab: its two hosts simulated on the loopback, and a
// management cluster in memory.
type world struct {
	t         *testing.T
	sim       *simulator.Cluster
	faults    *faults.Set
	site      *site.Site
	kube      client.WithWatch
	pve       *proxmox.Client
	leases    *lease.Store
	platform  Platform
	addresses map[string]string // where a node's port really is, by "node port"
	mu        sync.Mutex
	flushed   []string
	sshKey    []byte
	root      string // secret of root's token, once there is one
}

// speed makes a clone take 20 ms.
const speed = 100

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	return newWorldAt(t, speed, objects...)
}

func newWorldAt(t *testing.T, speed float64, objects ...client.Object) *world {
	t.Helper()
	w := &world{t: t, faults: &faults.Set{}, addresses: map[string]string{}}
	w.site = labSite(t)
	w.startProxmox(speed)
	w.kube = newKube(t, objects...)
	w.leases = lease.New(w.kube)
	w.platform = Platform{Kube: w.kube, Site: w.site, Proxmox: func(string) (*proxmox.Client, error) { return w.pve, nil }}
	return w
}

// labSite is the example with the simulator's templates.
func labSite(t *testing.T) *site.Site {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "examples", "site.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := site.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	hosts := s.Spec.Proxmox[0].Hosts
	hosts[0].Templates = site.Templates{Worker: 101, Proxy: 102}
	hosts[1].Templates = site.Templates{Worker: 201, Proxy: 202}
	return s
}

// newKube is a management cluster in memory.
func newKube(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme, v1alpha1.AddToScheme, controlplanev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(
		&v1alpha1.AetherCluster{}, &v1alpha1.AetherMachine{}, &v1alpha1.AetherVM{}, &controlplanev1.AetherControlPlane{},
	).Build()
}

func (w *world) startProxmox(speed float64) {
	w.t.Helper()
	clock, err := latency.NewClock(speed)
	if err != nil {
		w.t.Fatal(err)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	authorized, err := ssh.NewPublicKey(public)
	if err != nil {
		w.t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		w.t.Fatal(err)
	}
	w.sshKey = pem.EncodeToMemory(block)
	image := labmachine.Image{OS: "blank", Version: "v1", Agent: true}
	config := simulator.HomeLab(image, image)
	config.Clock, config.Faults, config.Hypervisor = clock, w.faults, blank.New(clock)
	config.AuthorizedKeys = []ssh.PublicKey{authorized}
	config.Listen = w.listen
	config.FlushNeighbour = func(node, device string, ip netip.Addr) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.flushed = append(w.flushed, node+" "+device+" "+ip.String())
		return nil
	}
	if w.sim, err = simulator.New(config); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(w.sim.Close)
	for _, node := range []string{"pv1-1", "pv1-2"} {
		w.sshBanner(node)
	}
	secret, err := w.sim.Token(access.Token{ID: "aether@pve!test"})
	if err != nil {
		w.t.Fatal(err)
	}
	var endpoints []string
	for _, node := range []string{"pv1-1", "pv1-2"} {
		endpoints = append(endpoints, strings.TrimSuffix(w.sim.Endpoint(node), "/api2/json"))
	}
	w.pve, err = proxmox.New(proxmox.Config{Cluster: "homelab", Endpoints: endpoints, Token: proxmox.Token("aether@pve!test=" + secret), CA: w.sim.CAPEM()})
	if err != nil {
		w.t.Fatal(err)
	}
}

// sshBanner waits until a host's SSH door serves: one that is closed before it
// has begun would serve for ever.
func (w *world) sshBanner(node string) {
	w.t.Helper()
	w.mu.Lock()
	address := w.addresses[node+" 22"]
	w.mu.Unlock()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // only read
	banner := make([]byte, len("SSH-2.0"))
	if _, err := io.ReadFull(conn, banner); err != nil || string(banner) != "SSH-2.0" {
		w.t.Fatalf("ssh of %s: %q, %v", node, banner, err)
	}
}

// listen gives each port of a node one on the loopback, the same after the
// host was off.
func (w *world) listen(node, address string) (net.Listener, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	key := node + " " + port
	if w.addresses[key] == "" {
		w.addresses[key] = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", w.addresses[key])
	if err == nil {
		w.addresses[key] = l.Addr().String()
	}
	return l, err
}

// inject puts a fault in force and lifts it at the test's end.
func (w *world) inject(f faults.Fault) (id string) {
	w.t.Helper()
	id, err := w.faults.Inject(f)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.faults.Clear(id) })
	return id
}

func (w *world) hits(id string) int {
	for _, f := range w.faults.List() {
		if f.ID == id {
			return f.Hits
		}
	}
	return -1
}

func (w *world) machines() *Machines { return &Machines{Platform: w.platform, Leases: w.leases} }
func (w *world) proxmox() *Proxmox {
	return &Proxmox{Platform: w.platform, Leases: w.leases, Door: func(string) (*proxmox.Door, error) { return nil, nil }} //nolint:nilnil // no door is an answer
}
func (w *world) tenants() *Tenants { return &Tenants{Platform: w.platform, Leases: w.leases} }

// vm reads a machine's record.
func (w *world) vm(id string) *v1alpha1.AetherVM {
	w.t.Helper()
	vm := &v1alpha1.AetherVM{}
	if err := w.kube.Get(w.t.Context(), client.ObjectKey{Namespace: domain.SystemNamespace, Name: id}, vm); err != nil {
		w.t.Fatal(err)
	}
	return vm
}

// must calls an activity twice: the second time finds its own work.
func (w *world) twice(name string, activity func() error) {
	w.t.Helper()
	for attempt := 1; attempt <= 2; attempt++ {
		if err := activity(); err != nil {
			w.t.Fatalf("%s, attempt %d: %v", name, attempt, err)
		}
	}
}

// leased is a world in which the worker holds its leases.
func leased(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := newWorld(t, append(objects, tenantObject(), workerVM(workerID, "pv1-1"))...)
	w.lease(workerID)
	return w
}

func (w *world) lease(id string) *LeasedMachine {
	w.t.Helper()
	got, err := w.machines().LeaseMachine(w.t.Context(), MachineRef{MachineID: id})
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

// observed reads the machine's VM in Proxmox.
func (w *world) observed(id string) proxmox.Observed {
	w.t.Helper()
	spec := w.vm(id).Spec
	seen, err := w.pve.VM(w.t.Context(), spec.Host, int(spec.VMID))
	if err != nil {
		w.t.Fatal(err)
	}
	return seen
}

// templates is how many VMs the simulator has before anything was made.
const templates = 4

func (w *world) count() int { return len(w.sim.VMs()) - templates }

func tenantObject() *v1alpha1.AetherCluster {
	return &v1alpha1.AetherCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-demo", Name: "demo", Generation: 1},
		Spec: v1alpha1.AetherClusterSpec{
			Version: "v1.35.4", Network: "tenant",
			ClusterNetwork:       v1alpha1.ClusterNetwork{PodCIDR: "10.244.0.0/16", ServiceCIDR: "10.96.0.0/16", DNSDomain: "cluster.local"},
			ControlPlaneEndpoint: v1alpha1.APIEndpoint{Host: "10.1.1.10", Port: 6443},
			Pools:                []v1alpha1.Pool{{Name: "workers", Class: "small", Hosts: []string{"pv1-1", "pv1-2"}, Replicas: new(int32(2)), MinSize: new(int32(1)), MaxSize: new(int32(4))}},
		},
	}
}

func workerVM(id, host string) *v1alpha1.AetherVM {
	return &v1alpha1.AetherVM{
		ObjectMeta: metav1.ObjectMeta{Namespace: domain.SystemNamespace, Name: id, Labels: map[string]string{domain.TenantLabel: "demo", domain.PoolLabel: "workers"}},
		Spec: v1alpha1.AetherVMSpec{
			Tenant: "demo", Role: v1alpha1.RoleWorker, Pool: "workers", Class: "small", ProxmoxCluster: "homelab", Host: host,
			VMName: domain.WorkerName("demo", "workers", domain.MachineID(id)), Cores: 2, MemoryMiB: 2048, DiskGiB: 20,
			ClaimRef: v1alpha1.ClaimReference{Namespace: "tenant-demo", Name: "demo-workers-" + id[:4]},
		},
	}
}

func proxyVM() *v1alpha1.AetherVM {
	return &v1alpha1.AetherVM{
		ObjectMeta: metav1.ObjectMeta{Namespace: domain.SystemNamespace, Name: proxyID, Labels: map[string]string{domain.TenantLabel: "demo"}},
		Spec: v1alpha1.AetherVMSpec{
			Tenant: "demo", Role: v1alpha1.RoleProxy, Generation: 1, ProxmoxCluster: "homelab", Host: "pv1-1", VMName: "demo-proxy-1", Cores: 1, MemoryMiB: 512,
		},
	}
}

func aetherMachine(id string) *v1alpha1.AetherMachine {
	return &v1alpha1.AetherMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-demo", Name: "demo-workers-" + id[:4]},
		Spec:       v1alpha1.AetherMachineSpec{Pool: "workers", Class: "small", Host: "pv1-1"},
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not come to hold", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func refOf(id string) MachineRef { return MachineRef{MachineID: id} }

// errorIs checks an error's type and text.
func errorIs(err error, kind string, final bool, parts ...string) error {
	got, ok := applicationError(err)
	if !ok {
		return fmt.Errorf("got %v, want an application error of type %s", err, kind)
	}
	if got.Type() != kind || got.NonRetryable() != final {
		return fmt.Errorf("got type %s, final %t; want %s, %t: %w", got.Type(), got.NonRetryable(), kind, final, err)
	}
	for _, part := range parts {
		if !strings.Contains(got.Error(), part) {
			return fmt.Errorf("%q is not in %q", part, got.Error())
		}
	}
	return nil
}

// refuse is a dialer to which nothing answers.
func (w *world) refuse(ctx context.Context, network, _ string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, "127.0.0.1:1")
}
