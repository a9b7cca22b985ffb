package scenario

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.internal/aether/internal/domain"
	"aether.internal/aether/lab/proxmox/access"
)

// missingPrivilege: a token without SDN.Use clones a VM, and fails at its
// network card.
func missingPrivilege() Scenario {
	// The rights that the origin gave, but for PVESDNUser.
	const user, name = "limited@pve", "proxmox-limited"
	limited := func(t *T) (string, error) {
		store := t.World.Proxmox.Access()
		store.AddUser(access.User{ID: user})
		for path, role := range map[string]string{"/": "PVEVMAdmin", "/storage": "PVEDatastoreAdmin"} {
			if err := store.Grant(access.ACL{Path: path, Who: user, Role: role, Propagate: true}); err != nil {
				return "", err
			}
		}
		if err := store.Grant(access.ACL{Path: "/", Who: user, Role: "PVEAuditor", Propagate: true}); err != nil {
			return "", err
		}
		return t.token(access.Token{ID: user + "!capi"})
	}
	naive := func(ctx context.Context, t *T) (string, error) {
		token, err := limited(t)
		if err != nil {
			return "", err
		}
		operator, err := t.pvesh()
		if err != nil {
			return "", err
		}
		t.removeVMs(operator, "pv1-1", 3181)
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: domain.SystemNamespace, Name: name}, StringData: map[string]string{"token": token},
		}
		if err := t.Kube.Create(ctx, secret); err != nil {
			return "", err
		}
		t.Cleanup(func(ctx context.Context) error { return t.Kube.Delete(ctx, secret) })
		reason, err := refusedScript(ctx, t, t.pveshAs(token))
		if err == nil && !strings.Contains(reason, "SDN.Use") {
			return "", unexpected("refused for another reason: %s", reason)
		}
		return reason, err
	}
	return origin("missing-privilege", "a token that lacks a privilege is found before anything is made",
		hostParts(), naive, refusedPlan("privilege SDN.Use on /sdn/zones/localnetwork/vmbr1"))
}
