// Package siteclients makes the clients of a site's systems: it reads the
// secrets that the site file refers to, and keeps one client per system.
package siteclients

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/internal/proxmox"
	"aether.internal/aether/internal/site"
)

// Clients makes and keeps clients. It is safe for concurrent use.
type Clients struct {
	site *site.Site
	kube client.Client
	log  *slog.Logger

	mu      sync.Mutex
	proxmox map[string]*proxmox.Client
	doors   map[string]*proxmox.Door
}

// New returns clients of a site whose secrets are in the management cluster.
func New(s *site.Site, kube client.Client, log *slog.Logger) *Clients {
	return &Clients{site: s, kube: kube, log: log, proxmox: map[string]*proxmox.Client{}, doors: map[string]*proxmox.Door{}}
}

// secretTimeout bounds the reading of one secret.
const secretTimeout = 10 * time.Second

// Proxmox returns the client of a Proxmox cluster.
func (c *Clients) Proxmox(name string) (*proxmox.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if have, ok := c.proxmox[name]; ok {
		return have, nil
	}
	cluster, ok := c.site.Cluster(name)
	if !ok {
		return nil, fmt.Errorf("proxmox cluster %q is not in the site", name)
	}
	token, err := c.secret(cluster.Token)
	if err != nil {
		return nil, fmt.Errorf("token of Proxmox cluster %s: %w", name, err)
	}
	config := proxmox.Config{Cluster: name, Endpoints: cluster.Endpoints, Token: proxmox.Token(token), Fingerprints: cluster.TLS.Fingerprints, Log: c.log}
	if cluster.TLS.CA != nil {
		config.CA = []byte(cluster.TLS.CA.PEM)
	}
	made, err := proxmox.New(config)
	if err != nil {
		return nil, err
	}
	c.proxmox[name] = made
	return made, nil
}

// Door returns the SSH door of a Proxmox cluster, or nil when the site has
// none.
func (c *Clients) Door(name string) (*proxmox.Door, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if have, ok := c.doors[name]; ok {
		return have, nil
	}
	cluster, ok := c.site.Cluster(name)
	if !ok {
		return nil, fmt.Errorf("proxmox cluster %q is not in the site", name)
	}
	if cluster.SSH == nil {
		return nil, nil //nolint:nilnil // no door is an answer
	}
	key, err := c.secret(cluster.SSH.Key)
	if err != nil {
		return nil, fmt.Errorf("SSH key of Proxmox cluster %s: %w", name, err)
	}
	door, err := proxmox.NewDoor(proxmox.DoorConfig{User: cluster.SSH.User, Port: cluster.SSH.Port, Key: []byte(key), KnownHosts: cluster.SSH.KnownHosts})
	if err != nil {
		return nil, fmt.Errorf("SSH door of Proxmox cluster %s: %w", name, err)
	}
	c.doors[name] = door
	return door, nil
}

// secret reads a secret from where the site says it is.
func (c *Clients) secret(source site.SecretSource) (string, error) {
	if source.Secret == nil {
		data, err := os.ReadFile(source.File)
		if err != nil {
			return "", fmt.Errorf("read the file of the secret: %w", err)
		}
		return strings.TrimSpace(string(data)), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), secretTimeout)
	defer cancel()
	ref := source.Secret
	object := &corev1.Secret{}
	if err := c.kube.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, object); err != nil {
		return "", fmt.Errorf("read Secret %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	if ref.Key == "" && len(object.Data) == 1 {
		for _, value := range object.Data {
			return string(value), nil
		}
	}
	value, ok := object.Data[ref.Key]
	if !ok {
		return "", fmt.Errorf("secret %s/%s has no key %q", ref.Namespace, ref.Name, ref.Key)
	}
	return string(value), nil
}
