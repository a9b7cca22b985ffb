package world

import (
	"context"
	"encoding/pem"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"aether.internal/aether/lab/world/control"
)

// secretStore keeps every secret that was issued, also those that are gone.
type secretStore struct {
	mu     sync.Mutex
	values map[string]string // value to name
}

// minSecret is the length below which a value is not worth to search for: it
// would be found everywhere.
const minSecret = 8

func (s *secretStore) add(name, value string) {
	value = strings.TrimSpace(value)
	if len(value) < minSecret {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.values == nil {
		s.values = map[string]string{}
	}
	if _, known := s.values[value]; !known {
		s.values[value] = name
	}
}

func (s *secretStore) list() []control.Secret {
	s.mu.Lock()
	defer s.mu.Unlock()
	secrets := make([]control.Secret, 0, len(s.values))
	for _, value := range slices.Sorted(maps.Keys(s.values)) {
		secrets = append(secrets, control.Secret{Name: s.values[value], Value: value})
	}
	return secrets
}

// Secrets returns every secret that the lab issued so far: those of Proxmox,
// of the management cluster's Secrets at any time, and the codec's keys.
func (w *World) Secrets(context.Context) ([]control.Secret, error) {
	if w.Proxmox != nil {
		for _, value := range w.Proxmox.Secrets() {
			w.secrets.add("secret of Proxmox", value)
		}
	}
	return w.secrets.list(), nil
}

// collectSecrets watches the management cluster's Secrets and keeps what is
// secret in them.
func (w *World) collectSecrets(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(w.administrator())
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Secrets().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.keepSecret(o) },
		UpdateFunc: func(_, o any) { w.keepSecret(o) },
	}); err != nil {
		return fmt.Errorf("watch secrets: %w", err)
	}
	w.run("secret-watch", "", func(ctx context.Context) error {
		factory.Start(ctx.Done())
		<-ctx.Done()
		factory.Shutdown()
		return nil
	})
	return w.eventually(ctx, func(context.Context) error {
		if !informer.HasSynced() {
			return fmt.Errorf("secrets are not listed yet")
		}
		return nil
	})
}

func (w *World) keepSecret(o any) {
	secret, ok := o.(*corev1.Secret)
	if !ok {
		return
	}
	for key, data := range secret.Data {
		name := fmt.Sprintf("%s of secret %s/%s", key, secret.Namespace, secret.Name)
		for _, value := range secretValues(key, data) {
			w.secrets.add(name, value)
		}
	}
}

// secretValues returns what is secret in one value of a Secret: private keys,
// the credentials in a kubeconfig, and what its key says is one.
func secretValues(key string, data []byte) []string {
	if config, err := clientcmd.Load(data); err == nil && len(config.AuthInfos) > 0 {
		var values []string
		for _, user := range config.AuthInfos {
			values = append(values, user.Token, user.Password)
			values = append(values, secretValues(".pem", user.ClientKeyData)...)
		}
		return values
	}
	var values []string
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if strings.Contains(block.Type, "PRIVATE KEY") {
			values = append(values, string(pem.EncodeToMemory(block)))
		}
	}
	if len(values) > 0 {
		return values
	}
	lower := strings.ToLower(key)
	if strings.Contains(lower, "token") && lower != "token-id" || strings.Contains(lower, "password") || strings.HasSuffix(lower, "secret") {
		return []string{string(data)}
	}
	return nil
}
