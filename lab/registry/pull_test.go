package registry_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"aether.internal/aether/lab/registry"
)

const kubelet = "ghcr.io/siderolabs/kubelet:v1.35.4"

// world is a registry on loopback and a puller that reaches it by names.
type world struct {
	*registry.Registry
	puller *registry.Puller
	seen   []string
	mu     sync.Mutex
}

func newWorld(t *testing.T) *world {
	t.Helper()
	reg, err := registry.New(registry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Registry: reg}
	secure, plain := listen(t), listen(t)
	go func() { _ = reg.Serve(t.Context(), secure) }()
	go func() { _ = reg.ServePlain(t.Context(), plain) }()
	names := reg.Names("127.0.0.1")
	w.puller = &registry.Puller{
		Hosts:   names,
		RootCAs: append(reg.CAPEM(), reg.PublicCAPEM()...),
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			w.mu.Lock()
			w.seen = append(w.seen, addr)
			w.mu.Unlock()
			target := secure.Addr().String()
			if strings.HasSuffix(addr, ":80") {
				target = plain.Addr().String()
			}
			return (&net.Dialer{}).DialContext(ctx, network, target)
		},
	}
	return w
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func harbor(host string) registry.Mirror {
	return registry.Mirror{
		Host: host, Endpoints: []string{"https://harbor.lab/v2/proxy-" + host}, OverridePath: []bool{true}, SkipFallback: true,
	}
}

func TestPullThroughMirrors(t *testing.T) {
	endpoint := "https://harbor.lab/v2/proxy-ghcr.io"
	cases := []struct {
		name    string
		mirrors []registry.Mirror
		ref     string
		change  func(*world)
		want    string // part of the error, empty for success
		is      error
	}{
		{name: "upstream without mirrors", ref: kubelet},
		{name: "harbor with overridePath", ref: kubelet, mirrors: []registry.Mirror{harbor("ghcr.io")}},
		{
			name: "harbor without overridePath is not served", ref: kubelet,
			mirrors: []registry.Mirror{{Host: "ghcr.io", Endpoints: []string{endpoint}, SkipFallback: true}},
			want:    "/v2/proxy-ghcr.io/v2/siderolabs/kubelet/manifests/v1.35.4?ns=ghcr.io: 404", is: registry.ErrNotFound,
		},
		{
			name: "fallback hides a broken mirror", ref: kubelet,
			mirrors: []registry.Mirror{{Host: "ghcr.io", Endpoints: []string{endpoint}}},
		},
		{
			name: "star is for registries without their own", ref: "quay.io/cilium/cilium:v1.20.2",
			mirrors: []registry.Mirror{
				{Host: "*", Endpoints: []string{"https://harbor.lab/v2/proxy-quay.io"}, OverridePath: []bool{true}, SkipFallback: true},
				harbor("ghcr.io"),
			},
		},
		{
			name: "exact goes before star", ref: kubelet,
			mirrors: []registry.Mirror{
				{Host: "*", Endpoints: []string{"https://harbor.lab/v2/proxy-quay.io"}, OverridePath: []bool{true}, SkipFallback: true},
				harbor("ghcr.io"),
			},
		},
		{
			name: "http endpoint", ref: kubelet,
			mirrors: []registry.Mirror{{
				Host: "ghcr.io", Endpoints: []string{"http://harbor.lab/v2/proxy-ghcr.io"},
				OverridePath: []bool{true}, SkipFallback: true,
			}},
		},
		{
			name: "wrong scheme", ref: kubelet,
			mirrors: []registry.Mirror{{Host: "ghcr.io", Endpoints: []string{"harbor.lab/v2/proxy-ghcr.io"}}},
			want:    "give a URL that begins with https:// or http://",
		},
		{
			name: "http spoken to the https port", ref: kubelet,
			mirrors: []registry.Mirror{{
				Host: "ghcr.io", Endpoints: []string{"http://harbor.lab:443/v2/proxy-ghcr.io"},
				OverridePath: []bool{true}, SkipFallback: true,
			}},
			want: "400 Bad Request",
		},
		{name: "docker.io gets library from the client", ref: "nginx:1.27", mirrors: []registry.Mirror{harbor("docker.io")}},
		{name: "single part repository", ref: "registry.k8s.io/pause:3.10", mirrors: []registry.Mirror{harbor("registry.k8s.io")}},
		{
			name: "unknown tag", ref: "ghcr.io/siderolabs/kubelet:v9.9.9", mirrors: []registry.Mirror{harbor("ghcr.io")},
			want: "404", is: registry.ErrNotFound,
		},
		{
			name: "harbor's CA is not trusted", ref: kubelet, mirrors: []registry.Mirror{harbor("ghcr.io")},
			change: func(w *world) { w.puller.RootCAs = w.PublicCAPEM() }, want: "certificate signed by unknown authority",
		},
		{
			name: "harbor's name does not resolve", ref: kubelet, mirrors: []registry.Mirror{harbor("ghcr.io")},
			change: func(w *world) { delete(w.puller.Hosts, "harbor.lab") }, want: "no such host",
		},
		{
			name: "machined with skipFallback and no endpoints", ref: kubelet,
			mirrors: []registry.Mirror{{Host: "ghcr.io", SkipFallback: true}},
			change:  func(w *world) { w.puller.Consumer = registry.Machined }, is: registry.ErrNoHosts, want: "skipFallback",
		},
		{
			name: "containerd with skipFallback and no endpoints", ref: kubelet,
			mirrors: []registry.Mirror{{Host: "ghcr.io", SkipFallback: true}},
		},
		{
			name: "unknown project", ref: kubelet, want: "401",
			mirrors: []registry.Mirror{{
				Host: "ghcr.io", Endpoints: []string{"https://harbor.lab/v2/nothing"}, OverridePath: []bool{true}, SkipFallback: true,
			}},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.puller.Mirrors = c.mirrors
			if c.change != nil {
				c.change(w)
			}
			image, err := w.puller.Pull(t.Context(), c.ref)
			if c.want == "" && c.is == nil {
				checkImage(t, image, err, c.ref)
				return
			}
			if err == nil {
				t.Fatalf("pull succeeded, want an error with %q", c.want)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %q, want part %q", err, c.want)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error %q is not %v", err, c.is)
			}
		})
	}
}

func checkImage(t *testing.T, image *registry.Image, err error, ref string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(image.Digest, "sha256:") || image.Program == "" || image.SizeBytes == 0 {
		t.Errorf("image is %+v, want digest, program and size", image)
	}
	if !strings.HasSuffix(image.Ref, strings.TrimPrefix(ref, "docker.io/")) {
		t.Errorf("image has ref %q, want %q written out", image.Ref, ref)
	}
}

func TestMirrorKeepsUpstreamUnasked(t *testing.T) {
	w := newWorld(t)
	w.puller.Mirrors = []registry.Mirror{harbor("ghcr.io")}
	if _, err := w.puller.Pull(t.Context(), kubelet); err != nil {
		t.Fatal(err)
	}
	for _, addr := range w.seen {
		if addr != "127.0.0.1:443" {
			t.Errorf("the node dialled %s", addr)
		}
	}
	if w.UpstreamRequests("ghcr.io") == 0 {
		t.Error("harbor did not ask its upstream")
	}
}

func TestHarborWithoutUpstream(t *testing.T) {
	cases := []struct {
		name   string
		warm   bool
		state  registry.State
		digest bool
		want   int // status of the failure, 0 for success
	}{
		{name: "cached tag, upstream away", warm: true, state: registry.Away},
		{name: "cached tag, upstream limited", warm: true, state: registry.Limited},
		{name: "cached tag, upstream failing", warm: true, state: registry.Failing},
		{name: "cached digest, upstream away", warm: true, state: registry.Away, digest: true},
		{name: "cold, upstream away", state: registry.Away, want: http.StatusNotFound},
		{name: "cold, upstream limited", state: registry.Limited, want: http.StatusTooManyRequests},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.puller.Mirrors = []registry.Mirror{harbor("ghcr.io")}
			ref := kubelet
			if c.warm {
				image, err := w.puller.Pull(t.Context(), ref)
				if err != nil {
					t.Fatal(err)
				}
				if c.digest {
					ref = image.Repository + "@" + image.Digest
				}
			}
			if err := w.SetUpstream("ghcr.io", c.state); err != nil {
				t.Fatal(err)
			}
			_, err := w.puller.Pull(t.Context(), ref)
			var status *registry.StatusError
			switch {
			case c.want == 0 && err != nil:
				t.Errorf("pull: %v", err)
			case c.want != 0 && (!errors.As(err, &status) || status.Code != c.want):
				t.Errorf("pull: %v, want status %d", err, c.want)
			}
		})
	}
}

func TestHeadAloneCachesNothing(t *testing.T) {
	w := newWorld(t)
	head := func() int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodHead, "/v2/proxy-ghcr.io/siderolabs/kubelet/manifests/v1.35.4", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Host = "harbor.lab"
		answer := &recorder{header: http.Header{}}
		w.ServeHTTP(answer, request)
		return answer.status
	}
	if status := head(); status != http.StatusOK {
		t.Fatalf("HEAD by tag: status %d", status)
	}
	if err := w.SetUpstream("ghcr.io", registry.Away); err != nil {
		t.Fatal(err)
	}
	if status := head(); status != http.StatusNotFound {
		t.Errorf("HEAD by tag with the upstream away: status %d, want 404", status)
	}
}

type recorder struct {
	header http.Header
	status int
}

func (r *recorder) Header() http.Header            { return r.header }
func (r *recorder) WriteHeader(status int)         { r.status = status }
func (r *recorder) Write(data []byte) (int, error) { return len(data), nil }

func TestDigestsAreTheSameInEveryLab(t *testing.T) {
	w := newWorld(t)
	for _, definition := range registry.Catalogue() {
		want, err := definition.Digest()
		if err != nil {
			t.Fatal(err)
		}
		image, err := w.puller.Pull(t.Context(), definition.Ref)
		if err != nil {
			t.Fatal(err)
		}
		if image.Digest != want {
			t.Errorf("%s has digest %s, its definition says %s", definition.Ref, image.Digest, want)
		}
	}
}
