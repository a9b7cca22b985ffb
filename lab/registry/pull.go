package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"aether.internal/aether/lab/latency"
)

// ErrNotFound is in the error of a pull that ended with "there is no such
// image", as opposed to "nobody could be asked".
var ErrNotFound = errors.New("not found")

// StatusError is a registry's answer that is not the content.
type StatusError struct {
	URL  string
	Code int
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("unexpected status from request to %s: %d %s", e.URL, e.Code, http.StatusText(e.Code))
}

// Is makes a 404 an ErrNotFound.
func (e *StatusError) Is(target error) bool {
	return target == ErrNotFound && e.Code == http.StatusNotFound //nolint:errorlint // this is errors.Is
}

// accept lists the manifest types that a container runtime asks for.
const accept = "application/vnd.docker.distribution.manifest.v2+json, " +
	"application/vnd.docker.distribution.manifest.list.v2+json, " +
	"application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, */*"

// Pull resolves an image through the mirrors, fetches index, manifest,
// configuration and layers, verifies every digest, and takes as long as the
// real image would.
func (p *Puller) Pull(ctx context.Context, ref string) (*Image, error) {
	parsed, err := Reference(ref)
	if err != nil {
		return nil, err
	}
	image, err := p.pull(ctx, parsed)
	if err != nil {
		return nil, fmt.Errorf("pull image %q: %w", ref, err)
	}
	if p.Clock != nil {
		if err := p.Clock.Sleep(ctx, latency.PullImage, 1); err != nil {
			return nil, fmt.Errorf("pull image %q: %w", ref, err)
		}
		if err := p.Clock.Sleep(ctx, latency.PullPerMiB, float64(image.SizeBytes)/(1<<20)); err != nil {
			return nil, fmt.Errorf("pull image %q: %w", ref, err)
		}
	}
	return image, nil
}

func (p *Puller) pull(ctx context.Context, ref name.Reference) (*Image, error) {
	hosts, err := p.hosts(host(ref))
	if err != nil {
		return nil, err
	}
	client, err := p.client()
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	session := &session{puller: p, client: client, hosts: hosts, ref: ref}
	digest, err := session.resolve(ctx)
	if err != nil {
		return nil, fmt.Errorf("failed to resolve reference %q: %w", canonical(ref), err)
	}
	config, err := session.fetchAll(ctx, digest)
	if err != nil {
		return nil, err
	}
	return imageFrom(ref, digest, config), nil
}

// session is one pull.
type session struct {
	puller *Puller
	client *http.Client
	hosts  []endpoint
	ref    name.Reference
}

// resolve returns the digest of the reference. A reference by digest is asked
// for too: a registry that does not have it is found out here.
func (s *session) resolve(ctx context.Context) (string, error) {
	header, _, err := s.get(ctx, http.MethodHead, "manifests", s.ref.Identifier())
	if err != nil {
		return "", err
	}
	if _, byDigest := s.ref.(name.Digest); byDigest {
		return s.ref.Identifier(), nil
	}
	digest := header.Get("Docker-Content-Digest")
	if _, err := v1.NewHash(digest); err != nil {
		return "", fmt.Errorf("registry gave no usable digest: %w", err)
	}
	return digest, nil
}

// fetchAll fetches everything below a digest and returns the configuration.
func (s *session) fetchAll(ctx context.Context, digest string) (*v1.ConfigFile, error) {
	data, err := s.fetch(ctx, "manifests", digest)
	if err != nil {
		return nil, err
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", digest, err)
	}
	if index.MediaType == types.OCIImageIndex || index.MediaType == types.DockerManifestList {
		child, err := amd64(index, digest)
		if err != nil {
			return nil, err
		}
		return s.fetchAll(ctx, child)
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", digest, err)
	}
	for _, layer := range manifest.Layers {
		if _, err := s.fetch(ctx, "blobs", layer.Digest.String()); err != nil {
			return nil, err
		}
	}
	data, err = s.fetch(ctx, "blobs", manifest.Config.Digest.String())
	if err != nil {
		return nil, err
	}
	config := &v1.ConfigFile{}
	if err := json.Unmarshal(data, config); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", manifest.Config.Digest, err)
	}
	return config, nil
}

// amd64 picks the image for the lab's machines.
func amd64(index *v1.IndexManifest, digest string) (string, error) {
	for i := range index.Manifests {
		if platform := index.Manifests[i].Platform; platform != nil && platform.OS == "linux" && platform.Architecture == "amd64" {
			return index.Manifests[i].Digest.String(), nil
		}
	}
	return "", fmt.Errorf("index %s: no match for platform linux/amd64: %w", digest, ErrNotFound)
}

// fetch gets content by digest and verifies it.
func (s *session) fetch(ctx context.Context, kind, digest string) ([]byte, error) {
	_, data, err := s.get(ctx, http.MethodGet, kind, digest)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", digest, err)
	}
	if found := digestOf(data); found != digest {
		return nil, fmt.Errorf("fetch %s: content has digest %s: registry or mirror is broken", digest, found)
	}
	return data, nil
}

// get asks one host after the other. Any failure, and any status from 400 up,
// sends it to the next; the first host that was reached names the reason.
func (s *session) get(ctx context.Context, method, kind, reference string) (http.Header, []byte, error) {
	var failures []error
	for _, host := range s.hosts {
		header, data, err := s.try(ctx, host, method, kind, reference)
		if err == nil {
			return header, data, nil
		}
		failures = append(failures, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, nil, mostRelevant(failures)
}

// mostRelevant prefers an answer over a failure to connect, and among answers
// one that is not "not found".
func mostRelevant(failures []error) error {
	rank := func(err error) int {
		var status *StatusError
		switch {
		case !errors.As(err, &status):
			return 0
		case status.Code == http.StatusNotFound:
			return 1
		default:
			return 2
		}
	}
	best := failures[0]
	for _, failure := range failures[1:] {
		if rank(failure) > rank(best) {
			best = failure
		}
	}
	return best
}

func (s *session) try(ctx context.Context, host endpoint, method, kind, reference string) (http.Header, []byte, error) {
	url := strings.Join([]string{host.base, repositoryPath(s.ref), kind, reference}, "/")
	if host.namespace != "" {
		url += "?ns=" + host.namespace
	}
	request, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return nil, nil, fmt.Errorf("request %s: %w", url, err)
	}
	request.Header.Set("Accept", accept)
	if credentials, ok := s.puller.Auth[request.URL.Host]; ok {
		request.SetBasicAuth(credentials.Username, credentials.Password)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to do request: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // read to its end below
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", url, err)
	}
	if response.StatusCode >= http.StatusBadRequest {
		return nil, nil, &StatusError{URL: url, Code: response.StatusCode}
	}
	return response.Header, data, nil
}
