package activities

import (
	"context"
	"fmt"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "aether.internal/aether/api/controlplane/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/internal/site"
)

// free counts the addresses of ranges that nobody holds and that do not rest.
func free(all []site.AddressRange, held []lease.Holding) int {
	count := 0
	for _, r := range all {
		for address := r.From; r.Contains(address); address = address.Next() {
			count++
		}
	}
	for _, h := range held {
		address, err := netip.ParseAddr(h.Value)
		if err != nil {
			continue
		}
		for _, r := range all {
			if r.Contains(address) {
				count--
			}
		}
	}
	return count
}

// runningVersion is the version of Kubernetes that runs, or empty.
func (p *Platform) runningVersion(ctx context.Context, tenant string) (string, error) {
	object := &controlplanev1.AetherControlPlane{}
	err := p.Kube.Get(ctx, client.ObjectKey{Namespace: domain.TenantNamespace(tenant), Name: tenant}, object)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read AetherControlPlane %s: %w", tenant, err)
	}
	return object.Status.Version, nil
}
