package proxyagent

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"aether.internal/aether/internal/envoy"
	"aether.internal/aether/internal/envoy/wire"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rig is a keeper with a real enrolment service and a clock that tests set.
type rig struct {
	keeper *keeper
	store  *envoy.Store
	token  string
	clock  atomic.Pointer[time.Time]
	logs   bytes.Buffer
	stop   func()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{}
	r.set(time.Now())
	now := r.now
	kube := fake.NewClientBuilder().Build()
	r.store = envoy.NewStore(kube, "aether-system", now)
	ca, err := envoy.EnsureCA(t.Context(), kube, "aether-system", now)
	check(t, err)
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		return l
	}
	xds, enrolment := listen(), listen()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	tenant := envoy.Tenant{Name: "demo", Generation: 1, Address: netip.MustParseAddr("10.1.1.10")}
	go func() {
		done <- envoy.Serve(ctx, envoy.Config{
			Client: kube, Namespace: "aether-system", Source: envoy.NewMemorySource(tenant),
			XDS: xds, Enrolment: enrolment, Log: slog.New(slog.DiscardHandler), Now: now,
		})
	}()
	stopped := false
	r.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			check(t, <-done)
		}
	}
	t.Cleanup(r.stop)

	dir := t.TempDir()
	config := Config{
		Tenant: "demo", Generation: 1, XDS: xds.Addr().String(), Enrolment: enrolment.Addr().String(), CA: string(ca.PEM()),
		Device:    Device{MAC: "bc:24:11:00:00:01", Address: tenant.Address},
		TokenFile: filepath.Join(dir, "token"), Forget: []string{filepath.Join(dir, "user-data")},
		StateDir: filepath.Join(dir, "state"), EnvoyDir: filepath.Join(dir, "envoy"),
	}
	config.setDefaults()
	check(t, config.Validate())
	check(t, os.MkdirAll(config.StateDir, 0o700))
	r.token, err = r.store.Issue(t.Context(), wire.ID{Tenant: "demo", Generation: 1})
	check(t, err)
	r.putToken(t, config)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM())
	r.keeper = &keeper{
		config: config, state: state{config.StateDir}, roots: roots,
		authority: authority{address: config.Enrolment, roots: roots, now: now}, health: &health{now: now},
		log: slog.New(slog.NewTextHandler(&r.logs, nil)), now: now,
	}
	return r
}

func (r *rig) now() time.Time { return *r.clock.Load() }

func (r *rig) set(at time.Time) { r.clock.Store(&at) }

func (r *rig) putToken(t *testing.T, config Config) {
	t.Helper()
	check(t, os.WriteFile(config.TokenFile, []byte(r.token+"\n"), 0o600))
	check(t, os.WriteFile(config.Forget[0], []byte("token: "+r.token), 0o600))
}

// step repeats until the server, which learns its tenants as it starts, knows
// this one.
func (r *rig) step(t *testing.T) error {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, err := r.keeper.step(t.Context())
		if err == nil || errors.Is(err, errFinal) || time.Now().After(deadline) {
			return err
		}
	}
}

func (r *rig) identity(t *testing.T) *identity {
	t.Helper()
	i, err := r.keeper.state.loadIdentity(r.keeper.config.ID(), r.keeper.roots, r.now())
	check(t, err)
	return i
}

func TestEnrolAndRenew(t *testing.T) {
	r := newRig(t)
	check(t, r.step(t))
	first := r.identity(t)
	for _, file := range []string{r.keeper.config.TokenFile, r.keeper.config.Forget[0], r.keeper.state.path(pendingKeyFile)} {
		if _, err := os.Stat(file); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", file, err)
		}
	}
	check(t, r.step(t)) // nothing is due
	if !bytes.Equal(r.identity(t).certificatePEM, first.certificatePEM) {
		t.Error("renewed before it was due")
	}

	life := first.pair.Leaf.NotAfter.Sub(first.pair.Leaf.NotBefore)
	r.set(first.pair.Leaf.NotBefore.Add(life * 64 / 100))
	check(t, r.step(t))
	second := r.identity(t)
	if !second.notAfter().After(first.notAfter()) || bytes.Equal(second.keyPEM, first.keyPEM) {
		t.Error("not renewed with a new key before two thirds of the life")
	}
	secret, err := os.ReadFile(r.keeper.config.secretFile())
	check(t, err)
	if !bytes.Contains(secret, []byte(strings.Split(string(second.certificatePEM), "\n")[2])) {
		t.Error("Envoy was not given the new certificate")
	}
	if strings.Contains(r.logs.String(), r.token) {
		t.Error("the log has the token")
	}
}

// While the service is away the certificate at hand is used to its end, and
// after that the machine says that it is lost.
func TestServiceAway(t *testing.T) {
	r := newRig(t)
	check(t, r.step(t))
	first := r.identity(t)
	r.stop()
	r.set(first.renewAt().Add(time.Hour))
	if _, err := r.keeper.step(t.Context()); err == nil || errors.Is(err, errFinal) {
		t.Errorf("step() = %v, want an error that is not final", err)
	}
	if health := r.keeper.health.read(t.Context()); !health.Enrolled {
		t.Errorf("health while the certificate is good: %+v", health)
	}
	r.set(first.notAfter().Add(time.Minute))
	if _, err := r.keeper.step(t.Context()); !errors.Is(err, errFinal) {
		t.Errorf("step() after the end = %v, want a final error", err)
	}
	if health := r.keeper.health.read(t.Context()); health.Enrolled {
		t.Errorf("health after the end: %+v", health)
	}
}

func TestNoSecondEnrolment(t *testing.T) {
	r := newRig(t)
	check(t, r.step(t))
	check(t, os.Remove(r.keeper.state.path(identityFile)))
	r.putToken(t, r.keeper.config)
	if err := r.step(t); !errors.Is(err, errNoToken) {
		t.Errorf("a second enrolment with the same token: %v, want errNoToken", err)
	}
	if _, err := os.Stat(r.keeper.config.TokenFile); !os.IsNotExist(err) {
		t.Error("the used token was kept")
	}
}

// The answer to the first call is lost; the second call has the same key.
func TestLostAnswer(t *testing.T) {
	r := newRig(t)
	check(t, r.step(t))
	r2 := newRig(t)
	key, err := r2.keeper.state.pendingKey()
	check(t, err)
	again, err := r2.keeper.state.pendingKey()
	check(t, err)
	if !bytes.Equal(key, again) {
		t.Fatal("the pending key changed between two tries")
	}
	request, err := newRequest(r2.keeper.config.ID(), key)
	check(t, err)
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, err = r2.keeper.authority.call(t.Context(), wire.EnrolPath, wire.EnrolRequest{Token: r2.token, CSR: string(request)}, nil)
		if err == nil || time.Now().After(deadline) {
			break
		}
	}
	check(t, err) // and thrown away
	check(t, r2.step(t))
}

func TestRefusedForGood(t *testing.T) {
	r := newRig(t)
	check(t, r.store.Forget(t.Context(), "demo"))
	err := r.step(t)
	if !errors.Is(err, errFinal) || !errors.Is(err, ErrRefused) || strings.Contains(err.Error(), r.token) {
		t.Errorf("step() = %v", err)
	}
}

func TestBootstrapIsEnvoys(t *testing.T) {
	r := newRig(t)
	check(t, r.step(t))
	var bootstrap bootstrapv3.Bootstrap
	parse(t, r.keeper.config.BootstrapFile(), &bootstrap)
	check(t, bootstrap.ValidateAll())
	if bootstrap.GetNode().GetId() != "proxy/demo/1" {
		t.Errorf("node %q", bootstrap.GetNode().GetId())
	}
	cluster := bootstrap.GetStaticResources().GetClusters()[0]
	var context tlsv3.UpstreamTlsContext
	check(t, cluster.GetTransportSocket().GetTypedConfig().UnmarshalTo(&context))
	check(t, context.ValidateAll())
	if context.GetSni() != wire.ServerName || len(context.GetCommonTlsContext().GetValidationContext().GetMatchTypedSubjectAltNames()) != 1 {
		t.Errorf("the server is not checked by its name: %v", &context)
	}
	var http httpv3.HttpProtocolOptions
	for _, options := range cluster.GetTypedExtensionProtocolOptions() {
		check(t, options.UnmarshalTo(&http))
	}
	check(t, http.ValidateAll())

	var response discovery.DiscoveryResponse
	parse(t, r.keeper.config.secretFile(), &response)
	var secret tlsv3.Secret
	check(t, response.GetResources()[0].UnmarshalTo(&secret))
	check(t, secret.ValidateAll())
	info, err := os.Stat(r.keeper.config.secretFile())
	check(t, err)
	if info.Mode().Perm()&0o007 != 0 {
		t.Errorf("anyone may read the key: %v", info.Mode())
	}
}

func parse(t *testing.T, file string, into proto.Message) {
	t.Helper()
	data, err := os.ReadFile(file)
	check(t, err)
	data, err = yaml.YAMLToJSONStrict(data)
	check(t, err)
	check(t, protojson.Unmarshal(data, into))
}

func TestReplaceFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dir", "file")
	inode := func() os.FileInfo {
		info, err := os.Stat(file)
		check(t, err)
		return info
	}
	for _, step := range []struct {
		data    string
		changed bool
	}{{"one", true}, {"one", false}, {"two", true}} {
		var before os.FileInfo
		if step.data != "one" || !step.changed {
			before = inode()
		}
		changed, err := replaceFile(file, []byte(step.data), 0o640)
		if err != nil || changed != step.changed {
			t.Errorf("replaceFile(%q) = %v, %v, want %v", step.data, changed, err, step.changed)
		}
		if before != nil && os.SameFile(before, inode()) == changed {
			t.Errorf("%q: a changed file must be another file", step.data)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(file))
	check(t, err)
	if len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestAnnouncement(t *testing.T) {
	mac := net.HardwareAddr{0xbc, 0x24, 0x11, 1, 2, 3}
	for name, test := range map[string]struct {
		op   uint16
		want string
	}{
		"request": {opRequest, "ffffffffffff bc2411010203 0806 0001 0800 06 04 0001 bc2411010203 0a01010a 000000000000 0a01010a"},
		"reply":   {opReply, "ffffffffffff bc2411010203 0806 0001 0800 06 04 0002 bc2411010203 0a01010a bc2411010203 0a01010a"},
	} {
		t.Run(name, func(t *testing.T) {
			got := fmt.Sprintf("%x", announcement(test.op, mac, netip.MustParseAddr("10.1.1.10")))
			if got != strings.ReplaceAll(test.want, " ", "") {
				t.Errorf("frame %s", got)
			}
		})
	}
}

func TestHealth(t *testing.T) {
	for name, test := range map[string]struct {
		ready    int
		stats    string
		enrolled bool
		want     Health
		code     int
	}{
		"fit":         {200, "listener_manager.lds.version_text: \"3-abc\"\ncluster_manager.cds.version_text: \"3-abc\"\n", true, Health{Ready: true, Enrolled: true, EnvoyReady: true, ConfigVersion: "3-abc", ClusterVersion: "3-abc"}, 200},
		"no config":   {200, "listener_manager.lds.version_text: \"\"\n", true, Health{Enrolled: true, EnvoyReady: true}, 503},
		"starting":    {503, "", true, Health{Enrolled: true}, 503},
		"no identity": {200, "listener_manager.lds.version_text: \"1\"\n", false, Health{EnvoyReady: true, ConfigVersion: "1"}, 503},
	} {
		t.Run(name, func(t *testing.T) {
			admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/ready" {
					w.WriteHeader(test.ready)
					return
				}
				_, _ = io.WriteString(w, test.stats)
			}))
			defer admin.Close()
			h := &health{admin: admin.Listener.Addr().String(), now: time.Now}
			if test.enrolled {
				test.want.NotAfter = time.Now().Add(time.Hour)
				h.enrolled(test.want.NotAfter)
			}
			if got := h.read(t.Context()); got != test.want {
				t.Errorf("read() = %+v, want %+v", got, test.want)
			}
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			check(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- h.serve(ctx, listener, slog.New(slog.DiscardHandler)) }()
			response, err := http.Get("http://" + listener.Addr().String() + HealthPath)
			check(t, err)
			check(t, response.Body.Close())
			if response.StatusCode != test.code {
				t.Errorf("code %d, want %d", response.StatusCode, test.code)
			}
			cancel()
			check(t, <-done)
		})
	}
}

func TestLoadConfigRefuses(t *testing.T) {
	r := newRig(t)
	good := r.keeper.config
	for name, test := range map[string]struct {
		spoil func(*Config)
		want  string
	}{
		"tenant":  {func(c *Config) { c.Tenant = "" }, "name"},
		"server":  {func(c *Config) { c.XDS = "xds:1" }, "xds"},
		"CA":      {func(c *Config) { c.CA = "x" }, "ca"},
		"card":    {func(c *Config) { c.Device.MAC = "eth1" }, "device.mac"},
		"address": {func(c *Config) { c.Device.Address = netip.Addr{} }, "device.address"},
		"open":    {func(c *Config) { c.Health = "0.0.0.0:9902" }, "loopback"},
	} {
		t.Run(name, func(t *testing.T) {
			config := good
			test.spoil(&config)
			data, err := yaml.Marshal(config)
			check(t, err)
			file := filepath.Join(t.TempDir(), "agent.yaml")
			check(t, os.WriteFile(file, data, 0o600))
			if _, err := LoadConfig(file); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("LoadConfig() = %v, want an error that names %q", err, test.want)
			}
		})
	}
	file := filepath.Join(t.TempDir(), "agent.yaml")
	check(t, os.WriteFile(file, []byte("tenat: demo\n"), 0o600))
	if _, err := LoadConfig(file); err == nil || !strings.Contains(err.Error(), "tenat") {
		t.Errorf("unknown field: %v", err)
	}
}
