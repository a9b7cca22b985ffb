package relay_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aether.internal/aether/lab/relay"
)

// inside serves a relay whose lab knows one address, 192.168.0.2:80.
func inside(t *testing.T, backend string) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "relay.sock")
	listener, err := relay.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- relay.Serve(ctx, listener, func(ctx context.Context, network, address string) (net.Conn, error) {
			if address != "192.168.0.2:80" {
				return nil, &net.AddrError{Err: "no route", Addr: address}
			}
			return (&net.Dialer{}).DialContext(ctx, network, backend)
		}, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return socket
}

func open(t *testing.T, cfg relay.Config) *relay.Gate {
	t.Helper()
	cfg.Log = slog.New(slog.DiscardHandler)
	gate, err := relay.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := gate.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return gate
}

func TestForward(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(backend.Close)
	gate := open(t, relay.Config{
		Socket:   inside(t, backend.Listener.Addr().String()),
		Forwards: []relay.Forward{{Name: "ui", Listen: "127.0.0.1:0", Target: "192.168.0.2:80"}},
	})
	addr, ok := gate.Addr("ui")
	if !ok {
		t.Fatal("no address for the forward")
	}
	big := strings.Repeat("aether", 100_000)
	response, err := http.Post("http://"+addr.String(), "text/plain", strings.NewReader(big))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	got, err := io.ReadAll(response.Body)
	if err != nil || string(got) != big {
		t.Fatalf("got %d bytes, %v; want %d", len(got), err, len(big))
	}
}

// TestHalfClose: a side that has said all still hears the answer.
func TestHalfClose(t *testing.T) {
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = backend.Close() })
	go func() {
		conn, err := backend.Accept()
		if err != nil {
			return
		}
		asked, _ := io.ReadAll(conn) // until the other side has said all
		_, _ = io.WriteString(conn, "heard "+string(asked))
		_ = conn.Close()
	}()
	gate := open(t, relay.Config{
		Socket:   inside(t, backend.Addr().String()),
		Forwards: []relay.Forward{{Name: "raw", Listen: "127.0.0.1:0", Target: "192.168.0.2:80"}},
	})
	addr, _ := gate.Addr("raw")
	conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "question")
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if got, err := io.ReadAll(conn); err != nil || string(got) != "heard question" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestProxy(t *testing.T) {
	backend := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello from inside")
	}))
	t.Cleanup(backend.Close)
	gate := open(t, relay.Config{Socket: inside(t, backend.Listener.Addr().String()), Proxy: "127.0.0.1:0"})
	proxy, err := url.Parse(gate.ProxyURL())
	if err != nil {
		t.Fatal(err)
	}
	transport, ok := backend.Client().Transport.(*http.Transport)
	if !ok {
		t.Fatal("the test server's client has another transport")
	}
	transport = transport.Clone()
	transport.Proxy = http.ProxyURL(proxy)
	transport.TLSClientConfig.ServerName = "example.com" // of httptest's certificate
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}
	for _, test := range []struct {
		name, url, want, wantErr string
	}{
		{"known address", "https://192.168.0.2:80/", "hello from inside", ""},
		{"unknown address", "https://192.168.0.3:80/", "", "Bad Gateway"},
		{"name", "https://harbor.lab:443/", "", "Bad Request"},
		{"plain http", "http://192.168.0.2:80/", "this proxy serves CONNECT only; use it for https addresses\n", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			response, err := client.Get(test.url)
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Fatalf("got error %v, want %q", err, test.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			if got, err := io.ReadAll(response.Body); err != nil || string(got) != test.want {
				t.Fatalf("got %q, %v; want %q", got, err, test.want)
			}
		})
	}
}

func TestLabIsDown(t *testing.T) {
	gate := open(t, relay.Config{Socket: filepath.Join(t.TempDir(), "none"), Proxy: "127.0.0.1:0"})
	proxy, err := url.Parse(gate.ProxyURL())
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy)}}
	_, err = client.Get("https://192.168.0.2:6443/")
	if err == nil || !strings.Contains(err.Error(), "Bad Gateway") {
		t.Fatalf("got %v, want Bad Gateway", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	for _, test := range []struct {
		name string
		cfg  relay.Config
		want string
	}{
		{"all interfaces", relay.Config{Proxy: "0.0.0.0:0"}, "loopback"},
		{"no port", relay.Config{Proxy: "127.0.0.1"}, "loopback"},
		{"port taken", relay.Config{Proxy: taken.Addr().String()}, "choose one that is free"},
		{"target is a name", relay.Config{Forwards: []relay.Forward{{Name: "ui", Listen: "127.0.0.1:0", Target: "temporal:8233"}}}, "target"},
	} {
		t.Run(test.name, func(t *testing.T) {
			gate, err := relay.Open(test.cfg)
			if err == nil {
				_ = gate.Close()
				t.Fatal("got no error")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %q, want it to contain %q", err, test.want)
			}
		})
	}
}

func TestListenRemovesWhatWasLeft(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "relay.sock")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := relay.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := relay.Listen(filepath.Join(t.TempDir(), strings.Repeat("x", 120))); err == nil {
		t.Fatal("a path that is too long: got no error")
	}
}
