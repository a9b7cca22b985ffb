package activities

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/envoy"
	"aether.internal/aether/lab/faults"
)

func (w *world) envoy() *Envoy {
	return &Envoy{
		Platform: w.platform, Leases: w.leases, Tenants: &TenantClients{Kube: w.kube},
		Store: envoy.NewStore(w.kube, domain.SystemNamespace, time.Now), Now: time.Now,
	}
}

// proxyBuilt is a world whose proxy VM is cloned and configured.
func proxyBuilt(t *testing.T) *world {
	t.Helper()
	tenant := tenantObject()
	tenant.Status.Proxy = v1alpha1.ProxyStatus{Address: "10.1.1.10", Generation: 1, Machine: proxyID}
	w := newWorld(t, tenant, proxyVM())
	w.lease(proxyID)
	w.clone(proxyID)
	if err := w.proxmox().ConfigureVM(t.Context(), refOf(proxyID)); err != nil {
		t.Fatal(err)
	}
	return w
}

const seedVolume = "local:iso/aether-" + proxyID + ".iso"

func (w *world) hasSeed() bool {
	for _, volume := range w.sim.Volumes("pv1-1") {
		if volume == strings.Replace(seedVolume, "local:iso/", "local:", 1) || strings.HasSuffix(volume, "aether-"+proxyID+".iso") {
			return true
		}
	}
	return false
}

// tokens lists the Secrets of enrolment tokens.
func (w *world) tokens() []corev1.Secret {
	w.t.Helper()
	list := &corev1.SecretList{}
	if err := w.kube.List(w.t.Context(), list, client.MatchingLabels{envoy.LabelTenant: "demo"}); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

// TestTheMediumsLife: attached before the start, gone after the enrolment; each
// attempt voids the token of the one before.
func TestTheMediumsLife(t *testing.T) {
	w := proxyBuilt(t)
	w.twice("AttachSeed", func() error { return w.envoy().AttachSeed(t.Context(), refOf(proxyID)) })
	vmid := int(w.vm(proxyID).Spec.VMID)
	if got := w.rawConfig(vmid)[cloudInitDrive]; !strings.HasPrefix(got, seedVolume) {
		t.Errorf("the drive holds %q", got)
	}
	if !w.hasSeed() || len(w.tokens()) != 1 {
		t.Errorf("medium %t, %d tokens", w.hasSeed(), len(w.tokens()))
	}
	if err := w.proxmox().StartVM(t.Context(), refOf(proxyID)); err != nil {
		t.Fatal(err)
	}
	w.twice("RemoveSeed", func() error { return w.proxmox().RemoveSeed(t.Context(), refOf(proxyID)) })
	if got := w.rawConfig(vmid)[cloudInitDrive]; w.hasSeed() || strings.Contains(got, "aether-") {
		t.Errorf("medium %t, the drive holds %q", w.hasSeed(), got)
	}
	w.twice("RevokeProxy", func() error { return w.envoy().RevokeProxy(t.Context(), TenantRef{Tenant: "demo"}) })
	if len(w.tokens()) != 0 {
		t.Errorf("%d tokens are left", len(w.tokens()))
	}
}

// TestTheMediumGoesWithTheVM, also when nobody came to remove it.
func TestTheMediumGoesWithTheVM(t *testing.T) {
	w := proxyBuilt(t)
	if err := w.envoy().AttachSeed(t.Context(), refOf(proxyID)); err != nil {
		t.Fatal(err)
	}
	w.twice("DestroyVM", func() error { return w.proxmox().DestroyVM(t.Context(), refOf(proxyID)) })
	if w.hasSeed() || w.count() != 0 {
		t.Errorf("medium %t, %d VMs", w.hasSeed(), w.count())
	}
}

func TestAttachSeedAfterALostAnswer(t *testing.T) {
	for _, place := range []string{"pve/POST/nodes/*/storage/*/upload", "pve/PUT/nodes/*/qemu/*/config"} {
		t.Run(place, func(t *testing.T) {
			w := proxyBuilt(t)
			id := w.inject(faults.Fault{Kind: faults.LostAnswer, Place: place, Count: 1})
			if err := errorIs(w.envoy().AttachSeed(t.Context(), refOf(proxyID)), UnavailableType, false); err != nil || w.hits(id) != 1 {
				t.Fatalf("%v, %d hits", err, w.hits(id))
			}
			w.twice("AttachSeed", func() error { return w.envoy().AttachSeed(t.Context(), refOf(proxyID)) })
			if len(w.tokens()) != 1 {
				t.Errorf("%d tokens", len(w.tokens()))
			}
		})
	}
}

// TestTheMediumSaysWhereThePlatformIs and which card is whose.
func TestTheMediumSaysWhereThePlatformIs(t *testing.T) {
	w := proxyBuilt(t)
	s, err := w.envoy().medium(t.Context(), w.platformMachine(proxyID))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	if s.Agent.XDS != "192.168.0.2:18000" || s.Agent.Enrolment != "192.168.0.2:18001" || s.Agent.Tenant != "demo" || s.Agent.Generation != 1 || s.Hostname != "demo-proxy-1" {
		t.Errorf("agent %+v", s.Agent)
	}
	if s.Tenant.Address.String() != "10.1.1.10/24" || s.Tenant.Gateway.String() != "10.1.1.1" || s.Tenant.MAC.String() != domain.ProxyMAC(s.Tenant.Address.Addr()).String() {
		t.Errorf("tenant's card %+v", s.Tenant)
	}
	if s.Management.Address.String() != "192.168.0.200/24" || s.Management.Gateway.IsValid() {
		t.Errorf("management card %+v", s.Management)
	}
}

// status is that of a proxy that serves.
func status() envoy.Status {
	return envoy.Status{
		ID: envoy.ID{Tenant: "demo", Generation: 1}, Connected: true, Applied: true, Version: "7", Acked: "7", ReportedAt: time.Now(),
		Wanted: envoy.Tenant{Name: "demo", Generation: 1, Upstreams: []netip.AddrPort{netip.MustParseAddrPort("192.168.0.100:6443")}},
	}
}

// TestWhatAProxyIsWaitedFor: every state but the good one is told.
func TestWhatAProxyIsWaitedFor(t *testing.T) {
	w := newWorld(t, proxyVM())
	m := w.platformMachine(proxyID)
	for _, test := range []struct {
		name   string
		change func(*envoy.Status)
		want   string
	}{
		{"serves", func(*envoy.Status) {}, ""},
		{"serves before the control plane is there", func(s *envoy.Status) { s.Wanted.Upstreams = nil }, ""},
		{"not connected", func(s *envoy.Status) { s.Connected = false }, "to enrol and to open its configuration stream"},
		{"an old report", func(s *envoy.Status) { s.ReportedAt = time.Now().Add(-time.Hour) }, "the xDS server to tell of the proxy demo-proxy-1 again"},
		{"not acknowledged", func(s *envoy.Status) { s.Applied, s.Acked = false, "" }, "to acknowledge its configuration"},
		{"rejected", func(s *envoy.Status) { s.Rejected = &envoy.Rejection{Reason: "cannot bind 10.1.1.10:6443"} }, "to accept its configuration: cannot bind 10.1.1.10:6443"},
		{"cannot be rendered", func(s *envoy.Status) { s.Refused = "maxNodes: 9999" }, "that can be rendered: maxNodes: 9999"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := status()
			test.change(&s)
			if got := w.envoy().serves(m, s); (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Errorf("waits for %q", got)
			}
		})
	}
}

func TestWaitEnrolled(t *testing.T) {
	w := newWorld(t, proxyVM())
	a := w.envoy()
	ended := make(chan error, 1)
	go func() { ended <- a.WaitEnrolled(t.Context(), refOf(proxyID)) }()
	early := status()
	early.Connected, early.Applied = false, false
	for _, s := range []envoy.Status{early, status()} {
		if err := a.Store.Report(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	w.twice("WaitEnrolled", func() error { return a.WaitEnrolled(t.Context(), refOf(proxyID)) })
	if phase := w.vm(proxyID).Status.Phase; phase != phaseUsable {
		t.Errorf("phase %s", phase)
	}
}

// apiServer answers /readyz at an address of the loopback, with a certificate
// for the names given. It returns the authority's certificate.
func apiServer(t *testing.T, listen string, names ...net.IP) (caPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes-ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: names,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", listen, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		if request.URL.Path != "/readyz" {
			response.WriteHeader(http.StatusNotFound)
		}
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TestWaitPath: it is not enough that the proxy says so; the API server must
// answer behind its address, with the right certificate.
func TestWaitPath(t *testing.T) {
	const proxy = "127.43.21.1"
	w := proxyBuilt(t)
	tenant := tenantObject()
	if err := w.kube.Get(t.Context(), client.ObjectKeyFromObject(tenant), tenant); err != nil {
		t.Fatal(err)
	}
	tenant.Spec.ControlPlaneEndpoint.Host = proxy
	ca := apiServer(t, proxy+":6443", net.ParseIP(proxy))
	kubeconfig := fmt.Sprintf(`{apiVersion: v1, kind: Config, clusters: [{name: a, cluster: {server: "https://192.168.0.100:6443", certificate-authority-data: %s}}], contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {token: x}}], current-context: a}`,
		base64.StdEncoding.EncodeToString(ca))
	if err := errors.Join(w.kube.Update(t.Context(), tenant), w.kube.Create(t.Context(), kubeconfigSecret(kubeconfig))); err != nil {
		t.Fatal(err)
	}
	a := w.envoy()
	withoutUpstream := status()
	withoutUpstream.Wanted.Upstreams = nil
	if err := a.Store.Report(t.Context(), withoutUpstream); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := a.WaitPath(ctx, TenantRef{Tenant: "demo"}); err == nil || !strings.Contains(err.Error(), "to learn the API server's address") {
		t.Errorf("without an upstream: %v", err)
	}
	if err := a.Store.Report(t.Context(), status()); err != nil {
		t.Fatal(err)
	}
	w.twice("WaitPath", func() error { return a.WaitPath(t.Context(), TenantRef{Tenant: "demo"}) })
	if err := w.kube.Get(t.Context(), client.ObjectKeyFromObject(tenant), tenant); err != nil || tenant.Status.Proxy.ConfigVersion != "7" {
		t.Errorf("recorded %+v, %v", tenant.Status.Proxy, err)
	}
}

func TestAnswers(t *testing.T) {
	const proxy = "127.43.21.2"
	good := apiServer(t, proxy+":6443", net.ParseIP(proxy))
	other := apiServer(t, "127.43.21.3:6443", net.ParseIP("10.1.1.10"))
	for name, test := range map[string]struct {
		address string
		ca      []byte
		want    string
	}{
		"all is well":                    {proxy + ":6443", good, ""},
		"nobody listens":                 {"127.43.21.4:6443", good, "refused"},
		"signed by another":              {proxy + ":6443", other, "unknown authority"},
		"the certificate lacks the name": {"127.43.21.3:6443", other, "valid for"},
		"no authority":                   {proxy + ":6443", bytes.Repeat([]byte("x"), 9), "no certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			err := answers(t.Context(), test.address, test.ca)
			if (test.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}
