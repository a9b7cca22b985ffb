package talos_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	config "aether.internal/aether/internal/talos"
	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/controlplane"
	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/hypervisor"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/namespace"
	"aether.internal/aether/lab/network"
	"aether.internal/aether/lab/registry"
	"aether.internal/aether/lab/talos"
	"aether.internal/aether/lab/talos/timeserver"
	"aether.internal/aether/lab/upstream"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == container.Command {
		os.Exit(container.Main(os.Args[2:]))
	}
	if !namespace.Inside() {
		// There is no network to build with inside.
		if err := upstream.Share(context.Background(), os.Stderr, upstream.Kubernetes); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(namespace.RunTests(m))
}

// world is a site with everything that a worker needs.
type world struct {
	fabric   *network.Fabric
	hyper    *hypervisor.Hypervisor
	faults   *faults.Set
	registry *registry.Registry
	dir      string

	plane  *controlplane.ControlPlane
	client kubernetes.Interface
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newWorld makes the site without a control plane.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{dir: t.TempDir(), faults: &faults.Set{}}
	var err error
	w.fabric, err = network.NewFabric(network.DefaultTopology())
	check(t, err)
	t.Cleanup(func() { check(t, w.fabric.Close()) })
	w.serveTime(t)
	w.serveImages(t)
	clock, err := latency.NewClock(50)
	check(t, err)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	system := talos.New(talos.Config{
		Clock: clock, Faults: w.faults, Containers: container.New("/proc/self/exe", log), PublicCAs: w.registry.PublicCAPEM(), Log: log,
	})
	w.hyper = hypervisor.New(w.fabric, map[string]hypervisor.System{talos.OS: system}, log, w.dir)
	t.Cleanup(w.hyper.Close)
	return w
}

func (w *world) background(t *testing.T, serve func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (w *world) serveTime(t *testing.T) {
	t.Helper()
	conn, err := w.fabric.Router().ListenPacket("udp", "192.168.0.1:123")
	check(t, err)
	w.background(t, func(ctx context.Context) error { return timeserver.Serve(ctx, conn) })
}

func (w *world) serveImages(t *testing.T) {
	t.Helper()
	var err error
	w.registry, err = registry.New(registry.Config{})
	check(t, err)
	ns, err := w.fabric.AddSubnetMember("mgmt", "harbor", netip.MustParseAddr("192.168.0.5"))
	check(t, err)
	listener, err := ns.Listen("tcp", "192.168.0.5:443")
	check(t, err)
	w.background(t, func(ctx context.Context) error { return w.registry.Serve(ctx, listener) })
}

// startControlPlane starts a real one with what Kamaji sets up for joining.
func (w *world) startControlPlane(t *testing.T, arguments map[controlplane.Component][]string) {
	t.Helper()
	paths, err := upstream.Ensure(t.Context(), os.Stderr, upstream.Kubernetes)
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	w.plane, err = controlplane.Start(ctx, controlplane.Config{
		Name: "demo", Dir: filepath.Join(w.dir, "controlplane"), Address: netip.MustParseAddr("192.168.0.2"),
		Kubernetes: paths[upstream.Kubernetes], ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"), PodCIDR: netip.MustParsePrefix("10.244.0.0/16"),
		Arguments: arguments, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	check(t, err)
	t.Cleanup(func() { check(t, w.plane.Stop()) })
	w.client, err = kubernetes.NewForConfig(w.plane.RestConfig())
	check(t, err)
	for name, role := range map[string]string{
		"kubelet-bootstrap": "system:node-bootstrapper",
		"approve-client":    "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
	} {
		w.bind(t, name, role, "system:bootstrappers:kubeadm:default-node-token")
	}
	w.bind(t, "approve-renewal", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "system:nodes")
	w.background(t, w.approveServing)
}

func (w *world) bind(t *testing.T, name, role, group string) {
	t.Helper()
	_, err := w.client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
	}, metav1.CreateOptions{})
	check(t, err)
}

// approveServing stands in for the platform's approver.
func (w *world) approveServing(ctx context.Context) error {
	csrs := w.client.CertificatesV1().CertificateSigningRequests()
	for ctx.Err() == nil {
		list, err := csrs.List(ctx, metav1.ListOptions{})
		if err == nil {
			for i := range list.Items {
				request := &list.Items[i]
				if request.Spec.SignerName != certificatesv1.KubeletServingSignerName || len(request.Status.Conditions) > 0 {
					continue
				}
				request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
					Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
				}}
				_, err = csrs.UpdateApproval(ctx, request.Name, request, metav1.UpdateOptions{})
			}
		}
		if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// token makes a bootstrap token that the tenant knows.
func (w *world) token(t *testing.T) config.BootstrapToken {
	t.Helper()
	token, err := config.NewBootstrapToken()
	check(t, err)
	_, err = w.client.CoreV1().Secrets(metav1.NamespaceSystem).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + token.ID()}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": token.ID(), "token-secret": token.Secret(), "usage-bootstrap-authentication": "true",
			"auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
		},
	}, metav1.CreateOptions{})
	check(t, err)
	return token
}

// vm is a machine of the test.
type vm struct {
	world    *world
	hardware machine.Hardware
	guest    machine.Guest
	address  netip.Prefix
}

type change func(*machine.Hardware)

func (w *world) vm(t *testing.T, n int, changes ...change) *vm {
	t.Helper()
	address := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 1, byte(50 + n)}), 24)
	hw := machine.Hardware{
		Host: "pv1-1", VMID: 1000 + n, Name: fmt.Sprintf("worker-%d", n), UUID: fmt.Sprintf("6f1c2f0a-7c38-4f3e-9d55-0000000000%02x", n),
		Cores: 2, MemoryMiB: 4096, AgentDevice: true,
		NICs: []machine.NIC{
			{Index: 0, MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(n)}, Bridge: "vmbr1"},
			{Index: 1, MAC: net.HardwareAddr{2, 0, 0, 0, 1, byte(n)}, Bridge: "vmbr2"},
		},
		Disks: []*machine.Disk{{Slot: "scsi0", SizeBytes: 20 << 30, Content: machine.NewContent(machine.Image{
			OS: talos.OS, Version: "v1.12.6", Platform: "nocloud", Agent: true,
		})}},
		Media: []machine.Medium{cidata(address, net.HardwareAddr{2, 0, 0, 0, 0, byte(n)})},
	}
	for _, c := range changes {
		c(&hw)
	}
	v := &vm{world: w, hardware: hw, address: address}
	v.powerOn(t)
	return v
}

func (v *vm) powerOn(t *testing.T) {
	t.Helper()
	guest, err := v.world.hyper.PowerOn(v.hardware)
	check(t, err)
	v.guest = guest
	t.Cleanup(guest.Kill)
}

// cidata is what Proxmox makes of ipconfig0.
func cidata(address netip.Prefix, mac net.HardwareAddr) machine.Medium {
	mask := net.IP(net.CIDRMask(address.Bits(), 32))
	return machine.Medium{Slot: "ide2", Label: "cidata", Files: map[string][]byte{
		"meta-data": []byte("instance-id: 0123\n"),
		"user-data": []byte("#cloud-config\nhostname: from-proxmox\n"),
		"network-config": fmt.Appendf(nil, "version: 1\nconfig:\n    - type: physical\n      name: eth0\n      mac_address: '%s'\n      subnets:\n"+
			"      - type: static\n        address: '%s'\n        netmask: '%s'\n        gateway: '10.1.1.1'\n", mac, address.Addr(), mask),
	}}
}

// input is a configuration that joins.
func (v *vm) input(t *testing.T, token config.BootstrapToken) config.Input {
	t.Helper()
	ca, err := config.NewCA(time.Now())
	check(t, err)
	n := v.hardware.NICs
	storage := v.address.Addr().As4()
	storage[2] = 2
	return config.Input{
		Cluster: "demo", Endpoint: "https://192.168.0.2:6443", KubernetesCA: v.world.plane.CA(), TalosCA: ca.Certificate, Token: token,
		KubernetesVersion: "v1.35.4", TalosVersion: "v1.12.6", Hostname: "demo-" + v.hardware.Name, ProviderID: "aether://demo/" + v.hardware.UUID,
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, DNSDomain: "cluster.local",
		NICs: []config.NIC{
			{Alias: "net0", MAC: n[0].MAC, Address: v.address, Gateway: netip.MustParseAddr("10.1.1.1"), MTU: 1500},
			{Alias: "net1", MAC: n[1].MAC, Address: netip.PrefixFrom(netip.AddrFrom4(storage), 24), MTU: 1500},
		},
		Nameservers: []netip.Addr{netip.MustParseAddr("192.168.0.1")}, TimeServers: []string{"192.168.0.1"},
		Hosts:        []config.Host{{Address: netip.MustParseAddr("192.168.0.5"), Names: []string{v.world.registry.HarborHost()}}},
		TrustedRoots: []config.TrustedRoot{{Name: "harbor", PEM: v.world.registry.CAPEM()}},
		Mirrors:      []config.Mirror{{Registry: "ghcr.io", URL: "https://" + v.world.registry.HarborHost() + "/v2/proxy-ghcr.io"}},
		Labels:       map[string]string{"example.test/pool": "general"},
		Taints:       []config.Taint{{Key: "example.test/dedicated", Value: "batch", Effect: "NoSchedule"}},
		Install:      config.Install{Disk: "/dev/sda", Image: "factory.talos.dev/nocloud-installer/376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba:v1.12.6"},
	}
}

func render(t *testing.T, in config.Input) string {
	t.Helper()
	out, err := config.Render(in)
	check(t, err)
	return string(out)
}

func (v *vm) target() config.Target {
	return config.Target{Address: netip.AddrPortFrom(v.address.Addr(), config.MaintenancePort), UUID: v.hardware.UUID}
}

func pusher() *config.Maintenance {
	return config.NewMaintenance(config.MaintenanceOptions{Interval: 20 * time.Millisecond, Settle: 200 * time.Millisecond})
}

// deliver pushes a configuration, without the product's own check.
func (v *vm) deliver(t *testing.T, configuration string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	check(t, pusher().WaitMaintenance(ctx, v.target(), nil))
	outcome, err := pusher().Deliver(ctx, v.target(), []byte(configuration))
	if err != nil || outcome != config.Applied {
		t.Fatalf("deliver: %q, %v", outcome, err)
	}
}

// console is what the machine has written so far.
func (v *vm) console(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(v.world.dir, "consoles", fmt.Sprintf("*-%d-*.log", v.hardware.VMID)))
	check(t, err)
	var all []string
	for _, file := range files {
		raw, err := os.ReadFile(file)
		check(t, err)
		all = append(all, string(raw))
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// lastWords is the end of the console.
func (v *vm) lastWords(t *testing.T) string {
	t.Helper()
	text := v.console(t)
	return text[max(0, len(text)-3000):]
}

func (v *vm) waitConsole(t *testing.T, text string) {
	t.Helper()
	eventually(t, 30*time.Second, "console of "+v.hardware.Name+" says "+text, func(context.Context) error {
		if !strings.Contains(v.console(t), text) {
			return fmt.Errorf("console:\n%s", v.lastWords(t))
		}
		return nil
	})
}

func (v *vm) waitNode(t *testing.T, name string, ok func(*corev1.Node) error) *corev1.Node {
	t.Helper()
	var node *corev1.Node
	eventually(t, 40*time.Second, "node "+name, func(ctx context.Context) error {
		var err error
		if node, err = v.world.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("%w; console:\n%s", err, v.lastWords(t))
		}
		return ok(node)
	})
	return node
}

func eventually(t *testing.T, within time.Duration, what string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, within, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
