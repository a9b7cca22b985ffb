package kamaji

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"

	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/kamaji/v1alpha1"
)

const (
	// storeTimeout is how long one try costs when the DataStore is away.
	storeTimeout = 30 * time.Second
	storePoll    = 250 * time.Millisecond
	storeCall    = 2 * time.Second
)

// store is a DataStore with its credentials.
type store struct {
	name      string
	endpoints []string
	ca        *keyPair
	client    tls.Certificate
}

func (k *Kamaji) loadStore(ctx context.Context, name string) (*store, error) {
	object := &v1alpha1.DataStore{}
	if err := k.api.Get(ctx, types.NamespacedName{Name: name}, object); err != nil {
		return nil, fmt.Errorf("read datastore %s: %w", name, err)
	}
	return k.openStore(ctx, object)
}

// openStore reads the contents that a DataStore refers to.
func (k *Kamaji) openStore(ctx context.Context, object *v1alpha1.DataStore) (*store, error) {
	if object.Spec.Driver != v1alpha1.DriverEtcd {
		return nil, fmt.Errorf("datastore %s: driver %s: the stand-in only knows %s", object.Name, object.Spec.Driver, v1alpha1.DriverEtcd)
	}
	config := object.Spec.TLSConfig
	if config == nil || config.ClientCertificate == nil || config.CertificateAuthority.PrivateKey == nil {
		return nil, fmt.Errorf("datastore %s: tlsConfig is not complete", object.Name)
	}
	caCert, err := k.content(ctx, "CA certificate", &config.CertificateAuthority.Certificate)
	if err != nil {
		return nil, err
	}
	caKey, err := k.content(ctx, "CA private key", config.CertificateAuthority.PrivateKey)
	if err != nil {
		return nil, err
	}
	clientCert, err := k.content(ctx, "client certificate", &config.ClientCertificate.Certificate)
	if err != nil {
		return nil, err
	}
	clientKey, err := k.content(ctx, "client private key", &config.ClientCertificate.PrivateKey)
	if err != nil {
		return nil, err
	}
	ca, err := parsePair(caCert, caKey)
	if err != nil {
		return nil, fmt.Errorf("CA certificate is not valid: %w", err)
	}
	pair, err := tls.X509KeyPair(clientCert, clientKey)
	if err != nil {
		return nil, fmt.Errorf("client certificate is not valid: %w", err)
	}
	return &store{name: object.Name, endpoints: object.Spec.Endpoints, ca: ca, client: pair}, nil
}

// withStore runs a function with a connection that has answered once. A store
// that does not answer costs the whole time-out, and with it the worker.
func (k *Kamaji) withStore(ctx context.Context, s *store, use func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Clock.Scale(storeTimeout))
	defer cancel()
	roots := x509.NewCertPool()
	roots.AddCert(s.ca.cert)
	conn, err := clientv3.New(clientv3.Config{
		Context: ctx, Endpoints: s.endpoints, Logger: zap.NewNop(),
		TLS:         &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{s.client}, MinVersion: tls.VersionTLS12},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(k.dialStore)},
	})
	if err != nil {
		return fmt.Errorf("datastore %s: %w", s.name, err)
	}
	defer conn.Close() //nolint:errcheck // nothing is left to be written
	for {
		call, done := context.WithTimeout(ctx, storeCall)
		_, err := conn.Get(call, "/kamaji")
		done()
		if err == nil || errors.Is(err, rpctypes.ErrPermissionDenied) {
			break
		}
		if waited := pause(ctx, storePoll); waited != nil {
			return fmt.Errorf("datastore %s does not answer: %w: %w", s.name, waited, err)
		}
	}
	if err := use(ctx, conn); err != nil {
		return fmt.Errorf("datastore %s: %w", s.name, err)
	}
	return nil
}

// setUpTenant makes the user, the role and the grant; what exists is kept.
func setUpTenant(schema, user string) func(context.Context, *clientv3.Client) error {
	return func(ctx context.Context, conn *clientv3.Client) error {
		_, err := conn.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true})
		if err != nil && !errors.Is(err, rpctypes.ErrUserAlreadyExist) {
			return fmt.Errorf("add user %s: %w", user, err)
		}
		if _, err = conn.RoleAdd(ctx, schema); err != nil && !errors.Is(err, rpctypes.ErrRoleAlreadyExist) {
			return fmt.Errorf("add role %s: %w", schema, err)
		}
		_, err = conn.RoleGrantPermission(ctx, schema, schemaKeys(schema), clientv3.GetPrefixRangeEnd(schemaKeys(schema)), clientv3.PermissionType(clientv3.PermReadWrite))
		if err != nil {
			return fmt.Errorf("grant keys of %s: %w", schema, err)
		}
		if _, err = conn.UserGrantRole(ctx, user, schema); err != nil {
			return fmt.Errorf("grant role %s: %w", schema, err)
		}
		return nil
	}
}

// dropTenant removes the keys, the role and the user; what is gone is fine.
func dropTenant(schema, user string) func(context.Context, *clientv3.Client) error {
	return func(ctx context.Context, conn *clientv3.Client) error {
		if _, err := conn.Delete(ctx, schemaKeys(schema), clientv3.WithPrefix()); err != nil {
			return fmt.Errorf("delete keys of %s: %w", schema, err)
		}
		if _, err := conn.RoleDelete(ctx, schema); err != nil && !errors.Is(err, rpctypes.ErrRoleNotFound) {
			return fmt.Errorf("delete role %s: %w", schema, err)
		}
		if _, err := conn.UserDelete(ctx, user); err != nil && !errors.Is(err, rpctypes.ErrUserNotFound) {
			return fmt.Errorf("delete user %s: %w", user, err)
		}
		return nil
	}
}

// schemaKeys ends in a slash, so that one schema is never another's prefix.
func schemaKeys(schema string) string { return "/" + schema + "/" }

func (k *Kamaji) storeAway() bool { return k.cfg.Faults.InForce(PlaceDataStore, faults.Away) }
