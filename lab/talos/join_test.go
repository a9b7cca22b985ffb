package talos_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.internal/aether/lab/controlplane"
	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/machine"
)

// Certificates of a few seconds, so that renewal happens within the test.
var shortLived = map[controlplane.Component][]string{controlplane.ControllerManager: {"--cluster-signing-duration=20s"}}

func TestJoin(t *testing.T) {
	w := newWorld(t)
	w.startControlPlane(t, shortLived)
	t.Run("as configured", func(t *testing.T) { testJoin(t, w) })
	t.Run("with what breaks it", func(t *testing.T) { testBroken(t, w) })
	t.Run("label and taint that a node may not set", func(t *testing.T) { testForbidden(t, w) })
	t.Run("naive network and name", func(t *testing.T) { testNaive(t, w) })
	t.Run("metal", func(t *testing.T) { testMetalJoin(t, w) })
	t.Run("without time", func(t *testing.T) { testWithoutTime(t, w) })
	t.Run("KubePrism", func(t *testing.T) { testKubePrism(t, w) })
	t.Run("old kubelet", func(t *testing.T) { testOldKubelet(t, w) })
}

func testJoin(t *testing.T, w *world) {
	v := w.vm(t, 1)
	if _, answers := v.guest.Agent(); answers {
		t.Error("the guest agent answers in maintenance mode")
	}
	in := v.input(t, w.token(t))
	v.deliver(t, render(t, in))
	node := v.waitNode(t, in.Hostname, func(n *corev1.Node) error {
		if n.Labels["example.test/pool"] != "general" {
			return fmt.Errorf("labels %v", n.Labels)
		}
		return nil
	})
	if node.Spec.ProviderID != in.ProviderID || node.Status.NodeInfo.KubeletVersion != "v1.35.4" || node.Status.NodeInfo.SystemUUID != v.hardware.UUID {
		t.Errorf("provider ID %q, kubelet %q, UUID %q", node.Spec.ProviderID, node.Status.NodeInfo.KubeletVersion, node.Status.NodeInfo.SystemUUID)
	}
	if node.Status.Addresses[0].Address != v.address.Addr().String() {
		t.Errorf("addresses %v", node.Status.Addresses)
	}
	for _, want := range []corev1.Taint{
		{Key: "node.cilium.io/agent-not-ready", Value: "true", Effect: corev1.TaintEffectNoExecute},
		{Key: "example.test/dedicated", Value: "batch", Effect: corev1.TaintEffectNoSchedule},
	} {
		if !hasTaint(node, want) {
			t.Errorf("taint %v is missing in %v", want, node.Spec.Taints)
		}
	}
	if report, answers := v.guest.Agent(); !answers || report.Hostname != in.Hostname {
		t.Errorf("guest agent: %+v, %t", report, answers)
	}
	w.wantPortClosed(t, v)
	w.wantServing(t, v)
	w.wantOnlyNodeIdentity(t, in.Hostname)
	w.wantRenewal(t, v, in.Hostname)
	w.wantRestart(t, v, in.Hostname)
}

func hasTaint(node *corev1.Node, want corev1.Taint) bool {
	for _, t := range node.Spec.Taints {
		if t.Key == want.Key && t.Value == want.Value && t.Effect == want.Effect {
			return true
		}
	}
	return false
}

// wantPortClosed: there is no trust service, so the API does not come back.
func (w *world) wantPortClosed(t *testing.T, v *vm) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", v.target().Address.String(), time.Second)
	if err == nil {
		_ = conn.Close()
		t.Error("port 50000 is open after the join")
	}
}

// wantServing: port 10250 shows a certificate of the tenant's CA.
func (w *world) wantServing(t *testing.T, v *vm) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.plane.CA())
	eventually(t, 20*time.Second, "serving certificate", func(ctx context.Context) error {
		dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(v.address.Addr().String(), "10250"))
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// wantOnlyNodeIdentity reads the audit log: what came from the machine came
// with the token or as the node.
func (w *world) wantOnlyNodeIdentity(t *testing.T, name string) {
	t.Helper()
	file, err := os.Open(w.plane.AuditLog())
	check(t, err)
	defer file.Close()
	seen := map[string]int{}
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		var event struct {
			User      struct{ Username string }
			SourceIPs []string
		}
		if json.Unmarshal(scanner.Bytes(), &event) == nil && len(event.SourceIPs) > 0 && strings.HasPrefix(event.SourceIPs[0], "10.1.1.") {
			seen[event.User.Username]++
		}
	}
	check(t, file.Close())
	if seen["system:node:"+name] == 0 {
		t.Errorf("the node never spoke as itself: %v", seen)
	}
	for user := range seen {
		if !strings.HasPrefix(user, "system:node:") && !strings.HasPrefix(user, "system:bootstrap:") && user != "system:anonymous" {
			t.Errorf("the machine spoke as %q", user)
		}
	}
}

// clientCertificate is what the kubelet keeps on the disk.
func clientCertificate(t *testing.T, v *vm) *x509.Certificate {
	t.Helper()
	raw, ok := v.hardware.Disks[0].Content.Read("EPHEMERAL/lib/kubelet/pki/kubelet-client-current.pem")
	if !ok {
		return nil
	}
	pair, err := tls.X509KeyPair(raw, raw)
	check(t, err)
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	check(t, err)
	return cert
}

// wantRenewal: the client certificate is replaced before it expires, and the
// node goes on.
func (w *world) wantRenewal(t *testing.T, v *vm, name string) {
	t.Helper()
	first := clientCertificate(t, v)
	eventually(t, 40*time.Second, "renewed certificate", func(context.Context) error {
		if clientCertificate(t, v).SerialNumber.Cmp(first.SerialNumber) == 0 {
			return fmt.Errorf("still that of %s, valid until %s", first.NotBefore, first.NotAfter)
		}
		return nil
	})
	renewed := time.Now()
	eventually(t, 40*time.Second, "lease after the first certificate's end", func(ctx context.Context) error {
		lease, err := w.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime.Time.Before(renewed) || lease.Spec.RenewTime.Time.Before(first.NotAfter) {
			return fmt.Errorf("renewed at %s", lease.Spec.RenewTime)
		}
		return nil
	})
}

// wantRestart: after a reset the machine is the same node; it does not need the
// token again.
func (w *world) wantRestart(t *testing.T, v *vm, name string) {
	t.Helper()
	secrets, err := w.client.CoreV1().Secrets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
	check(t, err)
	for _, s := range secrets.Items {
		check(t, w.client.CoreV1().Secrets(s.Namespace).Delete(t.Context(), s.Name, metav1.DeleteOptions{}))
	}
	before := time.Now()
	v.guest.Reset()
	eventually(t, 40*time.Second, "lease after the reset", func(ctx context.Context) error {
		lease, err := w.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime.Time.Before(before.Add(time.Second)) {
			return fmt.Errorf("renewed at %s, console:\n%s", lease.Spec.RenewTime, v.lastWords(t))
		}
		return nil
	})
}

// testBroken sends what the product's check refuses; each fails as in life.
func testBroken(t *testing.T, w *world) {
	token := w.token(t)
	cases := []struct {
		name    string
		breaks  func(*testing.T, *vm) string
		console string
	}{
		{"another CA", func(t *testing.T, v *vm) string {
			in := v.input(t, token)
			in.KubernetesCA = in.TalosCA
			return render(t, in)
		}, "certificate signed by unknown authority"},
		{"unknown token", func(t *testing.T, v *vm) string {
			config := render(t, v.input(t, token))
			return strings.Replace(config, token.Reveal(), "aaaaaa.0123456789abcdef", 1)
		}, "Unauthorized"},
		{"no token", func(t *testing.T, v *vm) string {
			config := render(t, v.input(t, token))
			return strings.Replace(config, "    token: "+token.Reveal()+"\n", "", 1)
		}, `User "system:anonymous" cannot create resource`},
		{"unknown kubelet image", func(t *testing.T, v *vm) string {
			in := v.input(t, token)
			in.KubernetesVersion = "v1.35.99"
			return render(t, in)
		}, "service[kubelet](Failed)"},
		{"no node address", func(t *testing.T, v *vm) string {
			return strings.Replace(render(t, v.input(t, token)), "- 10.1.1.0/24", "- 172.16.0.0/24", 1)
		}, "no suitable node IP found"},
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			v := w.vm(t, 10+i)
			v.deliver(t, c.breaks(t, v))
			v.waitConsole(t, c.console)
			if strings.Contains(v.console(t), token.Secret()) {
				t.Error("the console shows the token")
			}
			_, err := w.client.CoreV1().Nodes().Get(t.Context(), "demo-"+v.hardware.Name, metav1.GetOptions{})
			if !apierrors.IsNotFound(err) {
				t.Errorf("node: %v, want not found", err)
			}
		})
	}
}

// testForbidden: NodeRestriction refuses, Talos tries again, nobody hears.
func testForbidden(t *testing.T, w *world) {
	for i, with := range []string{
		"    nodeLabels:\n        node-restriction.kubernetes.io/tenant: demo\n",
		"    nodeTaints:\n        example.test/late: \"yes:NoSchedule\"\n    nodeLabels:\n",
	} {
		v := w.vm(t, 20+i)
		in := v.input(t, w.token(t))
		v.deliver(t, strings.Replace(render(t, in), "    nodeLabels:\n", with, 1))
		v.waitNode(t, in.Hostname, func(*corev1.Node) error { return nil })
		v.waitConsole(t, "k8s.NodeApplyController")
		v.waitConsole(t, "is forbidden")
	}
}

// testNaive: without a pinned name and subnet the machine takes what it finds.
func testNaive(t *testing.T, w *world) {
	v := w.vm(t, 30, func(hw *machine.Hardware) {
		// The storage card is the lower address here.
		hw.Media[0].Files["user-data"] = []byte("#cloud-config\n")
		hw.AgentDevice = false
	})
	in := v.input(t, w.token(t))
	config := render(t, in)
	for _, cut := range [][2]string{
		{"        nodeIP:\n            validSubnets:\n                - 10.1.1.0/24\n", ""},
		{"hostname: " + in.Hostname, "auto: stable"},
		{"address: 10.1.2.80/24", "address: 10.0.2.80/24"},
	} {
		if !strings.Contains(config, cut[0]) {
			t.Fatalf("configuration does not hold %q", cut[0])
		}
		config = strings.Replace(config, cut[0], cut[1], 1)
	}
	v.deliver(t, config)
	var node corev1.Node
	eventually(t, 40*time.Second, "node of the generated name", func(ctx context.Context) error {
		list, err := w.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range list.Items {
			if n.Status.NodeInfo.SystemUUID == v.hardware.UUID {
				node = n
				return nil
			}
		}
		return errors.New("no node with this machine's UUID")
	})
	if !strings.HasPrefix(node.Name, "talos-") || node.Status.Addresses[0].Address != "10.0.2.80" {
		t.Errorf("node %s with addresses %v", node.Name, node.Status.Addresses)
	}
	if _, answers := v.guest.Agent(); answers {
		t.Error("the guest agent answers without its serial device")
	}
}

// testMetalJoin: a metal image installs itself and boots again with the
// configuration.
func testMetalJoin(t *testing.T, w *world) {
	v := w.vm(t, 31, func(hw *machine.Hardware) { hw.Disks[0].Content.Image.Platform = "metal" })
	v.waitConsole(t, "this machine is reachable at: no address")
	// A person at the console gives it an address, as the lab has no DHCP.
	content := v.hardware.Disks[0].Content
	in := v.input(t, w.token(t))
	in.Install.Image = "factory.talos.dev/metal-installer/376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba:v1.12.6"
	in.Mirrors[0] = mirrorOf(w, "factory.talos.dev")
	in.Mirrors = append(in.Mirrors, mirrorOf(w, "ghcr.io"))
	content.Write("STATE/config.yaml", []byte(render(t, in)))
	v.guest.Reset()
	v.waitConsole(t, "install successful, rebooting")
	v.waitNode(t, in.Hostname, func(*corev1.Node) error { return nil })
}

// testWithoutTime: no time server, no kubelet; it goes on when one answers.
func testWithoutTime(t *testing.T, w *world) {
	id, err := w.faults.Inject(faults.Fault{Kind: faults.Away, Place: "talos/worker-32/time"})
	check(t, err)
	v := w.vm(t, 32)
	in := v.input(t, w.token(t))
	v.deliver(t, render(t, in))
	v.waitConsole(t, "time query error with server")
	if strings.Contains(v.console(t), "service[kubelet]") {
		t.Error("the kubelet was started before the clock was set")
	}
	w.faults.Clear(id)
	v.waitNode(t, in.Hostname, func(*corev1.Node) error { return nil })
}

// testKubePrism: it works without a trust service, as the source says, and adds
// nothing.
func testKubePrism(t *testing.T, w *world) {
	v := w.vm(t, 33)
	in := v.input(t, w.token(t))
	config := strings.Replace(render(t, in), "    features:\n", "    features:\n        kubePrism:\n            enabled: true\n            port: 7445\n", 1)
	v.deliver(t, config)
	v.waitNode(t, in.Hostname, func(*corev1.Node) error { return nil })
	v.waitConsole(t, "KubePrism KAS loadbalancer is enabled on 127.0.0.1:7445")
}

// testOldKubelet: the API server does not look at the skew.
func testOldKubelet(t *testing.T, w *world) {
	v := w.vm(t, 34)
	in := v.input(t, w.token(t))
	in.KubernetesVersion = "v1.30.2"
	v.deliver(t, render(t, in))
	v.waitNode(t, in.Hostname, func(n *corev1.Node) error {
		if n.Status.NodeInfo.KubeletVersion != "v1.30.2" {
			return fmt.Errorf("kubelet %s", n.Status.NodeInfo.KubeletVersion)
		}
		return nil
	})
}
