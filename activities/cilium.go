package activities

import (
	"context"
	"fmt"
	"net/netip"

	"aether.internal/aether/internal/cilium"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/site"
)

// Cilium installs the tenants' network.
type Cilium struct {
	Platform
	Tenants  *TenantClients
	Releases *cilium.Manager
}

// InstallCilium brings the tenant's Cilium release to the site's chart and the
// tenant's values, with the proxy as API address. It returns without waiting
// for pods: there may be no node. It is repeatable: what is so already is not
// written again, and an attempt that was cut off is recovered.
func (a *Cilium) InstallCilium(ctx context.Context, in TenantRef) error {
	return classify(a.installCilium(ctx, in.Tenant))
}

func (a *Cilium) installCilium(ctx context.Context, name string) error {
	tenant, err := a.tenant(ctx, name)
	if err != nil {
		return err
	}
	access, err := a.Tenants.Open(ctx, name)
	if err != nil {
		return err
	}
	host, err := netip.ParseAddr(tenant.Spec.ControlPlaneEndpoint.Host)
	if err != nil {
		return fmt.Errorf("the proxy address of tenant %s is not leased yet: %w", name, errWaiting)
	}
	network, ok := networkOf(a.Site, tenant.Spec.Network)
	if !ok {
		return refused("network %s is not in the site", tenant.Spec.Network)
	}
	ref := a.Site.Spec.Charts.Cilium
	values, err := cilium.Values(cilium.Settings{
		Tenant: name, APIHost: host, APIPort: domain.APIServerPort, NetworkMTU: network.MTU,
		Version: a.Site.Spec.Versions.Cilium, Extra: ref.Values,
	})
	if err != nil {
		return err
	}
	tell(ctx, "the Cilium chart", "")
	chart, err := cilium.LoadChart(ctx, chartRef(ref))
	if err != nil {
		return err
	}
	tell(ctx, "the Helm release", "")
	_, err = a.Releases.Apply(ctx, access.Kubeconfig, chart, values, func(waitsFor string) { tell(ctx, waitsFor, "") })
	return err
}

func chartRef(c site.Chart) cilium.ChartRef {
	return cilium.ChartRef{Path: c.Path, OCI: c.OCI, Repository: c.Repository, Name: c.Name, Version: c.Version}
}
