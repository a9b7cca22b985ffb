package envoy_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"aether.internal/aether/internal/envoy"
	"aether.internal/aether/internal/envoy/wire"
)

// service is a running server.
type service struct {
	store          *envoy.Store
	ca             *envoy.CA
	source         *envoy.MemorySource
	clock          *clock
	xds, enrolment string
	logs           *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(data)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func serve(t *testing.T, tenants ...envoy.Tenant) *service {
	t.Helper()
	kube, k := fake.NewClientBuilder().Build(), &clock{at: time.Now()}
	s := &service{store: newStore(kube, k), source: envoy.NewMemorySource(tenants...), clock: k, logs: &lockedBuffer{}}
	var err error
	s.ca, err = envoy.EnsureCA(t.Context(), kube, namespace, k.now)
	check(t, err)
	xds, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	enrolment, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	s.xds, s.enrolment = xds.Addr().String(), enrolment.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- envoy.Serve(ctx, envoy.Config{
			Client: kube, Namespace: namespace, Source: s.source, XDS: xds, Enrolment: enrolment,
			Log: slog.New(slog.NewTextHandler(s.logs, nil)), Now: k.now,
		})
	}()
	t.Cleanup(func() { cancel(); check(t, <-done) })
	return s
}

// newRequest makes a key and a certificate request.
func newRequest(t *testing.T, curve elliptic.Curve) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	check(t, err)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	check(t, err)
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// certificate is signed by the authority without asking anyone.
func certificate(t *testing.T, ca *envoy.CA, id envoy.ID) *tls.Certificate {
	t.Helper()
	key, text := newRequest(t, elliptic.P256())
	request, err := envoy.ParseRequest(text)
	check(t, err)
	signed, err := ca.SignProxy(id, request)
	check(t, err)
	block, _ := pem.Decode(signed)
	return &tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: key}
}

func (s *service) tlsConfig(certificate *tls.Certificate) *tls.Config {
	config := &tls.Config{RootCAs: s.ca.Pool(), ServerName: wire.ServerName, MinVersion: tls.VersionTLS13}
	if certificate != nil {
		config.Certificates = []tls.Certificate{*certificate}
	}
	return config
}

type adsStream = discovery.AggregatedDiscoveryService_StreamAggregatedResourcesClient

func (s *service) open(t *testing.T, certificate *tls.Certificate) (adsStream, error) {
	t.Helper()
	connection, err := grpc.NewClient(s.xds, grpc.WithTransportCredentials(credentials.NewTLS(s.tlsConfig(certificate))))
	check(t, err)
	t.Cleanup(func() { connection.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(connection).StreamAggregatedResources(ctx)
	return stream, err
}

func (s *service) mustOpen(t *testing.T) adsStream {
	t.Helper()
	stream, err := s.open(t, certificate(t, s.ca, demoID))
	check(t, err)
	return stream
}

// ask opens a stream as a node and returns the first answer.
func (s *service) ask(t *testing.T, certificate *tls.Certificate, node string) (*discovery.DiscoveryResponse, error) {
	t.Helper()
	stream, err := s.open(t, certificate)
	if err != nil {
		return nil, err
	}
	request := &discovery.DiscoveryRequest{TypeUrl: resource.ListenerType, Node: &core.Node{Id: node}}
	if err := stream.Send(request); err != nil && err != io.EOF {
		return nil, err
	}
	return stream.Recv()
}

func tenantOf(name string, generation int64) envoy.Tenant {
	tenant := demo()
	tenant.Name, tenant.Generation = name, generation
	return tenant
}

func TestStrangersAreServedNothing(t *testing.T) {
	s := serve(t, tenantOf("demo", 2), tenantOf("other", 1))
	own := envoy.ID{Tenant: "demo", Generation: 2}
	foreign, _, err := envoy.NewCA(time.Now)
	check(t, err)
	server, err := s.ca.ServerCertificate()
	check(t, err)
	for name, test := range map[string]struct {
		certificate *tls.Certificate
		node        string
		want        codes.Code
	}{
		"no certificate":        {nil, own.NodeID(), codes.Unavailable},
		"foreign authority":     {certificate(t, foreign, own), own.NodeID(), codes.Unavailable},
		"server's certificate":  {server, own.NodeID(), codes.Unavailable},
		"another tenant's node": {certificate(t, s.ca, own), "proxy/other/1", codes.PermissionDenied},
		"another generation":    {certificate(t, s.ca, own), "proxy/demo/1", codes.PermissionDenied},
		"no node":               {certificate(t, s.ca, own), "", codes.PermissionDenied},
		"stale generation":      {certificate(t, s.ca, envoy.ID{Tenant: "demo", Generation: 1}), "proxy/demo/1", codes.PermissionDenied},
		"future generation":     {certificate(t, s.ca, envoy.ID{Tenant: "demo", Generation: 3}), "proxy/demo/3", codes.PermissionDenied},
		"unknown tenant":        {certificate(t, s.ca, envoy.ID{Tenant: "gone", Generation: 1}), "proxy/gone/1", codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			response, err := s.ask(t, test.certificate, test.node)
			if status.Code(err) != test.want || response != nil {
				t.Errorf("got %v, %v, want %v", response, err, test.want)
			}
		})
	}
	response, err := s.ask(t, certificate(t, s.ca, own), own.NodeID())
	if err != nil || len(response.GetResources()) != 2 {
		t.Errorf("the proxy itself got %v, %v", response, err)
	}
}

// A stream may not change its name half-way, nor ask for what is not served.
func TestStreamKeepsItsName(t *testing.T) {
	s := serve(t, tenantOf("demo", 1), tenantOf("other", 1))
	for name, test := range map[string]struct {
		request *discovery.DiscoveryRequest
		want    codes.Code
	}{
		"another node": {&discovery.DiscoveryRequest{TypeUrl: resource.ClusterType, Node: &core.Node{Id: "proxy/other/1"}}, codes.PermissionDenied},
		"secrets":      {&discovery.DiscoveryRequest{TypeUrl: resource.SecretType}, codes.InvalidArgument},
		"by name":      {&discovery.DiscoveryRequest{TypeUrl: resource.ClusterType, ResourceNames: []string{"api"}}, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			stream := s.mustOpen(t)
			check(t, stream.Send(&discovery.DiscoveryRequest{TypeUrl: resource.ListenerType, Node: &core.Node{Id: demoID.NodeID()}}))
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
			check(t, stream.Send(test.request))
			if response, err := stream.Recv(); status.Code(err) != test.want {
				t.Errorf("got %v, %v, want %v", response, err, test.want)
			}
		})
	}
}

// A refused version is not sent again until there is another.
func TestNACKIsNotALoop(t *testing.T) {
	s := serve(t, tenantOf("demo", 1))
	stream := s.mustOpen(t)
	check(t, stream.Send(&discovery.DiscoveryRequest{TypeUrl: resource.ListenerType, Node: &core.Node{Id: demoID.NodeID()}}))
	first, err := stream.Recv()
	check(t, err)
	check(t, stream.Send(&discovery.DiscoveryRequest{
		TypeUrl: resource.ListenerType, ResponseNonce: first.GetNonce(), ErrorDetail: &rpcstatus.Status{Message: "no such card"},
	}))
	eventually(t, func() bool {
		status, err := s.store.ReadStatus(t.Context(), demoID)
		return err == nil && status.Rejected != nil && status.Rejected.Reason == "no such card" && !status.Applied
	})
	// Half a minute later it is tried again, under a new version.
	s.clock.add(31 * time.Second)
	second, err := stream.Recv()
	check(t, err)
	if second.GetVersionInfo() == first.GetVersionInfo() {
		t.Errorf("version %s was sent twice", first.GetVersionInfo())
	}
	status, err := s.store.ReadStatus(t.Context(), demoID)
	check(t, err)
	if status.Applied {
		t.Error("applied without an ACK")
	}
}

func TestStreamEndsWithItsGeneration(t *testing.T) {
	s := serve(t, tenantOf("demo", 1))
	stream := s.mustOpen(t)
	check(t, stream.Send(&discovery.DiscoveryRequest{TypeUrl: resource.ListenerType, Node: &core.Node{Id: demoID.NodeID()}}))
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	s.source.Set(tenantOf("demo", 2))
	if _, err := stream.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("got %v, want PermissionDenied", err)
	}
}

func eventually(t *testing.T, test func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !test(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not in time")
		}
	}
}

// post calls the enrolment service.
func (s *service) post(t *testing.T, path string, certificate *tls.Certificate, body any) (int, string) {
	t.Helper()
	var data []byte
	if text, isText := body.(string); isText {
		data = []byte(text)
	} else {
		var err error
		data, err = json.Marshal(body)
		check(t, err)
	}
	transport := &http.Transport{TLSClientConfig: s.tlsConfig(certificate), DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+s.enrolment+path, bytes.NewReader(data))
	check(t, err)
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	check(t, err)
	return response.StatusCode, string(text)
}

func TestEnrolment(t *testing.T) {
	s := serve(t, tenantOf("demo", 1))
	token, err := s.store.Issue(t.Context(), demoID)
	check(t, err)
	stale, err := s.store.Issue(t.Context(), envoy.ID{Tenant: "demo", Generation: 9})
	check(t, err)
	_, csr := newRequest(t, elliptic.P256())
	_, otherCSR := newRequest(t, elliptic.P256())
	_, weakCSR := newRequest(t, elliptic.P224())
	enrol := func(token string, csr []byte) wire.EnrolRequest {
		return wire.EnrolRequest{Token: token, CSR: string(csr)}
	}
	for _, test := range []struct {
		name string
		body any
		want int
	}{
		{"not JSON", token, http.StatusBadRequest},
		{"unknown field", `{"tokken": "x"}`, http.StatusBadRequest},
		{"no request", enrol(token, nil), http.StatusBadRequest},
		{"weak key", enrol(token, weakCSR), http.StatusBadRequest},
		{"too long", enrol(token, bytes.Repeat([]byte("x"), 100<<10)), http.StatusBadRequest},
		{"wrong token", enrol("wrong", csr), http.StatusForbidden},
		{"generation that is not served", enrol(stale, csr), http.StatusServiceUnavailable},
		{"right", enrol(token, csr), http.StatusOK},
		{"answer was lost", enrol(token, csr), http.StatusOK},
		{"replay", enrol(token, otherCSR), http.StatusForbidden},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, body := s.post(t, wire.EnrolPath, nil, test.body)
			if code != test.want {
				t.Errorf("%d %s, want %d", code, body, test.want)
			}
			if strings.Contains(body, token) {
				t.Error("the answer has the token")
			}
		})
	}
	if strings.Contains(s.logs.String(), token) {
		t.Error("the log has the token")
	}
}

func TestRenewal(t *testing.T) {
	s := serve(t, tenantOf("demo", 2))
	foreign, _, err := envoy.NewCA(time.Now)
	check(t, err)
	own := envoy.ID{Tenant: "demo", Generation: 2}
	_, csr := newRequest(t, elliptic.P384())
	for name, test := range map[string]struct {
		certificate *tls.Certificate
		want        int
	}{
		"right":             {certificate(t, s.ca, own), http.StatusOK},
		"no certificate":    {nil, http.StatusUnauthorized},
		"stale generation":  {certificate(t, s.ca, demoID), http.StatusForbidden},
		"foreign authority": {certificate(t, foreign, own), 0},
	} {
		t.Run(name, func(t *testing.T) {
			code, body := s.post(t, wire.RenewPath, test.certificate, wire.EnrolRequest{CSR: string(csr)})
			if code != test.want {
				t.Fatalf("%d %s, want %d", code, body, test.want)
			}
			if code != http.StatusOK {
				return
			}
			var answer wire.EnrolResponse
			check(t, json.Unmarshal([]byte(body), &answer))
			block, _ := pem.Decode([]byte(answer.Certificate))
			leaf, err := x509.ParseCertificate(block.Bytes)
			check(t, err)
			if len(leaf.URIs) != 1 || leaf.URIs[0].String() != "aether://proxy/demo/2" || leaf.IsCA {
				t.Errorf("certificate names %v, authority %v", leaf.URIs, leaf.IsCA)
			}
		})
	}
}

// Replicas that start at once end up with one authority.
func TestAuthorityIsShared(t *testing.T) {
	kube := fake.NewClientBuilder().Build()
	var all sync.WaitGroup
	pems := make([]string, 4)
	for i := range pems {
		all.Go(func() {
			ca, err := envoy.EnsureCA(context.Background(), kube, namespace, time.Now)
			if err != nil {
				t.Error(err)
				return
			}
			pems[i] = string(ca.PEM())
		})
	}
	all.Wait()
	for _, text := range pems[1:] {
		if text != pems[0] {
			t.Error("two authorities")
		}
	}
}
