package clusterip_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"aether.internal/aether/lab/namespace"
	"aether.internal/aether/lab/network"
	"aether.internal/aether/lab/programs/clusterip"
)

func TestMain(m *testing.M) { os.Exit(namespace.RunTests(m)) }

func ptr[T any](v T) *T { return &v }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// backend answers everything with its name, over TCP and UDP.
func backend(t *testing.T, space *network.Namespace, name string) {
	t.Helper()
	listener, err := space.Listen("tcp", "127.0.0.1:8080")
	must(t, err)
	packets, err := space.ListenPacket("udp", "127.0.0.1:8080")
	must(t, err)
	t.Cleanup(func() { must(t, listener.Close()); must(t, packets.Close()) })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, name)
			_ = conn.Close()
		}
	}()
	go func() {
		buffer := make([]byte, 100)
		for {
			_, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo([]byte(name), from)
		}
	}()
}

func service(name, ip string) (*corev1.Service, *discoveryv1.EndpointSlice) {
	meta := metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: name}}
	return &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{
			{Name: "tcp", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "udp", Port: 53, Protocol: corev1.ProtocolUDP},
		}}}, &discoveryv1.EndpointSlice{
			ObjectMeta: meta,
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"127.0.0.1"}},
				{Addresses: []string{"127.0.0.9"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr(false)}},
			},
			Ports: []discoveryv1.EndpointPort{{Name: ptr("tcp"), Port: ptr[int32](8080)}, {Name: ptr("udp"), Port: ptr[int32](8080)}},
		}
}

func ask(ctx context.Context, space *network.Namespace, protocol, address string) (string, error) {
	conn, err := space.DialContext(ctx, protocol, address)
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // read whole
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if protocol == "udp" {
		if _, err := conn.Write([]byte("?")); err != nil {
			return "", err
		}
	}
	buffer := make([]byte, 100)
	n, err := conn.Read(buffer)
	return string(buffer[:n]), err
}

func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

func TestServices(t *testing.T) {
	space, err := network.NewNamespace("node")
	must(t, err)
	t.Cleanup(func() { must(t, space.Close()) })
	backend(t, space, "one")
	svc, slice := service("web", "10.96.0.20")
	client := fake.NewClientset(svc, slice)
	proxy := &clusterip.Proxy{Client: client, Net: space, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- proxy.Run(ctx) }()
	for _, c := range []struct{ protocol, address string }{{"tcp", "10.96.0.20:80"}, {"udp", "10.96.0.20:53"}} {
		eventually(t, c.protocol, func() error {
			got, err := ask(t.Context(), space, c.protocol, c.address)
			if err == nil && got != "one" {
				t.Errorf("%s answers %q", c.protocol, got)
			}
			return err
		})
	}
	must(t, client.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}))
	eventually(t, "address is removed with its service", func() error {
		addresses, err := space.Addresses("lo")
		for _, address := range addresses {
			if address.Addr() == netip.MustParseAddr("10.96.0.20") {
				return &net.AddrError{Err: "still there", Addr: address.String()}
			}
		}
		return err
	})
	cancel()
	must(t, <-ended)
}
