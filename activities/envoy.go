package activities

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/envoy"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/internal/proxyagent"
	"aether.internal/aether/internal/proxyagent/seed"
	"aether.internal/aether/internal/site"
)

// Envoy gives proxies their identity and looks at what they do.
type Envoy struct {
	Platform
	Leases  *lease.Store
	Tenants *TenantClients
	// Store keeps enrolment tokens and what proxies said.
	Store *envoy.Store
	Now   func() time.Time
}

// AttachSeed issues a one-time enrolment token, puts it with the proxy's
// addresses on a medium, and puts the medium into the VM's drive. It is
// repeatable: each attempt issues a new token and voids the earlier ones.
func (a *Envoy) AttachSeed(ctx context.Context, in MachineRef) error {
	return classify(a.attachSeed(ctx, in.MachineID))
}

func (a *Envoy) attachSeed(ctx context.Context, id string) error {
	m, err := a.machine(ctx, id)
	if err != nil {
		return err
	}
	medium, err := a.medium(ctx, m)
	if err != nil {
		return err
	}
	image, err := medium.ISO()
	if err != nil {
		return err
	}
	pve, err := a.Proxmox(m.cluster.Name)
	if err != nil {
		return err
	}
	volume, err := pve.UploadISO(ctx, m.Spec.Host, m.host.Storage.ISO, seedName(m), image, beat(ctx))
	if err != nil {
		return err
	}
	return pve.AttachISO(ctx, m.ref(), cloudInitDrive, volume)
}

func (a *Envoy) medium(ctx context.Context, m *machine) (seed.Seed, error) {
	ca, err := envoy.EnsureCA(ctx, a.Kube, domain.SystemNamespace, a.Now)
	if err != nil {
		return seed.Seed{}, err
	}
	token, err := a.Store.Issue(ctx, envoy.ID{Tenant: m.Spec.Tenant, Generation: m.Spec.Generation})
	if err != nil {
		return seed.Seed{}, err
	}
	s := seed.Seed{
		InstanceID: m.Name, Hostname: m.Spec.VMName, Token: seed.Token(token),
		Agent: proxyagent.Config{
			Tenant: m.Spec.Tenant, Generation: m.Spec.Generation,
			XDS: a.Site.Spec.Proxy.XDS.String(), Enrolment: a.Site.Spec.Proxy.Enrolment.String(), CA: string(ca.PEM()),
		},
	}
	for _, nic := range m.Spec.NICs {
		network, ok := networkOf(a.Site, nic.Network)
		if !ok {
			return s, refused("network %s is not in the site", nic.Network)
		}
		card, err := seedNIC(nic)
		if err != nil {
			return s, fmt.Errorf("machine %s: %w", m.Name, err)
		}
		card.MTU = network.MTU
		// The default route is on the tenant's side, where its people are; the
		// platform is reached within the management network.
		if network.Kind == site.TenantNetwork {
			card.Gateway = network.Gateway
			s.Tenant = card
			continue
		}
		s.Management, s.DNS = card, network.DNS
	}
	return s, nil
}

func seedNIC(nic v1alpha1.NIC) (seed.NIC, error) {
	mac, err := net.ParseMAC(nic.MAC)
	if err != nil {
		return seed.NIC{}, fmt.Errorf("card on %s: %w", nic.Network, err)
	}
	address, err := netip.ParsePrefix(nic.Address)
	if err != nil {
		return seed.NIC{}, fmt.Errorf("card on %s: %w", nic.Network, err)
	}
	return seed.NIC{MAC: mac, Address: address}, nil
}

// WaitEnrolled waits until the proxy has enrolled, has a stream open to the xDS
// server and has applied what it was given there; the API server behind it may
// come later. It is repeatable.
func (a *Envoy) WaitEnrolled(ctx context.Context, in MachineRef) error {
	m, err := a.machine(ctx, in.MachineID)
	if err != nil {
		return classify(err)
	}
	if err := a.waitStatus(ctx, m, func(status envoy.Status) string {
		return a.serves(m, status)
	}); err != nil {
		return classify(err)
	}
	return classify(a.phase(ctx, m, phaseUsable))
}

// serves says what keeps a proxy from serving what it was last given: its
// reason for refusing it, or that it is not seen now. A report that is old was
// written by a server that is gone, about a proxy that may be gone too.
func (a *Envoy) serves(m *machine, status envoy.Status) (waitsFor string) {
	switch {
	case status.Refused != "":
		return "a configuration that can be rendered: " + status.Refused
	case !status.Fresh(a.Now()):
		return fmt.Sprintf("the xDS server to tell of the proxy %s again; its last word is of %s", m.Spec.VMName, status.ReportedAt.UTC().Format(time.RFC3339))
	case !status.Connected:
		return "the proxy " + m.Spec.VMName + " to enrol and to open its configuration stream"
	case status.Rejected != nil:
		return "the proxy to accept its configuration: " + status.Rejected.Reason
	case !status.Applied:
		return "the proxy " + m.Spec.VMName + " to acknowledge its configuration"
	}
	return ""
}

// waitStatus waits until a proxy's status satisfies want.
func (a *Envoy) waitStatus(ctx context.Context, m *machine, want func(envoy.Status) string) error {
	id := envoy.ID{Tenant: m.Spec.Tenant, Generation: m.Spec.Generation}
	options := []client.ListOption{client.InNamespace(domain.SystemNamespace), client.MatchingLabels{
		envoy.LabelTenant: id.Tenant, envoy.LabelGeneration: strconv.FormatInt(id.Generation, 10),
	}}
	return until(ctx, a.Kube, &corev1.ConfigMapList{}, options, func(ctx context.Context) (string, error) {
		status, err := a.Store.ReadStatus(ctx, id)
		if errors.Is(err, envoy.ErrNoStatus) {
			return "the proxy " + m.Spec.VMName + " to boot and enrol", nil
		}
		if err != nil {
			return "", err
		}
		return want(status), nil
	})
}

// WaitPath waits until the proxy has acknowledged its configuration and the
// tenant's API server answers behind the proxy's address, with a certificate
// that covers it. It is repeatable. The proxy's reason for a refused
// configuration is told.
func (a *Envoy) WaitPath(ctx context.Context, in TenantRef) error {
	return classify(a.waitPath(ctx, in.Tenant))
}

func (a *Envoy) waitPath(ctx context.Context, name string) error {
	tenant, err := a.tenant(ctx, name)
	if err != nil {
		return err
	}
	m, err := a.machine(ctx, tenant.Status.Proxy.Machine)
	if err != nil {
		return err
	}
	version := ""
	err = a.waitStatus(ctx, m, func(status envoy.Status) string {
		if waitsFor := a.serves(m, status); waitsFor != "" {
			return waitsFor
		}
		if len(status.Wanted.Upstreams) == 0 {
			return "the xDS server to learn the API server's address"
		}
		version = status.Acked
		return ""
	})
	if err != nil {
		return err
	}
	access, err := a.Tenants.Open(ctx, name)
	if err != nil {
		return err
	}
	address := net.JoinHostPort(tenant.Spec.ControlPlaneEndpoint.Host, strconv.Itoa(domain.APIServerPort))
	for {
		err := answers(ctx, address, access.CA)
		if err == nil {
			break
		}
		tell(ctx, "the API server to answer at "+address, err.Error())
		if err := pause(ctx, checkPause); err != nil {
			return err
		}
	}
	patch := client.MergeFrom(tenant.DeepCopy())
	tenant.Status.Proxy.ConfigVersion = version
	if err := a.Kube.Status().Patch(ctx, tenant, patch); err != nil {
		return fmt.Errorf("record the proxy's configuration of tenant %s: %w", name, err)
	}
	return nil
}

// answers asks the API server behind an address for /readyz, which needs no
// credentials, and verifies its certificate for that address.
func answers(ctx context.Context, address string, ca []byte) error {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return errors.New("the tenant's CA is no certificate")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, tenantCallTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", address, err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("ask %s: %w", address, err)
	}
	if err := response.Body.Close(); err != nil {
		return fmt.Errorf("ask %s: %w", address, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ask %s: status %s", address, response.Status)
	}
	return nil
}

// RevokeProxy removes what the platform keeps of a tenant's proxies: tokens,
// versions, what they said. Their certificates are worth nothing from then on.
// It is repeatable.
func (a *Envoy) RevokeProxy(ctx context.Context, in TenantRef) error {
	return insist(a.Store.Forget(ctx, in.Tenant))
}
