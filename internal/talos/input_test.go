package talos_test

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"aether.internal/aether/internal/talos"
)

// worker is a complete input. Its certificates are files in testdata, so that
// rendered configurations can be compared byte by byte.
func worker(t testing.TB) talos.Input {
	t.Helper()
	token, err := talos.ParseBootstrapToken("nzbyod.0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	return talos.Input{
		Cluster: "demo", Endpoint: "https://10.1.1.10:6443",
		KubernetesCA: readFile(t, "kubernetes-ca.pem"), TalosCA: readFile(t, "talos-ca.pem"), Token: token,
		KubernetesVersion: "v1.35.4", TalosVersion: "v1.12.6",
		Hostname: "demo-general-x7k2p", ProviderID: "aether://demo/6f1c2f0a-7c38-4f3e-9d55-0d6a5a0b9c11",
		PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, DNSDomain: "cluster.local",
		NICs: []talos.NIC{
			{Alias: "net0", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Address: netip.MustParsePrefix("10.1.1.50/24"), Gateway: netip.MustParseAddr("10.1.1.1"), MTU: 1500},
			{Alias: "net1", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, Address: netip.MustParsePrefix("10.1.2.50/24"), MTU: 9000},
		},
		Nameservers:  []netip.Addr{netip.MustParseAddr("192.168.0.1")},
		TimeServers:  []string{"192.168.0.1"},
		Hosts:        []talos.Host{{Address: netip.MustParseAddr("192.168.0.5"), Names: []string{"harbor.aether.internal"}}},
		TrustedRoots: []talos.TrustedRoot{{Name: "site", PEM: readFile(t, "site-ca.pem")}},
		Mirrors: []talos.Mirror{
			{Registry: "ghcr.io", URL: "https://harbor.aether.internal/v2/proxy-ghcr.io"},
			{Registry: "registry.k8s.io", URL: "https://harbor.aether.internal/v2/proxy-registry.k8s.io"},
		},
		Labels: map[string]string{"topology.kubernetes.io/zone": "pv1-1", "example.test/pool": "general"},
		Taints: []talos.Taint{{Key: "example.test/dedicated", Value: "batch", Effect: "NoSchedule"}},
		Install: talos.Install{
			Disk:  "/dev/sda",
			Image: "factory.talos.dev/nocloud-installer/ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515:v1.12.6",
		},
	}
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func render(t testing.TB, in talos.Input) []byte {
	t.Helper()
	out, err := talos.Render(in)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
