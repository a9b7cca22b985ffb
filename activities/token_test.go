package activities

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/internal/talos"
)

func tokenSecrets(t *testing.T, tenant client.Client) []corev1.Secret {
	t.Helper()
	list := &corev1.SecretList{}
	if err := tenant.List(t.Context(), list, client.InNamespace(metav1.NamespaceSystem)); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// TestEnsureToken: made once, extended by each later attempt, and such that
// Kubernetes takes it for a node's.
func TestEnsureToken(t *testing.T) {
	tenant := newKube(t)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	first, err := ensureToken(t.Context(), tenant, workerID, now)
	if err != nil {
		t.Fatal(err)
	}
	secrets := tokenSecrets(t, tenant)
	if len(secrets) != 1 || secrets[0].Name != "bootstrap-token-"+first.ID() || secrets[0].Type != "bootstrap.kubernetes.io/token" || secrets[0].Labels[machineLabel] != workerID {
		t.Fatalf("secrets %+v", secrets)
	}
	text := map[string]string{}
	for key, value := range secrets[0].Data {
		text[key] = string(value)
	}
	for key, want := range map[string]string{
		"token-id": first.ID(), "token-secret": first.Secret(), "expiration": "2026-11-30T12:45:00Z",
		"usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true", "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
	} {
		if text[key] != want {
			t.Errorf("%s: got %q, want %q", key, text[key], want)
		}
	}
	if strings.Contains(text["description"], first.Secret()) || len(text) != 7 {
		t.Errorf("keys %v", slices.Sorted(maps.Keys(text)))
	}
	later, err := ensureToken(t.Context(), tenant, workerID, now.Add(30*time.Minute))
	if err != nil || later != first {
		t.Errorf("the second attempt got %s, %v", later, err)
	}
	if got := string(tokenSecrets(t, tenant)[0].Data["expiration"]); got != "2026-11-30T13:15:00Z" {
		t.Errorf("it expires %s", got)
	}
	other, err := ensureToken(t.Context(), tenant, worker2ID, now)
	if err != nil || other.ID() == first.ID() || len(tokenSecrets(t, tenant)) != 2 {
		t.Errorf("another machine got %s, %v", other, err)
	}
	for range 2 {
		if err := deleteTokens(t.Context(), tenant, workerID); err != nil {
			t.Fatal(err)
		}
	}
	if left := tokenSecrets(t, tenant); len(left) != 1 || left[0].Labels[machineLabel] != worker2ID {
		t.Errorf("left: %d secrets", len(left))
	}
}

// TestABrokenTokenIsNotQuoted: what stands in the Secret may be a secret.
func TestABrokenTokenIsNotQuoted(t *testing.T) {
	tenant := newKube(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-x", Labels: map[string]string{machineLabel: workerID}},
		Data:       map[string][]byte{"token-id": []byte("abcdef"), "token-secret": []byte("hunter2")},
	})
	token, err := ensureToken(t.Context(), tenant, workerID, time.Now())
	if err == nil || strings.Contains(err.Error(), "hunter2") || token != (talos.BootstrapToken{}) {
		t.Errorf("got %s, %v", token, err)
	}
}

// TestATenantWithoutAccessHasNoTokens: it was never built that far, or is gone.
func TestATenantWithoutAccessHasNoTokens(t *testing.T) {
	w := newWorld(t, workerVM(workerID, "pv1-1"))
	nodes := &Nodes{Platform: w.platform, Tenants: &TenantClients{Kube: w.kube}}
	for _, id := range []string{workerID, worker2ID} {
		if err := nodes.DeleteBootstrapToken(t.Context(), refOf(id)); err != nil {
			t.Errorf("machine %s: %v", id, err)
		}
	}
	_, err := nodes.WaitNodeReady(t.Context(), refOf(workerID))
	if err := errorIs(err, WaitingType, false, "tenant demo", "no management-side kubeconfig"); err != nil {
		t.Error(err)
	}
	secret := kubeconfigSecret("hunter2")
	if err := w.kube.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	_, err = nodes.WaitNodeReady(t.Context(), refOf(workerID))
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("it quotes the kubeconfig: %v", err)
	}
	if err := errorIs(err, UnavailableType, false, "demo-kubeconfig", "delete the Secret"); err != nil {
		t.Error(err)
	}
}

// kubeconfigSecret is the management-side kubeconfig of tenant demo.
func kubeconfigSecret(content string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-demo", Name: ManagementKubeconfigSecret("demo")},
		Data:       map[string][]byte{KubeconfigKey: []byte(content)},
	}
}
