package kamaji

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

// secretRule says what a Secret shall hold.
type secretRule struct {
	suffix     string
	component  string // empty: as the suffix
	lifecycle  string // which rotation it takes part in; empty: none
	kind       corev1.SecretType
	finalizers []string
	// good tells whether what is there can stay.
	good func(*corev1.Secret) bool
	// make returns the keys to set; others are kept.
	make func(*corev1.Secret) (map[string][]byte, error)
	// checksum sums up what the annotation tells; nil sums the values.
	checksum func(map[string][]byte) string
	// status is where the status tells of it; nil if nowhere.
	status func(*v1alpha1.TenantControlPlaneStatus) *v1alpha1.ObjectStatus
}

// ensureSecret makes, renews or keeps a Secret, and then its status entry.
func (p *pass) ensureSecret(ctx context.Context, rule secretRule) (bool, error) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.tcp.Namespace, Name: p.name(rule.suffix)}}
	exists, err := p.fetch(ctx, secret)
	if err != nil {
		return false, fmt.Errorf("read secret %s: %w", secret.Name, err)
	}
	asked, annotated := secret.Annotations[annotationRotate]
	rotate := rule.lifecycle != "" && annotated && asked == ""
	wrote := !exists || rotate || !rule.good(secret)
	if wrote {
		if err := p.writeSecret(ctx, rule, secret, exists, rotate); err != nil {
			return false, fmt.Errorf("write secret %s: %w", secret.Name, err)
		}
	}
	p.secrets[rule.suffix] = secret
	if rule.status == nil {
		return wrote, nil
	}
	told, err := p.setStatus(ctx, func(s *v1alpha1.TenantControlPlaneStatus) {
		entry := rule.status(s)
		if checksum := secret.Annotations[annotationChecksum]; entry.Checksum != checksum || entry.SecretName != secret.Name {
			*entry = v1alpha1.ObjectStatus{SecretName: secret.Name, Checksum: checksum, LastUpdate: now()}
		}
	})
	return wrote || told, err
}

func (p *pass) writeSecret(ctx context.Context, rule secretRule, secret *corev1.Secret, exists, rotate bool) error {
	data, err := rule.make(secret)
	if err != nil {
		return err
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	maps.Copy(secret.Data, data)
	checksum := sum
	if rule.checksum != nil {
		checksum = rule.checksum
	}
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, annotationChecksum, checksum(secret.Data))
	if rotate {
		metav1.SetMetaDataAnnotation(&secret.ObjectMeta, annotationRotate, time.Now().Format(time.RFC3339))
	}
	if rule.lifecycle != "" {
		metav1.SetMetaDataLabel(&secret.ObjectMeta, labelLifecycle, rule.lifecycle)
	}
	component := rule.component
	if component == "" {
		component = rule.suffix
	}
	if err := p.own(secret, component); err != nil {
		return err
	}
	if exists {
		return p.api.Update(ctx, secret)
	}
	secret.Type, secret.Finalizers = rule.kind, rule.finalizers
	return p.api.Create(ctx, secret)
}

// from and to are kubeadm's: counted from the start of the program, not from
// the issue.
func (k *Kamaji) leafFrom() time.Time { return k.cfg.Started.Add(-notBeforeSkew) }
func (k *Kamaji) leafTo() time.Time   { return k.cfg.Started.Add(leafValidity) }

// expired tells whether a certificate must be renewed: within a day of its
// end, the real one's default.
func expired(cert *x509.Certificate) bool {
	const threshold = 24 * time.Hour
	return time.Now().Add(threshold).After(cert.NotAfter)
}

// pairGood returns a judge for a Secret with a certificate of an authority.
func pairGood(ca *keyPair, certKey, keyKey string) func(*corev1.Secret) bool {
	return func(secret *corev1.Secret) bool {
		pair, err := secretPair(secret, certKey, keyKey)
		return err == nil && ca.issued(pair.cert) && !expired(pair.cert)
	}
}
