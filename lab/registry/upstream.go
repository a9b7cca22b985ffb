package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"slices"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	oci "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// State says how an upstream registry behaves.
type State string

// The states of an upstream registry.
const (
	// Up answers.
	Up State = "up"
	// Away breaks every connection.
	Away State = "away"
	// Limited answers 429 to everything, as a pull-rate limit does.
	Limited State = "limited"
	// Failing answers 502 to everything.
	Failing State = "failing"
)

// States lists all states.
func States() []State { return []State{Up, Away, Limited, Failing} }

var errUpstreamAway = errors.New("connection reset by peer")

// upstream is one registry of the lab's Internet.
type upstream struct {
	host    string
	content http.Handler

	mu       sync.Mutex
	state    State
	requests int
}

// newUpstreams builds the registries that hold the images.
func newUpstreams(ctx context.Context, images []Definition) (map[string]*upstream, error) {
	upstreams := map[string]*upstream{}
	for _, host := range []string{"ghcr.io", "registry.k8s.io", "quay.io", "docker.io", "factory.talos.dev"} {
		upstreams[host] = newUpstream(host)
	}
	for _, definition := range images {
		if err := push(ctx, upstreams, definition); err != nil {
			return nil, err
		}
	}
	return upstreams, nil
}

func newUpstream(host string) *upstream {
	content := oci.New(oci.Logger(log.New(io.Discard, "", 0)))
	return &upstream{host: host, content: content, state: Up}
}

// push puts an image into the registry that its reference names.
func push(ctx context.Context, upstreams map[string]*upstream, definition Definition) error {
	ref, err := Reference(definition.Ref)
	if err != nil {
		return err
	}
	up, ok := upstreams[host(ref)]
	if !ok {
		up = newUpstream(host(ref))
		upstreams[up.host] = up
	}
	index, _, err := build(definition)
	if err != nil {
		return err
	}
	// The registry is filled behind its own door: plain HTTP, no names.
	local, err := name.ParseReference("registry.invalid/"+repositoryPath(ref)+":"+tagOf(definition.Ref), name.Insecure)
	if err != nil {
		return fmt.Errorf("image %s: %w", definition.Ref, err)
	}
	err = remote.WriteIndex(local, index, remote.WithTransport(inProcess{up.content}), remote.WithContext(ctx), remote.WithJobs(1))
	if err != nil {
		return fmt.Errorf("fill %s with %s: %w", up.host, definition.Ref, err)
	}
	return nil
}

// ServeHTTP answers as the registry does in its present state.
func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	u.requests++
	state := u.state
	u.mu.Unlock()
	switch state {
	case Away:
		breakConnection(w)
	case Limited:
		writeError(w, http.StatusTooManyRequests, "TOOMANYREQUESTS", "You have reached your pull rate limit.")
	case Failing:
		writeError(w, http.StatusBadGateway, "UNAVAILABLE", "bad gateway")
	default:
		readOnly(u.content).ServeHTTP(w, r)
	}
}

// RoundTrip is how Harbor reaches the registry.
func (u *upstream) RoundTrip(r *http.Request) (*http.Response, error) {
	u.mu.Lock()
	state := u.state
	u.mu.Unlock()
	if state == Away {
		return nil, fmt.Errorf("%s: %w", u.host, errUpstreamAway)
	}
	return inProcess{u}.RoundTrip(r)
}

func (u *upstream) set(state State) error {
	if !slices.Contains(States(), state) {
		return fmt.Errorf("state: %q is not allowed; give one of %v", state, States())
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.state = state
	return nil
}

func (u *upstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.requests
}

// readOnly refuses what changes a registry: nobody in the lab has the rights.
func readOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			writeError(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// breakConnection ends the TCP connection without an answer. A writer that
// cannot be hijacked gets a gateway error.
func breakConnection(w http.ResponseWriter) {
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		writeError(w, http.StatusBadGateway, "UNAVAILABLE", errUpstreamAway.Error())
		return
	}
	conn, _, err := hijacker.Hijack()
	if err != nil {
		writeError(w, http.StatusBadGateway, "UNAVAILABLE", errUpstreamAway.Error())
		return
	}
	_ = conn.Close() // the point is that the peer notices
}
