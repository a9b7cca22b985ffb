package activities

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/site"
	"aether.internal/aether/internal/talos"
)

// Talos configures workers in maintenance mode.
type Talos struct {
	Platform
	// Tenants opens a tenant's API server over the management side.
	Tenants *TenantClients
	// Maintenance waits for machines, and Deliverer brings a configuration to
	// one; the transports may differ.
	Maintenance *talos.Maintenance
	Deliverer   talos.Deliverer
	Now         func() time.Time
}

// maintenanceTarget is where the machine's maintenance API is.
func (a *Talos) maintenanceTarget(m *machine) (talos.Target, error) {
	address, ok := m.address(a.Site, site.TenantNetwork)
	if !ok {
		return talos.Target{}, fmt.Errorf("machine %s has no address: %w", m.Name, errWaiting)
	}
	_, sent := m.Annotations[configuredAnnotation]
	return talos.Target{Address: netip.AddrPortFrom(address.Addr(), talos.MaintenancePort), UUID: m.Name, MayHaveConfig: sent}, nil
}

// configuredAnnotation on an AetherVM says that the machine may have been given
// its configuration. It is written before the configuration is sent: heartbeats
// are sent too seldom to survive a worker that is killed just then.
const configuredAnnotation = "aether.internal/configuration-sent"

// markSending writes down that the configuration is about to be sent.
func (a *Talos) markSending(ctx context.Context, m *machine) error {
	if _, marked := m.Annotations[configuredAnnotation]; marked {
		return nil
	}
	patch := client.MergeFrom(m.DeepCopy())
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, configuredAnnotation, a.Now().UTC().Format(time.RFC3339))
	if err := a.Kube.Patch(ctx, m.AetherVM, patch); err != nil {
		return fmt.Errorf("record that machine %s is being configured: %w", m.Name, err)
	}
	return nil
}

// WaitMaintenance waits until the machine's Talos is in maintenance mode and
// its SMBIOS UUID is the machine ID. It is repeatable. Another machine at the
// address is final. A machine that has left maintenance mode, because an
// earlier attempt or run configured it, has been here.
func (a *Talos) WaitMaintenance(ctx context.Context, in MachineRef) error {
	m, err := a.machine(ctx, in.MachineID)
	if err != nil {
		return classify(err)
	}
	target, err := a.maintenanceTarget(m)
	if err != nil {
		return classify(err)
	}
	if target.MayHaveConfig {
		return nil // what became of it, the next step finds out
	}
	waitsFor := fmt.Sprintf("Talos in maintenance mode at %s", target.Address)
	tell(ctx, waitsFor, "")
	return classify(a.Maintenance.WaitMaintenance(ctx, target, func(seen string) { tell(ctx, waitsFor, seen) }))
}

// PushMachineConfig mints the worker's own short-lived bootstrap token, renders
// its configuration from the tenant's live data, checks it, and delivers it to
// the machine with the right UUID. It is repeatable: the token is kept in the
// tenant, and after a lost answer the machine is looked at again. A refused
// configuration is final.
func (a *Talos) PushMachineConfig(ctx context.Context, in MachineRef) error {
	return classify(a.pushMachineConfig(ctx, in.MachineID))
}

func (a *Talos) pushMachineConfig(ctx context.Context, id string) error {
	m, err := a.machine(ctx, id)
	if err != nil {
		return err
	}
	tenant, err := a.tenant(ctx, m.Spec.Tenant)
	if err != nil {
		return err
	}
	input, err := a.renderInput(ctx, m, tenant)
	if err != nil {
		return err
	}
	configuration, err := talos.Render(input)
	if err != nil {
		return err
	}
	if err := talos.Refuse(talos.Check(configuration, input)); err != nil {
		return err
	}
	target, err := a.maintenanceTarget(m)
	if err != nil {
		return err
	}
	if err := a.markSending(ctx, m); err != nil {
		return err
	}
	tell(ctx, "Talos to accept the configuration", target.Address.String())
	_, err = a.Deliverer.Deliver(ctx, target, configuration)
	return err
}

func (a *Talos) renderInput(ctx context.Context, m *machine, tenant *v1alpha1.AetherCluster) (talos.Input, error) {
	ca, err := a.talosCA(ctx, m.Spec.Tenant)
	if err != nil {
		return talos.Input{}, err
	}
	access, err := a.Tenants.Open(ctx, m.Spec.Tenant)
	if err != nil {
		return talos.Input{}, err
	}
	tell(ctx, "a bootstrap token in the tenant", "")
	token, err := ensureToken(ctx, access.Kube, m.Name, a.Now())
	if err != nil {
		return talos.Input{}, err
	}
	pods, err := netip.ParsePrefix(tenant.Spec.ClusterNetwork.PodCIDR)
	if err != nil {
		return talos.Input{}, refused("spec.clusterNetwork.podCIDR of tenant %s: %v", tenant.Name, err)
	}
	services, err := netip.ParsePrefix(tenant.Spec.ClusterNetwork.ServiceCIDR)
	if err != nil {
		return talos.Input{}, refused("spec.clusterNetwork.serviceCIDR of tenant %s: %v", tenant.Name, err)
	}
	object, err := a.claimant(ctx, m)
	if err != nil {
		return talos.Input{}, err
	}
	input := talos.Input{
		Cluster:           tenant.Name,
		Endpoint:          domain.EndpointURL(tenant.Spec.ControlPlaneEndpoint.Host),
		KubernetesCA:      access.CA,
		TalosCA:           ca,
		Token:             token,
		KubernetesVersion: tenant.Spec.Version,
		TalosVersion:      a.Site.Spec.Versions.Talos,
		Hostname:          m.Spec.VMName,
		ProviderID:        domain.ProviderID(m.Spec.Tenant, domain.MachineID(m.Name)),
		PodCIDRs:          []netip.Prefix{pods},
		ServiceCIDRs:      []netip.Prefix{services},
		DNSDomain:         tenant.Spec.ClusterNetwork.DNSDomain,
		Labels:            domain.KubeletLabels(object.Spec.Labels),
		Taints:            taints(object.Spec.Taints),
		Install:           talos.Install{Disk: "/dev/sda", Image: a.Site.Spec.Images.Installer + ":" + a.Site.Spec.Versions.Talos},
	}
	return input, a.addSite(m, &input)
}

// claimant returns the AetherMachine that claimed the machine.
func (a *Talos) claimant(ctx context.Context, m *machine) (*v1alpha1.AetherMachine, error) {
	ref := m.Spec.ClaimRef
	object := &v1alpha1.AetherMachine{}
	err := a.Kube.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, object)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("machine %s: %w: its AetherMachine %s/%s was deleted", m.Name, errGone, ref.Namespace, ref.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("read AetherMachine %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	return object, nil
}

func taints(list []corev1.Taint) []talos.Taint {
	result := make([]talos.Taint, 0, len(list))
	for _, t := range list {
		result = append(result, talos.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
	}
	return result
}

// addSite adds cards, time, names, trust and mirrors as the site has them.
func (a *Talos) addSite(m *machine, input *talos.Input) error {
	for i, nic := range m.Spec.NICs {
		network, ok := networkOf(a.Site, nic.Network)
		if !ok {
			return refused("network %s is not in the site", nic.Network)
		}
		mac, err := net.ParseMAC(nic.MAC)
		if err != nil {
			return fmt.Errorf("card %d of machine %s: %w", i, m.Name, err)
		}
		address, err := netip.ParsePrefix(nic.Address)
		if err != nil {
			return fmt.Errorf("card %d of machine %s: %w", i, m.Name, err)
		}
		card := talos.NIC{Alias: fmt.Sprintf("net%d", i), MAC: mac, Address: address, MTU: network.MTU}
		if i == 0 {
			card.Gateway = network.Gateway
			input.Nameservers = network.DNS
			input.TimeServers = network.NTP
		}
		input.NICs = append(input.NICs, card)
	}
	for i, root := range a.Site.Spec.TrustedRoots {
		input.TrustedRoots = append(input.TrustedRoots, talos.TrustedRoot{Name: fmt.Sprintf("site-%d", i), PEM: []byte(root.PEM)})
	}
	for _, mirror := range a.Site.Spec.Mirrors {
		for _, endpoint := range mirror.Endpoints {
			input.Mirrors = append(input.Mirrors, talos.Mirror{Registry: mirror.Host, URL: endpoint.URL})
		}
	}
	return nil
}

// talosCASecret holds a tenant's own Talos CA in its namespace.
func talosCASecret(tenant string) string { return tenant + "-talos-ca" }

// talosCA returns the certificate of the tenant's Talos CA and makes the CA
// when it does not exist. Of several that make it at once, one wins.
func (a *Talos) talosCA(ctx context.Context, tenant string) ([]byte, error) {
	key := client.ObjectKey{Namespace: domain.TenantNamespace(tenant), Name: talosCASecret(tenant)}
	secret := &corev1.Secret{}
	err := a.Kube.Get(ctx, key, secret)
	if err == nil {
		return secret.Data[corev1.TLSCertKey], nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read the Talos CA of tenant %s: %w", tenant, err)
	}
	ca, err := talos.NewCA(a.Now())
	if err != nil {
		return nil, fmt.Errorf("make a Talos CA for tenant %s: %w", tenant, err)
	}
	secret = &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace, Labels: map[string]string{domain.TenantLabel: tenant}},
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{corev1.TLSCertKey: ca.Certificate, corev1.TLSPrivateKeyKey: ca.Key},
	}
	err = a.Kube.Create(ctx, secret)
	if apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("the Talos CA of tenant %s was made by another attempt: %w", tenant, errWaiting)
	}
	if err != nil {
		return nil, fmt.Errorf("write the Talos CA of tenant %s: %w", tenant, err)
	}
	return ca.Certificate, nil
}
