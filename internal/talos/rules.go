package talos

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
)

// rules are the fields that are known to break a join or what comes after it.
func (in Input) rules() []rule {
	rules := in.clusterRules()
	rules = append(rules, in.kubeletRules()...)
	rules = append(rules, in.machineRules()...)
	rules = append(rules, in.nicRules()...)
	return append(rules, in.sourceRules()...)
}

func (in Input) clusterRules() []rule {
	return []rule{
		{
			path: "cluster.ca.crt", problem: sameCA(in.KubernetesCA),
			fix: "take ca.crt of the control plane's Secret <tenant>-ca; a CA that talosctl generated makes the kubelet fail TLS for ever",
		},
		{path: "cluster.ca.key", problem: emptyKey, fix: "leave it out: a CA's key never goes to a worker"},
		{
			path: "cluster.token", problem: in.sameToken,
			fix: "make one token for this worker and write its Secret bootstrap-token-<id> into the tenant's kube-system first",
		},
		{
			path: "cluster.controlPlane.endpoint", needed: in.Endpoint,
			fix: "use the address of the tenant's proxy that the control plane advertises",
		},
		{path: "cluster.clusterName", needed: in.Cluster, fix: renderAgain},
		{path: "cluster.network.podSubnets", needed: prefixes(in.PodCIDRs), fix: "copy the control plane's networkProfile.podCidrs"},
		{
			path: "cluster.network.serviceSubnets", needed: prefixes(in.ServiceCIDRs),
			fix: "copy the control plane's networkProfile.serviceCidrs; the kubelet derives the DNS address from it",
		},
		{path: "cluster.network.dnsDomain", needed: in.DNSDomain, fix: "copy the control plane's cluster domain"},
		{path: "cluster.network.cni.name", needed: "none", fix: "leave the CNI to Cilium"},
		{path: "cluster.discovery.enabled", needed: false, fix: "switch it off: the public registry would learn about the tenant"},
	}
}

func (in Input) kubeletRules() []rule {
	const taints = "machine.kubelet.extraConfig.registerWithTaints"
	return []rule{
		{
			path: "machine.kubelet.image", needed: KubeletRepository + ":" + in.KubernetesVersion,
			fix: "pin the tenant's exact version: Talos's default kubelet may be newer than the API server",
		},
		{
			path: "machine.kubelet.extraConfig.providerID", needed: in.ProviderID,
			fix: "set it before the first boot: a Node's provider ID cannot be changed later",
		},
		{path: taints, needed: in.registeredTaints(), fix: "list Cilium's start-up taint first, then the pool's"},
		{path: "machine.nodeTaints", fix: "move them to " + taints + ": a worker may not change its taints"},
		{
			path: "machine.kubelet.nodeIP.validSubnets", needed: []string{in.NICs[0].Address.Masked().String()},
			fix: "name the tenant network only, or the storage address becomes the node's",
		},
		{
			path: "machine.kubelet.extraArgs.rotate-server-certificates", needed: "true",
			fix: "set it, so that logs and exec are served with a certificate of the tenant's CA",
		},
		{path: "machine.nodeLabels", needed: labelsOrNothing(in.Labels), fix: "copy the labels of the pool that a node may set"},
	}
}

func (in Input) machineRules() []rule {
	return []rule{
		{path: "machine.type", needed: "worker", fix: "Kamaji runs the control plane; machines are workers"},
		{path: "machine.ca.crt", problem: sameCA(in.TalosCA), fix: "take the certificate of the tenant's own Talos CA"},
		{path: "machine.ca.key", problem: emptyKey, fix: "leave it out: a CA's key never goes to a worker"},
		{path: "machine.features.kubePrism.enabled", problem: notTrue, fix: "switch KubePrism off: the endpoint is one address already"},
		{path: "machine.features.hostDNS.enabled", needed: true, fix: "switch it on: the node resolves registries through it"},
		{path: "machine.features.hostDNS.forwardKubeDNSToHost", needed: false, fix: "switch it off: it clashes with Cilium's masquerading"},
		{path: "machine.install.disk", needed: in.Install.Disk, fix: "name the disk by the VM's disk bus"},
		{
			path: "machine.install.image", needed: in.Install.Image,
			fix: "use the template's own installer: with another platform's the address from cloud-init is lost after an upgrade",
		},
		{path: "HostnameConfig.hostname", needed: in.Hostname, fix: "pin it: a generated name matches no Machine"},
		{path: "HostnameConfig.auto", fix: "leave it out: the name is pinned"},
	}
}

func (in Input) nicRules() []rule {
	var rules []rule
	for _, nic := range in.NICs {
		var routes any
		if nic.Gateway.IsValid() {
			routes = []any{map[string]any{"gateway": nic.Gateway.String()}}
		}
		link := "LinkConfig[" + nic.Alias + "]"
		rules = append(rules,
			rule{
				path: "LinkAliasConfig[" + nic.Alias + "].selector.match", needed: macSelector(nic),
				fix: "select the card by the MAC address in the VM's configuration",
			},
			rule{
				path: link + ".addresses", needed: []any{map[string]any{"address": nic.Address.String()}},
				fix: "use the address that is leased to this machine",
			},
			rule{path: link + ".routes", needed: routes, fix: "one default route, by the tenant network's router"},
			rule{path: link + ".mtu", needed: nic.MTU, fix: "use the MTU of the network; a wrong one loses large packets only"},
			rule{path: link + ".up", needed: true, fix: "switch the link on"},
		)
	}
	return rules
}

func (in Input) sourceRules() []rule {
	rules := []rule{
		{path: "ResolverConfig.nameservers", needed: nameservers(in.Nameservers), fix: "name resolvers that the tenant network reaches"},
		{path: "TimeSyncConfig.ntp.servers", needed: in.TimeServers, fix: "name reachable NTP servers: the kubelet waits for the clock for ever"},
	}
	for _, m := range in.Mirrors {
		rules = append(rules,
			rule{
				path: "RegistryMirrorConfig[" + m.Registry + "].endpoints", needed: []any{map[string]any{"url": m.URL, "overridePath": true}},
				fix: "write Harbor's /v2/<project> with overridePath, or Talos appends a second /v2",
			},
			rule{
				path: "RegistryMirrorConfig[" + m.Registry + "].skipFallback", needed: true,
				fix: "switch it on: a fallback to the Internet hides a broken cache",
			},
		)
	}
	for _, root := range in.TrustedRoots {
		rules = append(rules, rule{
			path: "TrustedRootsConfig[" + root.Name + "].certificates", problem: sameRoots(root.PEM),
			fix: "copy the site's certificate authority, or no image can be pulled",
		})
	}
	return rules
}

func labelsOrNothing(labels map[string]string) any {
	if len(labels) == 0 {
		return nil
	}
	return labels
}

func nameservers(list []netip.Addr) []any {
	out := make([]any, 0, len(list))
	for _, a := range list {
		out = append(out, map[string]any{"address": a.String()})
	}
	return out
}

func notTrue(value any) (found, needed string) {
	if value == nil || value == false {
		return "", ""
	}
	return show("", value), "false or nothing"
}

func emptyKey(value any) (found, needed string) {
	if value == nil || value == "" {
		return "", ""
	}
	return "a hidden value", "nothing"
}

func (in Input) sameToken(value any) (found, needed string) {
	needed = "the token with ID " + strconv.Quote(in.Token.ID())
	text, _ := value.(string)
	if text == "" {
		return "nothing", needed
	}
	token, err := ParseBootstrapToken(text)
	if err != nil {
		return "a value that is no bootstrap token", needed + " (" + tokenForm + ")"
	}
	if token.ID() != in.Token.ID() {
		return "the token with ID " + strconv.Quote(token.ID()), needed
	}
	if token != in.Token {
		return "another secret for token ID " + strconv.Quote(token.ID()), "the secret of that token's Secret in the tenant"
	}
	return "", ""
}

// sameCA compares certificates, not their spelling.
func sameCA(wantPEM []byte) func(any) (string, string) {
	return func(value any) (found, needed string) {
		want, err := parseCA(wantPEM)
		if err != nil {
			return "nothing to compare with", "a CA certificate"
		}
		needed = describe(want)
		text, _ := value.(string)
		if text == "" {
			return "nothing", needed
		}
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return "a value that is not base64", needed
		}
		got, err := parseCA(raw)
		if err != nil {
			return "a value that " + err.Error(), needed
		}
		if !got.Equal(want) {
			return describe(got), needed
		}
		return "", ""
	}
}

func sameRoots(wantPEM []byte) func(any) (string, string) {
	return func(value any) (found, needed string) {
		want, err := parseCertificates(wantPEM)
		if err != nil {
			return "nothing to compare with", "PEM certificates"
		}
		needed = describe(want[0])
		text, _ := value.(string)
		got, err := parseCertificates([]byte(text))
		if err != nil {
			return "a value that " + err.Error(), needed
		}
		if !bytes.Equal(rawCertificates(got), rawCertificates(want)) {
			return describe(got[0]), needed
		}
		return "", ""
	}
}

func rawCertificates(certs []*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, c.Raw...)
	}
	return out
}

func describe(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return fmt.Sprintf("certificate of %q with SHA-256 %s…", cert.Subject.String(), hex.EncodeToString(sum[:8]))
}
