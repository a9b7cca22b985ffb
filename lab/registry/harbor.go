package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const proxyPrefix = "proxy-"

// harbor answers the registry half of Harbor: /v2/<project>/<repository>/….
// Each proxy project caches one upstream.
type harbor struct {
	upstreams map[string]*upstream

	mu      sync.Mutex
	content map[string]cached // by digest
	tags    map[string]string // project/repository:tag → digest
	// pending holds the tags that were asked for by HEAD only: they are
	// attached when their content arrives.
	pending map[string][]string // digest → tags
}

// cached is a manifest or blob in Harbor's own storage.
type cached struct {
	digest    string
	mediaType string
	size      string
	data      []byte
}

// request is a parsed pull.
type request struct {
	upstream   *upstream
	project    string
	repository string // path at the upstream
	kind       string // manifests or blobs
	reference  string // tag or digest
}

func newHarbor(upstreams map[string]*upstream) *harbor {
	return &harbor{upstreams: upstreams, content: map[string]cached{}, tags: map[string]string{}, pending: map[string][]string{}}
}

// ServeHTTP implements http.Handler.
func (h *harbor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	if r.URL.Path == "/v2/" || r.URL.Path == "/v2" {
		w.WriteHeader(http.StatusOK)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		writeError(w, http.StatusMethodNotAllowed, "DENIED", "can not push artifact to a proxy project")
		return
	}
	pull, err := h.parse(r.URL.Path)
	if err != nil {
		// Harbor does not tell an anonymous client which projects exist.
		writeError(w, http.StatusUnauthorized, "UNAUTHORIZED", err.Error())
		return
	}
	if pull.kind == "blobs" || strings.HasPrefix(pull.reference, "sha256:") {
		h.byDigest(w, r, pull)
		return
	}
	h.byTag(w, r, pull)
}

// parse splits /v2/<project>/<repository>/<kind>/<reference>.
func (h *harbor) parse(path string) (request, error) {
	parts := strings.Split(strings.TrimPrefix(path, "/v2/"), "/")
	if !strings.HasPrefix(path, "/v2/") || len(parts) < 4 {
		return request{}, fmt.Errorf("path %q is not /v2/<project>/<repository>/<manifests or blobs>/<reference>", path)
	}
	n := len(parts)
	pull := request{
		project: parts[0], repository: strings.Join(parts[1:n-2], "/"), kind: parts[n-2], reference: parts[n-1],
	}
	if pull.kind != "manifests" && pull.kind != "blobs" {
		return request{}, fmt.Errorf("path %q names neither manifests nor blobs", path)
	}
	up, ok := h.upstreams[strings.TrimPrefix(pull.project, proxyPrefix)]
	if !ok || !strings.HasPrefix(pull.project, proxyPrefix) {
		return request{}, fmt.Errorf("unauthorized to access repository: %s/%s, action: pull", pull.project, pull.repository)
	}
	pull.upstream = up
	return pull, nil
}

// byDigest serves what cannot change: the local copy if there is one.
func (h *harbor) byDigest(w http.ResponseWriter, r *http.Request, pull request) {
	if found, ok := h.local(pull.reference); ok {
		serve(w, r, pull.reference, found)
		return
	}
	fetched, err := h.fetch(r, pull, http.MethodGet)
	if err != nil {
		h.refuse(w, pull, err)
		return
	}
	h.store(fetched)
	serve(w, r, pull.reference, fetched)
}

// byTag asks the upstream each time. Its 404 is passed on and ends the local
// copy of the tag; when it cannot be asked, the local copy is served.
func (h *harbor) byTag(w http.ResponseWriter, r *http.Request, pull request) {
	key := pull.project + "/" + pull.repository + ":" + pull.reference
	fetched, err := h.fetch(r, pull, r.Method)
	if err == nil {
		h.tag(key, fetched.digest)
		if r.Method == http.MethodGet { // a HEAD caches nothing
			h.store(fetched)
		}
		serve(w, r, fetched.digest, fetched)
		return
	}
	var status statusError
	h.mu.Lock()
	if errors.As(err, &status) && status.code == http.StatusNotFound {
		delete(h.tags, key)
	}
	digest, known := h.tags[key]
	h.mu.Unlock()
	if found, ok := h.local(digest); known && ok {
		serve(w, r, digest, found)
		return
	}
	h.refuse(w, pull, err)
}

func (h *harbor) local(digest string) (cached, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	found, ok := h.content[digest]
	return found, ok
}

// store keeps content, for all projects at once, and attaches waiting tags.
func (h *harbor) store(item cached) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.content[item.digest] = item
	for _, key := range h.pending[item.digest] {
		h.tags[key] = item.digest
	}
	delete(h.pending, item.digest)
}

// tag notes which digest the upstream gives a tag.
func (h *harbor) tag(key, digest string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, here := h.content[digest]; here {
		h.tags[key] = digest
		return
	}
	if !slices.Contains(h.pending[digest], key) {
		h.pending[digest] = append(h.pending[digest], key)
	}
}

// statusError is an upstream's answer that is not the content.
type statusError struct{ code int }

// Error implements error.
func (e statusError) Error() string { return fmt.Sprintf("http status code: %d", e.code) }

// fetch asks the upstream. A HEAD brings everything but the data.
func (h *harbor) fetch(r *http.Request, pull request, method string) (cached, error) {
	url := fmt.Sprintf("http://%s/v2/%s/%s/%s", pull.upstream.host, pull.repository, pull.kind, pull.reference)
	out, err := http.NewRequestWithContext(r.Context(), method, url, http.NoBody)
	if err != nil {
		return cached{}, fmt.Errorf("proxy %s: %w", url, err)
	}
	out.Header["Accept"] = r.Header["Accept"]
	response, err := pull.upstream.RoundTrip(out)
	if err != nil {
		return cached{}, err
	}
	defer response.Body.Close() //nolint:errcheck // a body in memory
	if response.StatusCode != http.StatusOK {
		return cached{}, statusError{response.StatusCode}
	}
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return cached{}, fmt.Errorf("proxy %s: %w", url, err)
	}
	item := cached{
		digest: response.Header.Get("Docker-Content-Digest"), mediaType: response.Header.Get("Content-Type"),
		size: response.Header.Get("Content-Length"), data: data,
	}
	if method == http.MethodGet {
		item.digest, item.size = digestOf(data), strconv.Itoa(len(data))
	}
	return item, nil
}

// refuse answers as Harbor does when neither side has the artifact: every
// upstream failure but a missing permission looks like "not found" (C39).
func (h *harbor) refuse(w http.ResponseWriter, pull request, err error) {
	var status statusError
	if errors.As(err, &status) && status.code == http.StatusTooManyRequests {
		writeError(w, http.StatusTooManyRequests, "TOOMANYREQUESTS", err.Error())
		return
	}
	writeError(w, http.StatusNotFound, "NOT_FOUND", fmt.Sprintf("artifact %s/%s:%s not found", pull.project, pull.repository, pull.reference))
}

func serve(w http.ResponseWriter, r *http.Request, digest string, item cached) {
	w.Header().Set("Content-Type", item.mediaType)
	w.Header().Set("Docker-Content-Digest", digest)
	w.Header().Set("Content-Length", item.size)
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	_, _ = w.Write(item.data) // a client that went away is its own affair
}

func digestOf(data []byte) string {
	hash, _, err := v1.SHA256(bytes.NewReader(data))
	if err != nil {
		return "" // a reader of memory does not fail
	}
	return hash.String()
}

// writeError answers in the distribution protocol's form.
func writeError(w http.ResponseWriter, status int, code, message string) {
	type entry struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	body, err := json.Marshal(map[string][]entry{"errors": {{Code: code, Message: message}}})
	if err != nil {
		body = nil // two strings always marshal
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
