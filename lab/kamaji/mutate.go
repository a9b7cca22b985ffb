package kamaji

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"gomodules.xyz/jsonpatch/v2"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

const (
	dnsOffsetV4     = 10
	dnsOffsetV6     = 16
	defaultReplicas = 2
)

// mutator fills in what the CRD cannot default.
type mutator struct {
	decoder   admission.Decoder
	dataStore string
}

// Handle answers with a patch.
func (m *mutator) Handle(_ context.Context, req admission.Request) admission.Response {
	tcp := &v1alpha1.TenantControlPlane{}
	if err := m.decoder.Decode(req, tcp); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	var given struct {
		Spec struct {
			ControlPlane struct {
				Deployment json.RawMessage `json:"deployment"`
			} `json:"controlPlane"`
			NetworkProfile json.RawMessage `json:"networkProfile"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(req.Object.Raw, &given); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	var patch []jsonpatch.JsonPatchOperation
	add := func(path string, value any) { patch = append(patch, jsonpatch.NewOperation("add", path, value)) }
	if given.Spec.ControlPlane.Deployment == nil {
		add("/spec/controlPlane/deployment/replicas", defaultReplicas) // the API server cannot apply this, and says so
	}
	if tcp.Spec.DataStore == "" && req.Operation == "CREATE" {
		add("/spec/dataStore", m.dataStore)
	}
	if given.Spec.NetworkProfile == nil {
		return admission.Patched("", patch...)
	}
	network := tcp.Spec.NetworkProfile
	if len(network.ServiceCIDRs) == 0 && network.ServiceCIDR != "" {
		network.ServiceCIDRs = []string{network.ServiceCIDR}
		add("/spec/networkProfile/serviceCidrs", network.ServiceCIDRs)
	}
	if len(network.PodCIDRs) == 0 && network.PodCIDR != "" {
		add("/spec/networkProfile/podCidrs", []string{network.PodCIDR})
	}
	if len(network.DNSServiceIPs) == 0 {
		addresses, err := dnsServiceIPs(network.ServiceCIDRs)
		if err != nil {
			return admission.Denied(fmt.Sprintf("cannot define resulting DNS Service IP: %s", err))
		}
		add("/spec/networkProfile/dnsServiceIPs", addresses)
	}
	return admission.Patched("", patch...)
}

// dnsServiceIPs adds 10, or 16 for IPv6, to each range's address as it is
// written, host bits included.
func dnsServiceIPs(cidrs []string) ([]string, error) {
	addresses := make([]string, 0, len(cidrs))
	for _, cidr := range cidrs {
		if _, _, err := net.ParseCIDR(cidr); err != nil {
			return nil, err
		}
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, err
		}
		address, offset := prefix.Addr(), dnsOffsetV4
		if address.Is6() {
			offset = dnsOffsetV6
		}
		for range offset {
			address = address.Next()
		}
		addresses = append(addresses, address.String())
	}
	return addresses, nil
}
