package activities

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/internal/talos"
)

const (
	// machineLabel marks a bootstrap token Secret in the tenant with the
	// machine it is for.
	machineLabel = "aether.internal/machine"
	// tokenLifetime is how long a token outlives the moment the configuration is
	// pushed. The join has half an hour; the token is deleted when the Node is
	// there.
	tokenLifetime = 45 * time.Minute
	// nodeTokenGroup is the group that Kamaji's RBAC lets request certificates.
	nodeTokenGroup = "system:bootstrappers:kubeadm:default-node-token"
)

// ensureToken returns the machine's bootstrap token, made on first use and
// extended on the next: one that dies before the node arrives leaves a VM that
// waits for ever.
func ensureToken(ctx context.Context, tenant client.Client, machineID string, now time.Time) (talos.BootstrapToken, error) {
	list, err := tokensOf(ctx, tenant, machineID)
	if err != nil {
		return talos.BootstrapToken{}, err
	}
	expiry := now.Add(tokenLifetime).UTC().Format(time.RFC3339)
	if len(list) > 0 {
		secret := &list[0]
		token, err := talos.ParseBootstrapToken(string(secret.Data[bootstrapapi.BootstrapTokenIDKey]) + "." + string(secret.Data[bootstrapapi.BootstrapTokenSecretKey]))
		if err != nil {
			return talos.BootstrapToken{}, fmt.Errorf("bootstrap token of machine %s: %w", machineID, err)
		}
		patch := client.MergeFrom(secret.DeepCopy())
		secret.Data[bootstrapapi.BootstrapTokenExpirationKey] = []byte(expiry)
		if err := tenant.Patch(ctx, secret, patch); err != nil {
			return talos.BootstrapToken{}, fmt.Errorf("extend the bootstrap token of machine %s: %w", machineID, err)
		}
		return token, nil
	}
	token, err := talos.NewBootstrapToken()
	if err != nil {
		return talos.BootstrapToken{}, err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: bootstrapapi.BootstrapTokenSecretPrefix + token.ID(), Namespace: metav1.NamespaceSystem,
			Labels: map[string]string{machineLabel: machineID},
		},
		Type: bootstrapapi.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			bootstrapapi.BootstrapTokenIDKey:                          []byte(token.ID()),
			bootstrapapi.BootstrapTokenSecretKey:                      []byte(token.Secret()),
			bootstrapapi.BootstrapTokenExpirationKey:                  []byte(expiry),
			bootstrapapi.BootstrapTokenUsagePrefix + "authentication": []byte("true"),
			bootstrapapi.BootstrapTokenUsagePrefix + "signing":        []byte("true"),
			bootstrapapi.BootstrapTokenExtraGroupsKey:                 []byte(nodeTokenGroup),
			bootstrapapi.BootstrapTokenDescriptionKey:                 []byte("Aether: join of machine " + machineID),
		},
	}
	if err := tenant.Create(ctx, secret); err != nil {
		return talos.BootstrapToken{}, fmt.Errorf("write the bootstrap token of machine %s: %w", machineID, err)
	}
	return token, nil
}

func tokensOf(ctx context.Context, tenant client.Client, machineID string) ([]corev1.Secret, error) {
	list := &corev1.SecretList{}
	if err := tenant.List(ctx, list, client.InNamespace(metav1.NamespaceSystem), client.MatchingLabels{machineLabel: machineID}); err != nil {
		return nil, fmt.Errorf("list bootstrap tokens of machine %s: %w", machineID, err)
	}
	return list.Items, nil
}

// deleteTokens deletes the machine's bootstrap tokens. None is fine.
func deleteTokens(ctx context.Context, tenant client.Client, machineID string) error {
	list, err := tokensOf(ctx, tenant, machineID)
	if err != nil {
		return err
	}
	for i := range list {
		if err := tenant.Delete(ctx, &list[i]); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete a bootstrap token of machine %s: %w", machineID, err)
		}
	}
	return nil
}
