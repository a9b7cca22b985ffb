package maintenance

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// newResources fills a COSI state with what the machine publishes.
func newResources(ctx context.Context, m Machine) (state.State, error) {
	st := state.WrapCore(namespaced.NewState(inmem.Build))
	for _, r := range published(m) {
		if err := st.Create(ctx, r); err != nil {
			return nil, fmt.Errorf("publish %s: %w", r.Metadata(), err)
		}
	}
	return st, nil
}

func published(m Machine) []resource.Resource {
	stage := runtime.NewMachineStatus()
	stage.TypedSpec().Stage = runtime.MachineStageMaintenance
	stage.TypedSpec().Status.Ready = true
	system := hardware.NewSystemInformation(hardware.SystemInformationID)
	*system.TypedSpec() = hardware.SystemInformationSpec{Manufacturer: "QEMU", ProductName: m.Name, UUID: m.UUID}
	hostname := network.NewHostnameStatus(network.NamespaceName, network.HostnameID)
	hostname.TypedSpec().Hostname = m.Hostname
	list := []resource.Resource{stage, system, hostname}
	for i, link := range m.Links {
		status := network.NewLinkStatus(network.NamespaceName, link.Name)
		spec := status.TypedSpec()
		spec.Index, spec.Type, spec.MTU = uint32(i+2), nethelpers.LinkEther, uint32(link.MTU) //nolint:gosec // small numbers
		spec.HardwareAddr, spec.PermanentAddr = nethelpers.HardwareAddr(link.MAC), nethelpers.HardwareAddr(link.MAC)
		spec.LinkState, spec.OperationalState = link.Up, nethelpers.OperStateDown
		if link.Up {
			spec.OperationalState = nethelpers.OperStateUp
		}
		list = append(list, status)
		for _, address := range link.Addresses {
			prefix, err := netip.ParsePrefix(address)
			if err != nil {
				continue // the kernel does not report such
			}
			a := network.NewAddressStatus(network.NamespaceName, network.AddressID(link.Name, prefix))
			a.TypedSpec().Address, a.TypedSpec().LinkName, a.TypedSpec().LinkIndex = prefix, link.Name, spec.Index
			list = append(list, a)
		}
	}
	return list
}

// readOnly lets everybody read these kinds and nobody write.
func readOnly(st state.State) state.State {
	supported := map[resource.Type]bool{
		runtime.MachineStatusType: true, hardware.SystemInformationType: true,
		network.LinkStatusType: true, network.AddressStatusType: true, network.HostnameStatusType: true,
	}
	return state.WrapCore(state.Filter(st, func(_ context.Context, access state.Access) error {
		if !access.Verb.Readonly() {
			return status.Error(codes.PermissionDenied, "write access is not allowed")
		}
		if !supported[access.ResourceType] {
			return status.Errorf(codes.PermissionDenied, "resource type %q is not supported", access.ResourceType)
		}
		return nil
	}))
}

// selfSigned makes an authority that nobody knows and a certificate from it.
func selfSigned(m Machine) (*tls.Config, error) {
	_, caKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make maintenance CA key: %w", err)
	}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make maintenance key: %w", err)
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), NotBefore: now.Add(-time.Minute), NotAfter: now.AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano() + 1), NotBefore: now.Add(-time.Minute), NotAfter: now.AddDate(0, 0, 1),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: names(m.Hostname), IPAddresses: ips(m),
	}
	leaf.Subject.CommonName = m.Hostname
	raw, err := x509.CreateCertificate(rand.Reader, leaf, ca, public, caKey)
	if err != nil {
		return nil, fmt.Errorf("make maintenance certificate: %w", err)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}},
	}, nil
}

func names(hostname string) []string {
	if hostname == "" {
		return nil
	}
	return []string{hostname}
}

func ips(m Machine) []net.IP {
	var list []net.IP
	for _, link := range m.Links {
		for _, address := range link.Addresses {
			if ip, _, err := net.ParseCIDR(address); err == nil {
				list = append(list, ip)
			}
		}
	}
	return list
}

func addressesOf(m Machine) string {
	var list []string
	for _, ip := range ips(m) {
		list = append(list, ip.String())
	}
	if len(list) == 0 {
		return "no address"
	}
	return strings.Join(list, ", ")
}
