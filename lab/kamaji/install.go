package kamaji

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

// EtcdDataStore is an etcd for tenants, and what reaches it as its root user.
type EtcdDataStore struct {
	Name      string
	Namespace string   // of the Secret with the certificates
	Endpoints []string // host:port
	CACert    []byte
	CAKey     []byte // tenants' certificates are signed with it
	Cert      []byte
	Key       []byte
}

// InstallDataStore writes the Secret and the DataStore, as Kamaji's chart does.
func InstallDataStore(ctx context.Context, cfg *rest.Config, d EtcdDataStore) error {
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	api, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("install datastore %s: %w", d.Name, err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: d.Namespace}}
	if err := api.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("install datastore %s: namespace: %w", d.Name, err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name + "-etcd-certs"}}
	if _, err := controllerutil.CreateOrUpdate(ctx, api, secret, func() error {
		secret.Data = map[string][]byte{"ca.crt": d.CACert, "ca.key": d.CAKey, corev1.TLSCertKey: d.Cert, corev1.TLSPrivateKeyKey: d.Key}
		return nil
	}); err != nil {
		return fmt.Errorf("install datastore %s: secret: %w", d.Name, err)
	}
	ref := func(key string) v1alpha1.ContentRef {
		return v1alpha1.ContentRef{SecretReference: &v1alpha1.SecretReference{
			SecretReference: corev1.SecretReference{Namespace: secret.Namespace, Name: secret.Name}, KeyPath: key,
		}}
	}
	caKey := ref("ca.key")
	store := &v1alpha1.DataStore{ObjectMeta: metav1.ObjectMeta{Name: d.Name}}
	if _, err := controllerutil.CreateOrUpdate(ctx, api, store, func() error {
		store.Spec = v1alpha1.DataStoreSpec{
			Driver: v1alpha1.DriverEtcd, Endpoints: d.Endpoints,
			TLSConfig: &v1alpha1.TLSConfig{
				CertificateAuthority: v1alpha1.CertKeyPair{Certificate: ref("ca.crt"), PrivateKey: &caKey},
				ClientCertificate:    &v1alpha1.ClientCertificate{Certificate: ref(corev1.TLSCertKey), PrivateKey: ref(corev1.TLSPrivateKeyKey)},
			},
		}
		return nil
	}); err != nil {
		return fmt.Errorf("install datastore %s: %w", d.Name, err)
	}
	return nil
}
