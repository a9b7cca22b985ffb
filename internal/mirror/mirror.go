// Package mirror asks the site's image mirrors what a worker would ask them,
// in the way containerd and Talos do: endpoints in order, the path taken as it
// is or with /v2 appended, and the registry itself only when the site allows
// it. It proves before a first boot that the boot will find its images.
package mirror

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"aether.internal/aether/internal/site"
)

// Checker asks the mirrors of a site.
type Checker struct {
	mirrors []site.Mirror
	client  *http.Client
}

// timeout bounds one question.
const timeout = 20 * time.Second

// New returns a checker that trusts the system's authorities and the site's.
func New(s *site.Site) (*Checker, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	add := func(what, pem string) error {
		if pem != "" && !pool.AppendCertsFromPEM([]byte(pem)) {
			return fmt.Errorf("%s: holds no PEM certificate", what)
		}
		return nil
	}
	for i, root := range s.Spec.TrustedRoots {
		if err := add(fmt.Sprintf("spec.trustedRoots[%d]", i), root.PEM); err != nil {
			return nil, err
		}
	}
	for i, m := range s.Spec.Mirrors {
		for j, endpoint := range m.Endpoints {
			if endpoint.CA == nil {
				continue
			}
			if err := add(fmt.Sprintf("spec.mirrors[%d].endpoints[%d].ca", i, j), endpoint.CA.PEM); err != nil {
				return nil, err
			}
		}
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	return &Checker{mirrors: s.Spec.Mirrors, client: &http.Client{Transport: transport, Timeout: timeout}}, nil
}

// errNotManifest tells that something answered that is no registry.
var errNotManifest = errors.New("the answer is no image manifest")

// Check returns an empty text when a worker would get the image's manifest,
// and otherwise what each endpoint said.
func (c *Checker) Check(ctx context.Context, reference string) (problem string) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return fmt.Sprintf("%q is no image reference: %v", reference, err)
	}
	registry := ref.Context().RegistryStr()
	if registry == name.DefaultRegistry {
		registry = "docker.io"
	}
	var said []string
	for _, endpoint := range c.endpoints(registry) {
		target := endpoint + "/" + ref.Context().RepositoryStr() + "/manifests/" + ref.Identifier()
		err := c.ask(ctx, target, registry)
		if err == nil {
			return ""
		}
		said = append(said, fmt.Sprintf("%s: %v", endpoint, err))
	}
	return strings.Join(said, "; ")
}

// endpoints lists where a worker asks for a registry's images, as URLs up to
// the repository.
func (c *Checker) endpoints(registry string) []string {
	var list []string
	direct := "https://" + registry + "/v2"
	if registry == "docker.io" {
		direct = "https://registry-1.docker.io/v2"
	}
	m, ok := c.mirror(registry)
	if !ok {
		return []string{direct}
	}
	for _, endpoint := range m.Endpoints {
		base := strings.TrimRight(endpoint.URL, "/")
		if !endpoint.OverridePath && !strings.HasSuffix(base, "/v2") {
			base += "/v2"
		}
		list = append(list, base)
	}
	if !m.SkipFallback {
		list = append(list, direct)
	}
	return list
}

// mirror returns the entry for a registry: the exact one, else the one for *.
func (c *Checker) mirror(registry string) (site.Mirror, bool) {
	var wildcard site.Mirror
	found := false
	for _, m := range c.mirrors {
		switch m.Host {
		case registry:
			return m, true
		case "*":
			wildcard, found = m, true
		}
	}
	return wildcard, found
}

func (c *Checker) ask(ctx context.Context, target, registry string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target+"?ns="+url.QueryEscape(registry), nil)
	if err != nil {
		return fmt.Errorf("not a URL: %w", err)
	}
	accepted := []string{string(types.OCIImageIndex), string(types.OCIManifestSchema1), string(types.DockerManifestList), string(types.DockerManifestSchema2)}
	request.Header.Set("Accept", strings.Join(accepted, ", "))
	response, err := c.client.Do(request)
	if err != nil {
		return err
	}
	closeErr := response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", response.Status)
	}
	kind, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";")
	if !types.MediaType(kind).IsIndex() && !types.MediaType(kind).IsImage() {
		return fmt.Errorf("%w, but %q; Harbor needs overridePath: true", errNotManifest, kind)
	}
	return closeErr
}
