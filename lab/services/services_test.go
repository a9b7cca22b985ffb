package services_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"aether.internal/aether/lab/services"
)

// loopback is a network on which every address of 127.0.0.0/8 is there
// already; it notes which were asked for.
type loopback struct {
	mu        sync.Mutex
	addresses map[string]string // address → link
}

func (l *loopback) AddAddress(link string, p netip.Prefix) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addresses[p.String()] = link
	return nil
}

func (l *loopback) DelAddress(_ string, p netip.Prefix) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.addresses, p.String())
	return nil
}

func (l *loopback) AnnounceARP(string, netip.Addr) error { return nil }

func (l *loopback) Listen(network, address string) (net.Listener, error) {
	return net.Listen(network, address)
}

func (l *loopback) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

func (l *loopback) has(p string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addresses[p]
}

type world struct {
	client kubernetes.Interface
	net    *loopback
}

func start(t *testing.T, last string) *world {
	t.Helper()
	w := &world{client: fake.NewClientset(), net: &loopback{addresses: map[string]string{}}}
	balancer, err := services.New(services.Config{
		Client: w.client, Net: w.net, Log: slog.New(slog.DiscardHandler),
		Link: "mgmt0", PrefixBits: 24, First: netip.MustParseAddr("127.77.0.1"), Last: netip.MustParseAddr(last),
		ClusterLink: "lo",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- balancer.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) service(t *testing.T, name string, port int32, change func(*corev1.Service)) {
	t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Type:  corev1.ServiceTypeLoadBalancer,
			Ports: []corev1.ServicePort{{Name: "api", Port: port, Protocol: corev1.ProtocolTCP}},
		},
	}
	if change != nil {
		change(service)
	}
	if _, err := w.client.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// endpoint makes a server the ready pod of a Service.
func (w *world) endpoint(t *testing.T, service string, ready bool, address string) {
	t.Helper()
	parsed := netip.MustParseAddrPort(address)
	name, port := "api", int32(parsed.Port())
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{parsed.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}
	if _, err := w.client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) ingress(t *testing.T, name string) string {
	t.Helper()
	service, err := w.client.CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(service.Status.LoadBalancer.Ingress) == 0 {
		return ""
	}
	return service.Status.LoadBalancer.Ingress[0].IP
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("not in time: %s", what)
}

// pod serves connections with f and returns its address.
func pod(t *testing.T, f func(*net.TCPConn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go f(conn.(*net.TCPConn))
		}
	}()
	return listener.Addr().String()
}

func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// readFrom dials and reads to the end. A reset may come as early as during the
// dial.
func readFrom(address string) ([]byte, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return io.ReadAll(conn)
}

func TestHalfCloseIsPassedOn(t *testing.T) {
	w := start(t, "127.77.0.9")
	w.endpoint(t, "t1", true, pod(t, func(conn *net.TCPConn) {
		defer conn.Close()
		all, err := io.ReadAll(conn) // ends only when the client's end arrives
		if err == nil {
			_, _ = conn.Write(slices.Concat([]byte("got "), all))
		}
	}))
	w.service(t, "t1", 16443, nil)
	eventually(t, "an address", func() bool { return w.ingress(t, "t1") != "" })
	conn := dial(t, "127.77.0.1:16443")
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || string(answer) != "got hello" {
		t.Errorf("answer after half-close = %q, %v", answer, err)
	}
}

func TestStreamsLiveUntilTheServiceGoes(t *testing.T) {
	w := start(t, "127.77.0.9")
	w.endpoint(t, "t1", true, pod(t, func(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) }))
	w.service(t, "t1", 16444, nil)
	eventually(t, "an address", func() bool { return w.ingress(t, "t1") == "127.77.0.1" })
	if link := w.net.has("127.77.0.1/24"); link != "mgmt0" {
		t.Errorf("address is on link %q, want mgmt0", link)
	}
	conn := dial(t, "127.77.0.1:16444")
	echo := func(text string) error {
		if _, err := conn.Write([]byte(text)); err != nil {
			return err
		}
		_, err := io.ReadFull(conn, make([]byte, len(text)))
		return err
	}
	for range 3 {
		if err := echo("tick"); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.client.CoreV1().Services("default").Delete(t.Context(), "t1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the address is released", func() bool { return w.net.has("127.77.0.1/24") == "" })
	if err := echo("tock"); err == nil {
		t.Error("a connection outlived its service")
	}
}

func TestNoReadyPodIsARefusal(t *testing.T) {
	w := start(t, "127.77.0.9")
	w.endpoint(t, "t1", false, pod(t, func(conn *net.TCPConn) { _ = conn.Close() }))
	w.service(t, "t1", 16445, nil)
	eventually(t, "an address", func() bool { return w.ingress(t, "t1") != "" })
	if data, err := readFrom("127.77.0.1:16445"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read %q, %v; want a reset", data, err)
	}
}

func TestSourceRanges(t *testing.T) {
	w := start(t, "127.77.0.9")
	w.endpoint(t, "t1", true, pod(t, func(conn *net.TCPConn) { _, _ = conn.Write([]byte("in")); _ = conn.Close() }))
	w.service(t, "t1", 16446, func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"} })
	eventually(t, "an address", func() bool { return w.ingress(t, "t1") != "" })
	if data, err := readFrom("127.77.0.1:16446"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a client outside the ranges read %q, %v; want a reset", data, err)
	}
}

func TestAllocation(t *testing.T) {
	w := start(t, "127.77.0.3")
	w.service(t, "a", 16447, func(s *corev1.Service) {
		s.Annotations = map[string]string{services.DefaultAddressAnnotation: "127.77.0.2"}
	})
	eventually(t, "a's own wish", func() bool { return w.ingress(t, "a") == "127.77.0.2" })
	w.service(t, "b", 16447, nil)
	eventually(t, "the lowest", func() bool { return w.ingress(t, "b") == "127.77.0.1" })
	w.service(t, "c", 16447, func(s *corev1.Service) { s.Spec.LoadBalancerIP = "127.77.0.2" })
	w.service(t, "d", 16447, nil)
	eventually(t, "the last", func() bool { return w.ingress(t, "d") == "127.77.0.3" })
	w.service(t, "e", 16447, nil)
	w.service(t, "f", 16447, func(s *corev1.Service) { other := "other.example.test/class"; s.Spec.LoadBalancerClass = &other })
	time.Sleep(100 * time.Millisecond)
	got := map[string]string{}
	for _, name := range []string{"c", "e", "f"} {
		got[name] = w.ingress(t, name)
	}
	if diff := cmp.Diff(map[string]string{"c": "", "e": "", "f": ""}, got); diff != "" {
		t.Errorf("taken, used up, and of another class (-want +got):\n%s", diff)
	}
	if err := w.client.CoreV1().Services("default").Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "e takes what b left", func() bool { return w.ingress(t, "e") == "127.77.0.1" })
}

func TestClusterAddress(t *testing.T) {
	w := start(t, "127.77.0.9")
	w.endpoint(t, "db", true, pod(t, func(conn *net.TCPConn) { _, _ = conn.Write([]byte("pod")); _ = conn.Close() }))
	w.service(t, "db", 15432, func(s *corev1.Service) { s.Spec.Type, s.Spec.ClusterIP = corev1.ServiceTypeClusterIP, "127.88.0.10" })
	eventually(t, "the cluster address", func() bool { return w.net.has("127.88.0.10/32") == "lo" })
	var conn net.Conn
	eventually(t, "its port", func() bool {
		c, err := net.Dial("tcp", "127.88.0.10:15432")
		conn = c
		return err == nil
	})
	defer conn.Close()
	if data, err := io.ReadAll(conn); err != nil || string(data) != "pod" {
		t.Errorf("through the cluster address: %q, %v", data, err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	_, err := services.New(services.Config{Client: fake.NewClientset(), Net: &loopback{}, Log: slog.Default(), Link: "mgmt0", First: netip.MustParseAddr("10.0.0.9"), Last: netip.MustParseAddr("10.0.0.1")})
	if err == nil {
		t.Error("a pool that ends before it begins was accepted")
	}
}
