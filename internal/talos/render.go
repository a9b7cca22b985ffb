package talos

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/siderolabs/crypto/x509"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
)

// KubeletRepository is where Talos takes the kubelet from.
const KubeletRepository = "ghcr.io/siderolabs/kubelet"

// Render writes the machine configuration of a worker. It is pure, and refuses
// an Input that [Input.Validate] refuses.
func Render(in Input) ([]byte, error) {
	if err := in.Validate(); err != nil {
		return nil, fmt.Errorf("talos configuration of %q: %w", in.Hostname, err)
	}
	base, err := in.generate()
	if err != nil {
		return nil, fmt.Errorf("generate talos configuration of %q: %w", in.Hostname, err)
	}
	documents, err := in.documents()
	if err != nil {
		return nil, fmt.Errorf("talos configuration of %q: %w", in.Hostname, err)
	}
	// Only the first document is taken from the generator: its HostnameConfig
	// would make a name up.
	provider, err := container.New(append([]config.Document{base}, documents...)...)
	if err != nil {
		return nil, fmt.Errorf("assemble talos configuration of %q: %w", in.Hostname, err)
	}
	out, err := provider.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return nil, fmt.Errorf("encode talos configuration of %q: %w", in.Hostname, err)
	}
	return out, nil
}

// generate makes the main document with Talos's own generator, so that what a
// version's contract needs is in it, and sets what Kamaji and Cilium need.
func (in Input) generate() (config.Document, error) {
	contract, err := coreconfig.ParseContractFromVersion(in.TalosVersion)
	if err != nil {
		return nil, fmt.Errorf("talosVersion: %q is not known: %w", in.TalosVersion, err)
	}
	bundle := &secrets.Bundle{
		Certs: &secrets.Certs{
			OS:  &x509.PEMEncodedCertificateAndKey{Crt: in.TalosCA},
			K8s: &x509.PEMEncodedCertificateAndKey{Crt: in.KubernetesCA},
		},
		Cluster:    &secrets.Cluster{},
		Secrets:    &secrets.Secrets{BootstrapToken: in.Token.Reveal()},
		TrustdInfo: &secrets.TrustdInfo{},
	}
	input, err := generate.NewInput(in.Cluster, in.Endpoint, strings.TrimPrefix(in.KubernetesVersion, "v"),
		generate.WithVersionContract(contract),
		generate.WithSecretsBundle(bundle),
		generate.WithInstallDisk(in.Install.Disk),
		generate.WithInstallImage(in.Install.Image),
		generate.WithKubePrismPort(0),
		generate.WithClusterDiscovery(false),
		generate.WithDNSDomain(in.DNSDomain),
		generate.WithClusterCNIConfig(&v1alpha1.CNIConfig{CNIName: "none"}),
	)
	if err != nil {
		return nil, err
	}
	input.PodNet, input.ServiceNet = prefixes(in.PodCIDRs), prefixes(in.ServiceCIDRs)
	provider, err := input.Config(machine.TypeWorker)
	if err != nil {
		return nil, err
	}
	provider, err = provider.PatchV1Alpha1(in.patch)
	if err != nil {
		return nil, err
	}
	return provider.RawV1Alpha1(), nil
}

func (in Input) patch(c *v1alpha1.Config) error {
	kubelet := c.MachineConfig.MachineKubelet
	kubelet.KubeletImage = KubeletRepository + ":" + in.KubernetesVersion
	kubelet.KubeletExtraArgs = map[string]string{"rotate-server-certificates": "true"}
	kubelet.KubeletNodeIP = &v1alpha1.KubeletNodeIPConfig{
		// With a second card the first address found would become the
		// node's, reachable or not.
		KubeletNodeIPValidSubnets: []string{in.NICs[0].Address.Masked().String()},
	}
	kubelet.KubeletExtraConfig = v1alpha1.Unstructured{Object: map[string]any{
		"providerID": in.ProviderID,
		// Not machine.nodeTaints: those are set with the node's credential,
		// which may not touch taints.
		"registerWithTaints": in.registeredTaints(),
	}}
	c.MachineConfig.MachineNodeLabels = in.Labels
	enabled, forward := true, false
	c.MachineConfig.MachineFeatures.HostDNSSupport = &v1alpha1.HostDNSConfig{
		HostDNSEnabled: &enabled,
		// Forwarding of pods' queries to the host goes past Cilium's
		// masquerading and gets no answer.
		HostDNSForwardKubeDNSToHost: &forward,
	}
	return nil
}

func (in Input) registeredTaints() []any {
	taints := make([]any, 0, len(in.Taints)+1)
	for _, t := range append([]Taint{StartupTaint()}, in.Taints...) {
		entry := map[string]any{"key": t.Key, "effect": t.Effect}
		if t.Value != "" {
			entry["value"] = t.Value
		}
		taints = append(taints, entry)
	}
	return taints
}

func prefixes(list []netip.Prefix) []string {
	out := make([]string, 0, len(list))
	for _, p := range list {
		out = append(out, p.Masked().String())
	}
	return out
}

// Redact returns a configuration with its secrets masked, for people to read.
// What cannot be parsed is not shown at all.
func Redact(configuration []byte) string {
	provider, err := load(configuration)
	if err != nil {
		return "(not a Talos configuration)"
	}
	out, err := provider.RedactSecrets("***").EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return "(Talos configuration that cannot be encoded)"
	}
	return string(out)
}

func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not a URL: %w", text, err)
	}
	return u, nil
}
