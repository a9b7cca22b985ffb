package controlplane_test

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"aether.internal/aether/lab/controlplane"
	"aether.internal/aether/lab/network"
)

// In a namespace of its own a control plane has the usual ports to itself; it
// is reached from there by the configuration it hands out, and from nowhere
// else.
func TestInANamespace(t *testing.T) {
	address := netip.MustParseAddr("192.168.0.2")
	ns, err := network.NewNamespace("platform")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := ns.AddAddress("lo", netip.PrefixFrom(address, 32)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c, err := controlplane.Start(ctx, controlplane.Config{
		Name: "management", Dir: t.TempDir(), Net: ns, Address: address, Kubernetes: kubernetesProgram(t),
		ServiceCIDR: netip.MustParsePrefix("10.98.0.0/16"), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	if c.Endpoint() != "https://192.168.0.2:6443" || c.Etcd().Endpoint() != "https://192.168.0.2:2379" {
		t.Errorf("API server at %s, etcd at %s", c.Endpoint(), c.Etcd().Endpoint())
	}
	client, err := kubernetes.NewForConfig(c.RestConfig())
	if err != nil {
		t.Fatal(err)
	}
	slices, err := client.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil || len(slices.Endpoints) != 1 || slices.Endpoints[0].Addresses[0] != address.String() {
		t.Errorf("endpoints of the API server %+v, error %v", slices.Endpoints, err)
	}
	if conn, err := net.DialTimeout("tcp", "192.168.0.2:6443", time.Second); err == nil {
		conn.Close()
		t.Error("the API server is reached from another namespace")
	}
}
