package talos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"aether.internal/aether/lab/registry"
)

// puller pulls as this node's configuration says.
func (n *node) puller(consumer registry.Consumer) *registry.Puller {
	p := &registry.Puller{
		Dial: n.machine.Net.DialContext, Consumer: consumer, Clock: n.cfg.Clock,
		Hosts: n.names.static, Resolve: n.names.lookup,
		RootCAs: []byte(string(n.cfg.PublicCAs) + "\n" + n.trustedRoots()),
		Auth:    map[string]registry.Credentials{}, TLS: map[string]registry.Trust{},
	}
	for host, mirror := range n.provider.RegistryMirrorConfigs() {
		m := registry.Mirror{Host: host, SkipFallback: mirror.SkipFallback()}
		for _, endpoint := range mirror.Endpoints() {
			m.Endpoints = append(m.Endpoints, endpoint.Endpoint())
			m.OverridePath = append(m.OverridePath, endpoint.OverridePath())
		}
		p.Mirrors = append(p.Mirrors, m)
	}
	for host, auth := range n.provider.RegistryAuthConfigs() {
		p.Auth[host] = registry.Credentials{Username: auth.Username(), Password: auth.Password()}
	}
	for host, tls := range n.provider.RegistryTLSConfigs() {
		p.TLS[host] = registry.Trust{CA: tls.CA(), InsecureSkipVerify: tls.InsecureSkipVerify()}
	}
	return p
}

func (n *node) trustedRoots() string {
	if roots := n.provider.TrustedRoots(); roots != nil {
		return strings.Join(roots.ExtraTrustedRootCertificates(), "\n")
	}
	return ""
}

// The limits of machined's pull.
const (
	maxNotFound  = 5
	pullInterval = 5 * time.Second
	pullTimeout  = 20 * time.Minute
)

// errPullFailed ends a service for good: nothing starts it again.
var errPullFailed = errors.New("image cannot be pulled")

// pullAsMachined pulls with machined's own resolver. "No such image" is taken
// five times, anything else for twenty minutes.
func (n *node) pullAsMachined(ctx context.Context, ref string) (*registry.Image, error) {
	if image, ok := n.disk.image(ref); ok {
		return image, nil
	}
	notFound, interval := 0, n.cfg.Clock.Scale(pullInterval)
	deadline := time.Now().Add(n.cfg.Clock.Scale(pullTimeout))
	for wait := interval; ; wait = min(2*wait, 12*interval) {
		image, err := n.puller(registry.Machined).Pull(ctx, ref)
		if err == nil {
			return image, n.disk.addImage(ref, image)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		n.console.talos("retrying error: failed to pull image %q: %v", ref, err)
		if errors.Is(err, registry.ErrNotFound) {
			notFound++
		}
		if notFound > maxNotFound || time.Now().After(deadline) {
			return nil, fmt.Errorf("%w: %q: %w", errPullFailed, ref, err)
		}
		if err := pause(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// pullAsContainerd is what pods' images are pulled with.
func (n *node) pullAsContainerd(ctx context.Context, ref string) (*registry.Image, error) {
	return n.puller(registry.CRI).Pull(ctx, ref)
}
