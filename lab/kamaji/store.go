package kamaji

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

var errStoreAway = errors.New("connection refused")

func (k *Kamaji) dialStore(ctx context.Context, address string) (net.Conn, error) {
	if k.storeAway() {
		return nil, errStoreAway
	}
	return k.cfg.Dial(ctx, "tcp", address)
}

// ensureStoreConfig makes the Secret with the tenant's schema and user. Both
// are the object's UID unless the spec named others at creation.
func (p *pass) ensureStoreConfig(ctx context.Context) (bool, error) {
	wrote, err := p.ensureSecret(ctx, secretRule{
		suffix: suffixStoreConfig, finalizers: []string{secretFinalizer},
		good: func(secret *corev1.Secret) bool { return len(secret.Data[keyStoreSchema]) > 0 },
		make: func(*corev1.Secret) (map[string][]byte, error) {
			schema, user := p.spec().DataStoreSchema, p.spec().DataStoreUsername
			if schema == "" {
				schema = string(p.tcp.UID)
			}
			if user == "" {
				user = string(p.tcp.UID)
			}
			return map[string][]byte{
				keyStoreString: {}, keyStoreSchema: []byte(schema), keyStoreUser: []byte(user), keyStorePassword: []byte(uuid.NewString()),
			}, nil
		},
	})
	if err != nil {
		return false, err
	}
	secret := p.secrets[suffixStoreConfig]
	told, err := p.setStatus(ctx, func(s *status) {
		s.Storage.Driver, s.Storage.DataStoreName = v1alpha1.DriverEtcd, p.store.name
		s.Storage.Config = v1alpha1.StorageConfig{SecretName: secret.Name, Checksum: secret.Annotations[annotationChecksum]}
	})
	return wrote || told, err
}

func (p *pass) schema() string { return string(p.secrets[suffixStoreConfig].Data[keyStoreSchema]) }

func (p *pass) storeUser() string { return string(p.secrets[suffixStoreConfig].Data[keyStoreUser]) }

func (p *pass) ensureStoreSetup(ctx context.Context) (bool, error) {
	checksum := p.tcp.Status.Storage.Config.Checksum
	if p.tcp.Status.Storage.Setup.Checksum == checksum {
		return false, nil
	}
	if err := p.withStore(ctx, p.store, setUpTenant(p.schema(), p.storeUser())); err != nil {
		return false, err
	}
	return p.setStatus(ctx, func(s *status) {
		s.Storage.Setup = v1alpha1.StorageSetup{Schema: p.schema(), User: p.storeUser(), Checksum: checksum, LastUpdate: now()}
	})
}

func (p *pass) ensureStoreCertificate(ctx context.Context) (bool, error) {
	return p.ensureSecret(ctx, secretRule{
		suffix: suffixStoreCert, lifecycle: lifecycleX509,
		good: pairGood(p.store.ca, "server.crt", "server.key"),
		make: func(*corev1.Secret) (map[string][]byte, error) {
			pair, err := p.store.ca.issue(tenYearLeaf(p.storeUser()))
			if err != nil {
				return nil, err
			}
			return map[string][]byte{"ca.crt": p.store.ca.certPEM, "server.crt": pair.certPEM, "server.key": pair.keyPEM}, nil
		},
		status: func(s *status) *objectStatus { return &s.Storage.Certificate },
	})
}

// tenYearLeaf is what Kamaji issues without kubeadm: counted from now.
func tenYearLeaf(commonName string) leaf {
	issued := time.Now()
	return leaf{
		subject: pkix.Name{Organization: []string{"system:masters"}, CommonName: commonName},
		usages:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageCodeSigning},
		from:    issued, to: issued.AddDate(10, 0, 0),
	}
}

// remove undoes what the garbage collector cannot: the tenant's place in the
// DataStore. The objects, pods included, go after the TenantControlPlane.
func (w *walker) remove(ctx context.Context, tcp *v1alpha1.TenantControlPlane) error {
	if !controllerutil.ContainsFinalizer(tcp, finalizer) || controllerutil.ContainsFinalizer(tcp, sootFinalizer) {
		return nil // gone without us, or the tenant side is still being left
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: tcp.Namespace, Name: tcp.Name + "-" + suffixStoreConfig}}
	exists, err := w.fetch(ctx, secret)
	if err != nil {
		return fmt.Errorf("read secret %s: %w", secret.Name, err)
	}
	schema, user := tcp.Status.Storage.Setup.Schema, tcp.Status.Storage.Setup.User
	if exists {
		schema, user = string(secret.Data[keyStoreSchema]), string(secret.Data[keyStoreUser])
	}
	if schema != "" {
		if err := w.dropFromStore(ctx, tcp, schema, user); err != nil {
			return err
		}
	}
	if exists && controllerutil.RemoveFinalizer(secret, secretFinalizer) {
		if err := w.api.Update(ctx, secret); err != nil {
			return fmt.Errorf("release secret %s: %w", secret.Name, err)
		}
	}
	controllerutil.RemoveFinalizer(tcp, finalizer)
	if err := w.api.Update(ctx, tcp); err != nil {
		return fmt.Errorf("remove finalizer: %w", err)
	}
	return nil
}

func (w *walker) dropFromStore(ctx context.Context, tcp *v1alpha1.TenantControlPlane, schema, user string) error {
	name := tcp.Status.Storage.DataStoreName
	if name == "" {
		name = w.cfg.DataStore
	}
	store, err := w.loadStore(ctx, name)
	if err != nil {
		return err
	}
	return w.withStore(ctx, store, dropTenant(schema, user))
}
