package mirror_test

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"aether.internal/aether/internal/mirror"
	"aether.internal/aether/internal/site"
)

const manifest = "application/vnd.oci.image.index.v1+json"

// registry answers some paths with a manifest and remembers what it was asked.
type registry struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
}

func newRegistry(t *testing.T, answers map[string]string) *registry {
	t.Helper()
	r := &registry{}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.mu.Lock()
		r.asked = append(r.asked, request.URL.RequestURI())
		r.mu.Unlock()
		kind, served := answers[request.URL.Path]
		if !served {
			http.NotFound(w, request)
			return
		}
		w.Header().Set("Content-Type", kind)
	}))
	r.Config.ErrorLog = log.New(io.Discard, "", 0)
	r.StartTLS()
	t.Cleanup(r.Close)
	return r
}

func (r *registry) ca() *site.Certificates {
	return &site.Certificates{PEM: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw}))}
}

func siteWith(mirrors ...site.Mirror) *site.Site {
	return &site.Site{Spec: site.Spec{Mirrors: mirrors}}
}

// TestCheck asks the way containerd would: what it finds here, a worker finds.
func TestCheck(t *testing.T) {
	const ref, path = "ghcr.io/siderolabs/kubelet:v1.35.4", "/siderolabs/kubelet/manifests/v1.35.4"
	for _, test := range []struct {
		name     string
		answers  map[string]string
		base     string // of the endpoint
		override bool
		want     string // in the problem; empty: served
	}{
		{"as Harbor serves", map[string]string{"/v2/proxy-ghcr.io" + path: manifest}, "/v2/proxy-ghcr.io", true, ""},
		{"a plain registry", map[string]string{"/v2" + path: manifest}, "", false, ""},
		{"a plain registry with /v2", map[string]string{"/v2" + path: manifest}, "/v2", false, ""},
		{"a slash at the end", map[string]string{"/v2/proxy-ghcr.io" + path: manifest}, "/v2/proxy-ghcr.io/", true, ""},
		{"Harbor without overridePath", map[string]string{"/v2/proxy-ghcr.io" + path: manifest}, "/v2/proxy-ghcr.io", false, "404"},
		{"a web page", map[string]string{"/proxy" + path: "text/html; charset=utf-8"}, "/proxy", true, "no image manifest"},
		{"not there", nil, "", false, "status 404 Not Found"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRegistry(t, test.answers)
			checker, err := mirror.New(siteWith(site.Mirror{
				Host: "ghcr.io", SkipFallback: true, Endpoints: []site.MirrorEndpoint{{URL: r.URL + test.base, OverridePath: test.override, CA: r.ca()}},
			}))
			if err != nil {
				t.Fatal(err)
			}
			got := checker.Check(t.Context(), ref)
			if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Errorf("got %q, asked %v", got, r.asked)
			}
			if len(r.asked) != 1 || !strings.HasSuffix(r.asked[0], "?ns=ghcr.io") {
				t.Errorf("asked %v", r.asked)
			}
		})
	}
}

// TestEndpointsAreAskedInOrder and the first that serves is enough.
func TestEndpointsAreAskedInOrder(t *testing.T) {
	empty, full := newRegistry(t, nil), newRegistry(t, map[string]string{"/v2/a/b/manifests/v1": manifest})
	endpoint := func(r *registry) site.MirrorEndpoint { return site.MirrorEndpoint{URL: r.URL, CA: r.ca()} }
	checker, err := mirror.New(siteWith(
		site.Mirror{Host: "*", SkipFallback: true, Endpoints: []site.MirrorEndpoint{endpoint(empty)}},
		site.Mirror{Host: "quay.io", SkipFallback: true, Endpoints: []site.MirrorEndpoint{endpoint(empty), endpoint(full)}},
	))
	if err != nil {
		t.Fatal(err)
	}
	if got := checker.Check(t.Context(), "quay.io/a/b:v1"); got != "" || len(empty.asked) != 1 || len(full.asked) != 1 {
		t.Errorf("got %q, asked %v and %v", got, empty.asked, full.asked)
	}
	// Another registry is the wildcard's.
	if got := checker.Check(t.Context(), "ghcr.io/a/b:v1"); !strings.Contains(got, "404") || len(empty.asked) != 2 || len(full.asked) != 1 {
		t.Errorf("got %q", got)
	}
	// A short name is Docker Hub's, below library.
	if got := checker.Check(t.Context(), "busybox"); !strings.Contains(got, "404") || !strings.Contains(empty.asked[2], "/v2/library/busybox/manifests/latest?ns=docker.io") {
		t.Errorf("got %q, asked %v", got, empty.asked)
	}
}

func TestCheckSaysWhatIsWrong(t *testing.T) {
	r := newRegistry(t, nil)
	checker, err := mirror.New(siteWith(site.Mirror{Host: "ghcr.io", SkipFallback: true, Endpoints: []site.MirrorEndpoint{{URL: r.URL}}}))
	if err != nil {
		t.Fatal(err)
	}
	if got := checker.Check(t.Context(), "ghcr.io/a/b:v1"); !strings.Contains(got, r.URL) || !strings.Contains(got, "certificate") {
		t.Errorf("a certificate that is not trusted: %q", got)
	}
	if got := checker.Check(t.Context(), "not an image!"); !strings.Contains(got, "is no image reference") {
		t.Errorf("no reference: %q", got)
	}
}

func TestNewRefusesCertificatesThatAreNone(t *testing.T) {
	roots := siteWith()
	roots.Spec.TrustedRoots = []site.Certificates{{PEM: "x"}}
	endpoint := siteWith(site.Mirror{Host: "ghcr.io", Endpoints: []site.MirrorEndpoint{{URL: "https://a", CA: &site.Certificates{PEM: "x"}}}})
	for field, s := range map[string]*site.Site{"spec.trustedRoots[0]": roots, "spec.mirrors[0].endpoints[0].ca": endpoint} {
		if _, err := mirror.New(s); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v", field, err)
		}
	}
}
