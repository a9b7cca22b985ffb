package envoy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	control "aether.internal/aether/internal/envoy"
	"aether.internal/aether/internal/envoy/wire"
	"aether.internal/aether/internal/proxyagent"
)

const namespaceName = "aether-system"

// world is a management cluster with one server for the proxies.
type world struct {
	client         client.Client
	store          *control.Store
	ca             *control.CA
	source         *control.MemorySource
	xds, enrolment string
	stop           func()
	logs           *logBuffer
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(data)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func newWorld(t *testing.T, tenants ...control.Tenant) *world {
	t.Helper()
	w := &world{client: fake.NewClientBuilder().Build(), logs: &logBuffer{}}
	w.store = control.NewStore(w.client, namespaceName, time.Now)
	var err error
	if w.ca, err = control.EnsureCA(t.Context(), w.client, namespaceName, time.Now); err != nil {
		t.Fatal(err)
	}
	w.xds, w.enrolment = freeAddress(t), freeAddress(t)
	w.serve(t, tenants...)
	t.Cleanup(func() {
		w.stop()
		if t.Failed() {
			t.Log(w.logs.String())
		}
	})
	return w
}

// serve starts the server, on the addresses it had before.
func (w *world) serve(t *testing.T, tenants ...control.Tenant) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w.source = control.NewMemorySource(tenants...)
	config := control.Config{
		Client: w.client, Namespace: namespaceName, Source: w.source,
		XDS: listenOn(t, w.xds), Enrolment: listenOn(t, w.enrolment), Log: w.logs.logger(),
	}
	done := make(chan error, 1)
	go func() { done <- control.Serve(ctx, config) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
}

func listenOn(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l := listenOn(t, "127.0.0.1:0")
	defer l.Close()
	return l.Addr().String()
}

// vm is a proxy's virtual machine without the machine: agent and Envoy.
type vm struct {
	id       wire.ID
	dir      string
	config   proxyagent.Config
	token    string
	logs     *logBuffer
	access   *logBuffer
	stopSelf func()
}

func (w *world) boot(t *testing.T, tenant control.Tenant) *vm {
	t.Helper()
	token, err := w.store.Issue(t.Context(), tenant.ID())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	m := &vm{id: tenant.ID(), dir: dir, token: token, logs: &logBuffer{}, access: &logBuffer{}}
	m.config = proxyagent.Config{
		Tenant: tenant.Name, Generation: tenant.Generation, XDS: w.xds, Enrolment: w.enrolment, CA: string(w.ca.PEM()),
		Device:    proxyagent.Device{MAC: "bc:24:11:00:00:01", Address: tenant.Address},
		TokenFile: filepath.Join(dir, "token"), StateDir: filepath.Join(dir, "state"), EnvoyDir: filepath.Join(dir, "envoy"),
		Health: freeAddress(t), Admin: freeAddress(t),
	}
	write(t, m.config.TokenFile, []byte(token))
	data, err := yaml.Marshal(m.config)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "agent.yaml"), data)
	m.start(t)
	t.Cleanup(func() {
		m.stopSelf()
		if t.Failed() {
			t.Logf("%s:\n%s", m.id, m.logs)
		}
	})
	return m
}

func (m *vm) start(t *testing.T) {
	t.Helper()
	config, err := proxyagent.LoadConfig(filepath.Join(m.dir, "agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() {
		if err := proxyagent.New(config, m.logs.logger(), time.Now).Run(ctx); err != nil {
			t.Errorf("agent: %v", err)
		}
	})
	parts.Go(func() {
		for ctx.Err() == nil { // as systemd: when the file appears, and again after a crash
			if _, err := os.Stat(config.BootstrapFile()); err == nil {
				run(ctx, []string{"envoy", "-c", config.BootstrapFile(), "--drain-time-s", "1"}, m.access, m.logs)
			}
			sleep(ctx, 20*time.Millisecond)
		}
	})
	m.stopSelf = sync.OnceFunc(func() { cancel(); parts.Wait() })
}

func (m *vm) admin(t *testing.T, path string) string {
	t.Helper()
	response, err := http.Get("http://" + m.config.Admin + path)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition that says what it sees.
func eventually(t *testing.T, what string, check func() (bool, any)) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		ok, seen := check()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: still %v", what, seen)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (w *world) waitStatus(t *testing.T, id wire.ID, what string, want func(control.Status) bool) control.Status {
	t.Helper()
	var last control.Status
	eventually(t, what, func() (bool, any) {
		status, err := w.store.ReadStatus(t.Context(), id)
		last = status
		return err == nil && want(status), fmt.Sprintf("%+v, %v", status, err)
	})
	return last
}

func applied(s control.Status) bool { return s.Applied }

// upstream is a server that greets with its name and echoes.
func upstream(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	l := listenOn(t, "127.0.0.1:0")
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintln(c, name)
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

// dial opens a connection through a proxy and reads the greeting.
func dial(t *testing.T, address netip.Addr, port uint16) (net.Conn, string) {
	t.Helper()
	c, err := net.DialTimeout("tcp", netip.AddrPortFrom(address, port).String(), time.Second)
	if err != nil {
		return nil, err.Error()
	}
	t.Cleanup(func() { c.Close() })
	return c, strings.TrimSpace(readLine(c))
}

func readLine(c net.Conn) string {
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
	var line []byte
	one := make([]byte, 1)
	for {
		if _, err := c.Read(one); err != nil {
			return err.Error()
		}
		if one[0] == '\n' {
			return string(line)
		}
		line = append(line, one[0])
	}
}

func wantEcho(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := fmt.Fprintln(c, text); err != nil {
		t.Fatal(err)
	}
	if got := readLine(c); got != text {
		t.Fatalf("echo = %q, want %q", got, text)
	}
}

func wantGreeting(t *testing.T, address netip.Addr, port uint16, want string) {
	t.Helper()
	eventually(t, fmt.Sprintf("greeting of %s:%d", address, port), func() (bool, any) {
		c, got := dial(t, address, port)
		if c != nil {
			c.Close()
		}
		return got == want, got
	})
}
