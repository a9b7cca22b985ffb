package kamaji

import (
	"crypto/md5" //nolint:gosec // the real one sums Secrets up with MD5
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

const (
	fieldManager = "kamaji"

	finalizer          = "finalizer.kamaji.clastix.io"
	sootFinalizer      = "finalizer.kamaji.clastix.io/soot"
	secretFinalizer    = "finalizer.kamaji.clastix.io/datastore-secret"
	dataStoreFinalizer = "kamaji.clastix.io/TenantControlPlane"

	labelProject   = "kamaji.clastix.io/project"
	labelName      = "kamaji.clastix.io/name"
	labelComponent = "kamaji.clastix.io/component"
	labelLifecycle = "kamaji.clastix.io/certificate_lifecycle_controller"
	projectName    = "kamaji"

	lifecycleX509       = "x509"
	lifecycleKubeconfig = "kubeconfig"

	annotationChecksum = "kamaji.clastix.io/checksum"
	annotationPaused   = "kamaji.clastix.io/paused"
	annotationRotate   = "certs.kamaji.clastix.io/rotate"
	annotationArgs     = "kube-apiserver.kamaji.clastix.io/args"

	suffixCA               = "ca"
	suffixFrontProxyCA     = "front-proxy-ca-certificate"
	suffixSA               = "sa-certificate"
	suffixAPIServer        = "api-server-certificate"
	suffixKubeletClient    = "api-server-kubelet-client-certificate"
	suffixFrontProxyClient = "front-proxy-client-certificate"
	suffixAdmin            = "admin-kubeconfig"
	suffixController       = "controller-manager-kubeconfig"
	suffixScheduler        = "scheduler-kubeconfig"
	suffixStoreConfig      = "datastore-config"
	suffixStoreCert        = "datastore-certificate"
	suffixKonnCert         = "konnectivity-certificate"
	suffixKonnKubeconfig   = "konnectivity-kubeconfig"
	suffixKonnConfig       = "konnectivity-egress-selector-configuration"
	suffixKubeadm          = "kubeadmconfig"

	keyStoreUser     = "DB_USER"
	keyStoreSchema   = "DB_SCHEMA"
	keyStorePassword = "DB_PASSWORD"
	keyStoreString   = "DB_CONNECTION_STRING"
)

// supportedMinor is the newest minor version of tenants: that of the kubeadm
// library inside.
const supportedMinor = 36

// coreDNSVersion comes from the same library, not from the tenant's version.
const coreDNSVersion = "v1.14.2"

func objectLabels(tenant, component string) map[string]string {
	return map[string]string{labelProject: projectName, labelName: tenant, labelComponent: component}
}

// sum is the checksum of a map's values, in the order of their keys.
func sum(data map[string][]byte) string {
	hash := md5.New() //nolint:gosec // see the import
	for _, key := range slices.Sorted(maps.Keys(data)) {
		hash.Write(data[key])
	}
	return hex.EncodeToString(hash.Sum(nil))
}

func sumStrings(data map[string]string) string {
	hash := md5.New() //nolint:gosec // see the import
	for _, key := range slices.Sorted(maps.Keys(data)) {
		hash.Write([]byte(data[key]))
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// secretPair reads a certificate and its key out of a Secret.
func secretPair(secret *corev1.Secret, certKey, keyKey string) (*keyPair, error) {
	pair, err := parsePair(secret.Data[certKey], secret.Data[keyKey])
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s keys %s, %s: %w", secret.Namespace, secret.Name, certKey, keyKey, err)
	}
	return pair, nil
}
