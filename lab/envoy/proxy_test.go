package envoy

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbac "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpproxy "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	control "aether.internal/aether/internal/envoy"
)

func testProxy(t *testing.T) *proxy {
	t.Helper()
	p := newProxy(&boot{}, time.Hour, io.Discard, slog.New(slog.DiscardHandler))
	t.Cleanup(p.close)
	return p
}

func packed[M proto.Message](t *testing.T, messages []M) []*anypb.Any {
	t.Helper()
	var list []*anypb.Any
	for _, message := range messages {
		one, err := anypb.New(message)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, one)
	}
	return list
}

// configure applies what the product renders, after a change.
func configure(t *testing.T, p *proxy, upstreams []netip.AddrPort, change func(*control.Resources)) error {
	t.Helper()
	demo := tenant("demo", "127.10.0.9", 1)
	demo.Upstreams = upstreams
	resources, err := control.Snapshot(demo)
	if err != nil {
		t.Fatal(err)
	}
	resources.Clusters, resources.Listeners = resources.Clusters[:1], resources.Listeners[:1]
	if change != nil {
		change(&resources)
	}
	if err := p.takeClusters(t.Context(), packed(t, resources.Clusters)); err != nil {
		return err
	}
	return p.takeListeners(t.Context(), packed(t, resources.Listeners))
}

// editFilter changes the TCP proxy of a listener.
func editFilter(t *testing.T, l *listenerv3.Listener, edit func(*tcpproxy.TcpProxy)) {
	t.Helper()
	var config tcpproxy.TcpProxy
	filter := l.GetFilterChains()[0].GetFilters()[0]
	if err := filter.GetTypedConfig().UnmarshalTo(&config); err != nil {
		t.Fatal(err)
	}
	edit(&config)
	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, []*tcpproxy.TcpProxy{&config})[0]}
}

func (p *proxy) stat(name string) int64 {
	p.stats.mu.Lock()
	defer p.stats.mu.Unlock()
	return p.stats.values[name]
}

func through(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", "127.10.0.9:6443", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// What is refused, with the real one's words, and what is not.
func TestReasonsToRefuse(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, r *control.Resources)
		want   string
	}{
		"nothing": {func(*testing.T, *control.Resources) {}, ""},
		"no name": {func(_ *testing.T, r *control.Resources) { r.Clusters[0].Name = "" }, "Proto constraint validation failed"},
		"name instead of address": {func(_ *testing.T, r *control.Resources) {
			r.Listeners[0].Address.GetSocketAddress().Address = "proxy.example"
		}, "malformed IP address: proxy.example"},
		"address of others": {func(_ *testing.T, r *control.Resources) {
			r.Listeners[0].Address.GetSocketAddress().Address = "203.0.113.1"
		}, "cannot bind '203.0.113.1:6443': cannot assign requested address"},
		"unknown filter": {func(t *testing.T, r *control.Resources) {
			config := packed(t, []*rbac.RBAC{{StatPrefix: "x"}})[0]
			r.Listeners[0].FilterChains[0].Filters = append([]*listenerv3.Filter{{
				Name: "sources", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: config},
			}}, r.Listeners[0].GetFilterChains()[0].GetFilters()...)
		}, "Didn't find a registered implementation for 'sources' with type URL: 'envoy.extensions.filters.network.rbac.v3.RBAC'"},
		"unknown access log field": {func(t *testing.T, r *control.Resources) {
			editFilter(t, r.Listeners[0], func(c *tcpproxy.TcpProxy) {
				c.AccessLog[0].GetTypedConfig().Value = bytes.ReplaceAll(c.GetAccessLog()[0].GetTypedConfig().GetValue(), []byte("%DURATION%"), []byte("%DURATIOM%"))
			})
		}, "Not supported field in StreamInfo: DURATIOM"},
		"no filters": {func(_ *testing.T, r *control.Resources) { r.Listeners[0].FilterChains = nil }, "no filter chains specified"},
		// As in the real one, this is found out by the first connection.
		"unknown cluster": {func(t *testing.T, r *control.Resources) {
			editFilter(t, r.Listeners[0], func(c *tcpproxy.TcpProxy) {
				c.ClusterSpecifier = &tcpproxy.TcpProxy_Cluster{Cluster: "nowhere"}
			})
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := configure(t, testProxy(t), nil, func(r *control.Resources) { test.change(t, r) })
			if (err == nil) != (test.want == "") || (err != nil && !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestHalfClose(t *testing.T) {
	l := listenOn(t, "127.0.0.1:0")
	defer l.Close()
	go func() { // answers when the client has said all
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				all, _ := io.ReadAll(c)
				_, _ = c.Write(bytes.ToUpper(all))
			}()
		}
	}()
	p := testProxy(t)
	if err := configure(t, p, []netip.AddrPort{netip.MustParseAddrPort(l.Addr().String())}, nil); err != nil {
		t.Fatal(err)
	}
	c := through(t)
	if _, err := io.WriteString(c, "question"); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	answer, err := io.ReadAll(c)
	if string(answer) != "QUESTION" || err != nil {
		t.Errorf("answer %q, %v", answer, err)
	}
}

func TestIdleTimeout(t *testing.T) {
	for name, test := range map[string]struct {
		idle *durationpb.Duration
		cut  bool
	}{
		"as the product renders it": {durationpb.New(0), false},
		"short":                     {durationpb.New(50 * time.Millisecond), true},
	} {
		t.Run(name, func(t *testing.T) {
			p := testProxy(t)
			err := configure(t, p, []netip.AddrPort{upstream(t, "api")}, func(r *control.Resources) {
				editFilter(t, r.Listeners[0], func(c *tcpproxy.TcpProxy) { c.IdleTimeout = test.idle })
			})
			if err != nil {
				t.Fatal(err)
			}
			c := through(t)
			readLine(c)
			_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			_, err = c.Read(make([]byte, 1))
			if cut := err == io.EOF; cut != test.cut {
				t.Errorf("idle connection: %v, want cut %v", err, test.cut)
			}
		})
	}
	// Without a word about it, an hour is the default.
	p := testProxy(t)
	if err := configure(t, p, nil, func(r *control.Resources) {
		editFilter(t, r.Listeners[0], func(c *tcpproxy.TcpProxy) { c.IdleTimeout = nil })
	}); err != nil {
		t.Fatal(err)
	}
	if idle := p.listeners["api"].filter.idle; idle != time.Hour {
		t.Errorf("default idle time-out %s, want 1 h", idle)
	}
}

func TestCeiling(t *testing.T) {
	p := testProxy(t)
	err := configure(t, p, []netip.AddrPort{upstream(t, "api")}, func(r *control.Resources) {
		r.Clusters[0].CircuitBreakers.Thresholds[0].MaxConnections = wrapperspb.UInt32(2)
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"api", "api", "EOF"} {
		if got := readLine(through(t)); got != want {
			t.Errorf("connection %d: %q, want %q", i+1, got, want)
		}
	}
	if n := p.stat("cluster.api.upstream_cx_overflow"); n != 1 {
		t.Errorf("overflow counted %d times", n)
	}
	// The default is the real one's.
	c, err := newCluster(&clusterv3.Cluster{Name: "x", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}}, newStats())
	if err != nil || c.ceiling != 1024 {
		t.Errorf("default ceiling %d, %v", c.ceiling, err)
	}
}

// A dead server is left out, and connections to a live one go on.
func TestHealthChecks(t *testing.T) {
	dead := listenOn(t, "127.0.0.1:0")
	deadAddress := netip.MustParseAddrPort(dead.Addr().String())
	dead.Close()
	p := testProxy(t)
	if err := configure(t, p, []netip.AddrPort{deadAddress, upstream(t, "alive")}, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one of two healthy", func() (bool, any) {
		return p.stat("cluster.api.membership_healthy") == 1 && p.stat("cluster.api.health_check.failure") > 0, nil
	})
	for range 4 {
		if got := readLine(through(t)); got != "alive" {
			t.Errorf("greeting %q", got)
		}
	}
	if n := p.stat("cluster.api.upstream_cx_connect_fail"); n != 0 {
		t.Errorf("%d connections were tried on the dead server", n)
	}
}

func TestKeepaliveIsInherited(t *testing.T) {
	s, err := listen("127.0.0.1:0", []*core.SocketOption{
		{Level: 1, Name: 9, Value: &core.SocketOption_IntValue{IntValue: 1}},
		{Level: 6, Name: 4, Value: &core.SocketOption_IntValue{IntValue: 61}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.release()
	accepted := make(chan *net.TCPConn, 1)
	s.serve(func(c *net.TCPConn) { accepted <- c })
	c, err := net.Dial("tcp", s.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	server := <-accepted
	defer server.Close()
	if idle := socketOption(t, server, 6, 4); idle != 61 {
		t.Errorf("keep-alive of an accepted connection starts after %d s, want 61", idle)
	}
}

// The real one takes up a file that was moved into place and no other.
func TestCredentialsByRenameOnly(t *testing.T) {
	demo := tenant("demo", "127.10.0.1", 1)
	w := newWorld(t, demo)
	m := w.boot(t, demo)
	w.waitStatus(t, demo.ID(), "applied", applied)
	path := filepath.Join(m.config.EnvoyDir, "identity.yaml")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f := &credentialFile{path: path, secret: "identity"}
	if err := f.load(); err != nil {
		t.Fatal(err)
	}
	write(t, path, []byte("rubbish"))
	if err := f.load(); err != nil {
		t.Errorf("a file written in place was noticed: %v", err)
	}
	write(t, path+".new", []byte("rubbish"))
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if err := f.load(); err == nil {
		t.Error("a file moved into place was not noticed")
	}
	if pair, err := f.certificate(nil); pair == nil || err != nil {
		t.Errorf("the last good certificate is gone: %v", err)
	}
	write(t, path+".new", good)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestProgram(t *testing.T) {
	demo := tenant("demo", "127.10.0.1", 1)
	w := newWorld(t, demo)
	m := w.boot(t, demo)
	w.waitStatus(t, demo.ID(), "applied", applied)
	boot := m.config.BootstrapFile()
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	write(t, bad, []byte("nodes: {}\n"))
	for name, test := range map[string]struct {
		args []string
		code int
		want string
	}{
		"version":          {[]string{"--version"}, 0, Version},
		"valid":            {[]string{"-c", boot, "--mode", "validate"}, 0, "OK"},
		"unknown field":    {[]string{"-c", bad, "--mode", "validate"}, 1, "unknown field"},
		"no configuration": {nil, 1, "no configuration"},
		"missing file":     {[]string{"-c", "/nonexistent"}, 1, "no such file"},
		"mode":             {[]string{"-c", boot, "--mode", "dance"}, 1, "mode"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			code := run(context.Background(), append([]string{"envoy"}, test.args...), &out, &out)
			if code != test.code || !strings.Contains(out.String(), test.want) {
				t.Errorf("exit code %d, %s", code, out.String())
			}
		})
	}
}
