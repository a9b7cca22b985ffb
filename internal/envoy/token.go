package envoy

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Why a token is refused. What the stranger is told does not depend on which.
var (
	ErrTokenUnknown = errors.New("enrolment token is not known")
	ErrTokenUsed    = errors.New("enrolment token was used before, with another key")
	ErrTokenExpired = errors.New("enrolment token has expired")
)

// TokenLifetime is how long a proxy has from the making of its medium to its
// enrolment. A clone, a boot and a slow disk fit in.
const TokenLifetime = time.Hour

// Keys of a token's Secret, and the length of a token.
const (
	keyExpires = "expires"
	keyKey     = "key"
	tokenBytes = 32
)

// EnrolmentStore issues and redeems enrolment tokens. It knows them only by
// their hash.
type EnrolmentStore interface {
	// Issue returns a new token for the proxy. Earlier ones of the same proxy
	// that were not used are void.
	Issue(ctx context.Context, id ID) (string, error)
	// Redeem uses the token up for the key of that fingerprint and returns the
	// proxy it was issued for. The same key may ask again while the token
	// lasts: its first answer may have been lost.
	Redeem(ctx context.Context, token, fingerprint string) (ID, error)
}

// Issue implements EnrolmentStore.
func (s *Store) Issue(ctx context.Context, id ID) (string, error) {
	if err := id.Validate(); err != nil {
		return "", err
	}
	if err := s.revokeUnused(ctx, id); err != nil {
		return "", err
	}
	secret := make([]byte, tokenBytes)
	if _, err := rand.Read(secret); err != nil {
		return "", fmt.Errorf("issue token of %s: %w", id, err)
	}
	token := base64.RawURLEncoding.EncodeToString(secret)
	err := s.client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: tokenName(token), Labels: labels(id)},
		Data:       map[string][]byte{keyExpires: []byte(s.now().Add(TokenLifetime).UTC().Format(time.RFC3339))},
	})
	if err != nil {
		return "", fmt.Errorf("issue token of %s: %w", id, err)
	}
	return token, nil
}

func (s *Store) revokeUnused(ctx context.Context, id ID) error {
	var list corev1.SecretList
	if err := s.client.List(ctx, &list, client.InNamespace(s.namespace), client.MatchingLabels(labels(id))); err != nil {
		return fmt.Errorf("earlier tokens of %s: %w", id, err)
	}
	for i := range list.Items {
		earlier := &list.Items[i]
		if len(earlier.Data[keyKey]) > 0 {
			continue // stays, so that a replay is known as one
		}
		// Only as it was read: it may be redeemed this moment.
		unchanged := client.Preconditions{ResourceVersion: &earlier.ResourceVersion}
		err := s.client.Delete(ctx, earlier, unchanged)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("earlier token of %s: %w", id, err)
		}
	}
	return nil
}

// Redeem implements EnrolmentStore. Two who redeem at once both read an unused
// token; the update of the second conflicts, and it looks again.
func (s *Store) Redeem(ctx context.Context, token, fingerprint string) (ID, error) {
	for {
		id, err := s.redeemOnce(ctx, token, fingerprint)
		if !apierrors.IsConflict(err) {
			return id, err
		}
	}
}

func (s *Store) redeemOnce(ctx context.Context, token, fingerprint string) (ID, error) {
	var secret corev1.Secret
	err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: tokenName(token)}, &secret)
	if apierrors.IsNotFound(err) {
		return ID{}, ErrTokenUnknown
	}
	if err != nil {
		return ID{}, fmt.Errorf("look up token: %w", err)
	}
	generation, err := strconv.ParseInt(secret.Labels[LabelGeneration], 10, 64)
	if err != nil {
		return ID{}, fmt.Errorf("secret %s: label %s: %w", secret.Name, LabelGeneration, err)
	}
	id := ID{Tenant: secret.Labels[LabelTenant], Generation: generation}
	expires, err := time.Parse(time.RFC3339, string(secret.Data[keyExpires]))
	if err != nil {
		return ID{}, fmt.Errorf("secret %s: %s: %w", secret.Name, keyExpires, err)
	}
	used := string(secret.Data[keyKey])
	switch {
	case used != "" && used != fingerprint:
		return id, ErrTokenUsed
	case !s.now().Before(expires):
		return id, ErrTokenExpired
	case used == fingerprint:
		return id, nil
	}
	secret.Data[keyKey] = []byte(fingerprint)
	if err := s.client.Update(ctx, &secret); err != nil {
		return ID{}, fmt.Errorf("use token of %s: %w", id, err)
	}
	return id, nil
}

// tokenName is where a token is kept. The name is a digest: a token has 256
// random bits, so that nobody who lists Secrets comes any closer to it.
func tokenName(token string) string {
	digest := sha256.Sum256([]byte(token))
	return "aether-enrolment-" + hex.EncodeToString(digest[:20])
}

// Fingerprint identifies the key of a certificate request.
func Fingerprint(publicKeyDER []byte) string {
	digest := sha256.Sum256(publicKeyDER)
	return hex.EncodeToString(digest[:])
}
