package talos

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Validate says which fields of the input cannot make a working worker, all at
// once.
func (in Input) Validate() error {
	var errs []error
	refuse := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
	in.validateCluster(refuse)
	in.validateNode(refuse)
	in.validateNICs(refuse)
	in.validateSources(refuse)
	return errors.Join(errs...)
}

type refuseFunc func(field, format string, args ...any)

func (in Input) validateCluster(refuse refuseFunc) {
	if in.Cluster == "" {
		refuse("cluster", "is empty; give the tenant's name")
	}
	if u, err := url.Parse(in.Endpoint); err != nil || u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" {
		refuse("endpoint", "%q is not an address of an API server; give https://<proxy address>:6443", in.Endpoint)
	}
	if _, err := parseCA(in.KubernetesCA); err != nil {
		refuse("kubernetesCA", "%v; give ca.crt of the control plane's Secret <tenant>-ca", err)
	}
	if _, err := parseCA(in.TalosCA); err != nil {
		refuse("talosCA", "%v; give the certificate of the tenant's Talos CA", err)
	}
	if in.Token.IsZero() {
		refuse("token", "is missing; make one bootstrap token for each worker")
	}
	if !isVersion(in.KubernetesVersion) {
		refuse("kubernetesVersion", "%q is not an exact version; give the control plane's, as v1.35.4", in.KubernetesVersion)
	}
	if !isVersion(in.TalosVersion) {
		refuse("talosVersion", "%q is not an exact version; give the template's, as v1.12.6", in.TalosVersion)
	}
	if len(in.PodCIDRs) == 0 || len(in.ServiceCIDRs) == 0 {
		refuse("podCIDRs, serviceCIDRs", "one is empty; give the ranges of the control plane")
	}
	if in.DNSDomain == "" {
		refuse("dnsDomain", "is empty; give the control plane's cluster domain, usually cluster.local")
	}
}

func (in Input) validateNode(refuse refuseFunc) {
	if !regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`).MatchString(in.Hostname) {
		refuse("hostname", "%q cannot be a Node's name; give 1 to 63 lower case letters, digits and inner dashes", in.Hostname)
	}
	if u, err := url.Parse(in.ProviderID); err != nil || u.Scheme == "" || strings.Trim(u.Path, "/") == "" {
		refuse("providerID", "%q is not a provider ID; give aether://<tenant>/<machine ID>", in.ProviderID)
	}
	if _, core, err := SplitLabels(in.Labels); err != nil || len(core) > 0 {
		if err != nil {
			refuse("labels", "%v", err)
		}
		for _, key := range slices.Sorted(maps.Keys(core)) {
			refuse("labels", "%q may not be set by a node; put it on the Machine, Cluster API core copies it", key)
		}
	}
	for i, taint := range in.Taints {
		if taint.Key == "" || !slices.Contains(taintEffects(), taint.Effect) {
			refuse(fmt.Sprintf("taints[%d]", i), "key %q with effect %q; give a key and one of %s", taint.Key, taint.Effect, strings.Join(taintEffects(), ", "))
		}
	}
	if !strings.HasPrefix(in.Install.Disk, "/dev/") {
		refuse("install.disk", "%q is not a device; give /dev/sda for a SCSI disk, /dev/vda for a virtio one", in.Install.Disk)
	}
	if _, tag, found := cutTag(in.Install.Image); !found || tag != in.TalosVersion {
		refuse("install.image", "%q is not of version %s; give the template's own installer", in.Install.Image, in.TalosVersion)
	}
}

func (in Input) validateNICs(refuse refuseFunc) {
	if len(in.NICs) == 0 {
		refuse("nics", "is empty; give at least the card on the tenant network")
		return
	}
	var networks []netip.Prefix
	seen := map[string]int{}
	for i, nic := range in.NICs {
		field := fmt.Sprintf("nics[%d]", i)
		if !regexp.MustCompile(`^[a-z][a-z0-9]{0,14}$`).MatchString(nic.Alias) || regexp.MustCompile(`^(eth|en|lo|wl)`).MatchString(nic.Alias) {
			refuse(field+".alias", "%q; give up to 15 lower case letters and digits that do not look like a kernel name, as net0", nic.Alias)
		}
		if len(nic.MAC) != 6 {
			refuse(field+".mac", "%q is not an Ethernet address; give the one in the VM's configuration", nic.MAC)
		}
		if !nic.Address.IsValid() || nic.Address.Addr().IsUnspecified() || nic.Address.IsSingleIP() {
			refuse(field+".address", "%q; give an address with its network's length, as 10.1.1.50/24", nic.Address)
		} else if networks = append(networks, nic.Address.Masked()); nic.Gateway.IsValid() && !nic.Address.Contains(nic.Gateway) {
			refuse(field+".gateway", "%s is not in %s; give the router's address in the card's own network", nic.Gateway, nic.Address.Masked())
		}
		if nic.MTU < 1280 || nic.MTU > 65520 {
			refuse(field+".mtu", "%d; give the network's MTU, 1280 to 65520", nic.MTU)
		}
		for _, key := range []string{"alias " + nic.Alias, "mac " + nic.MAC.String()} {
			if other, twice := seen[key]; twice {
				refuse(field, "%s is also that of nics[%d]; each card needs its own", key, other)
			}
			seen[key] = i
		}
	}
	for i := range networks {
		for j := range i {
			if networks[i].Overlaps(networks[j]) {
				refuse("nics", "networks %s and %s overlap; the node's address could come from either", networks[j], networks[i])
			}
		}
	}
}

func (in Input) validateSources(refuse refuseFunc) {
	if len(in.TimeServers) == 0 {
		refuse("timeServers", "is empty; a worker that cannot set its clock never starts the kubelet: give the site's NTP servers")
	}
	if len(in.Nameservers) == 0 {
		refuse("nameservers", "is empty; give the resolvers that the tenant network reaches")
	}
	for i, root := range in.TrustedRoots {
		if _, err := parseCertificates(root.PEM); err != nil || root.Name == "" {
			refuse(fmt.Sprintf("trustedRoots[%d]", i), "name %q: %v; give a name and PEM certificates", root.Name, err)
		}
	}
	names := map[string]bool{}
	for i, mirror := range in.Mirrors {
		field := fmt.Sprintf("mirrors[%d]", i)
		u, err := url.Parse(mirror.URL)
		if err != nil || (u.Scheme != "https" && u.Scheme != "http") || !strings.HasPrefix(u.Path, "/v2/") {
			refuse(field+".url", "%q; give the whole path, for Harbor https://<harbor>/v2/<project>", mirror.URL)
		}
		if mirror.Registry == "" || names[mirror.Registry] {
			refuse(field+".registry", "%q is empty or named twice; give each registry host once", mirror.Registry)
		}
		names[mirror.Registry] = true
	}
	for i, host := range in.Hosts {
		if !host.Address.IsValid() || len(host.Names) == 0 {
			refuse(fmt.Sprintf("hosts[%d]", i), "address %q with %d names; give an address and at least one name", host.Address, len(host.Names))
		}
	}
}

func taintEffects() []string { return []string{"NoSchedule", "PreferNoSchedule", "NoExecute"} }

func isVersion(text string) bool {
	return regexp.MustCompile(`^v1\.[0-9]{1,3}\.[0-9]{1,3}(-[a-z0-9.]+)?$`).MatchString(text)
}

// cutTag splits an image reference at its tag, without a digest.
func cutTag(image string) (repository, tag string, found bool) {
	image, _, _ = strings.Cut(image, "@")
	slash := strings.LastIndex(image, "/")
	colon := strings.LastIndex(image, ":")
	if colon <= slash {
		return image, "", false
	}
	return image[:colon], image[colon+1:], true
}

// parseCA reads exactly one certificate that may sign others.
func parseCA(data []byte) (*x509.Certificate, error) {
	certs, err := parseCertificates(data)
	switch {
	case err != nil:
		return nil, err
	case len(certs) != 1:
		return nil, fmt.Errorf("holds %d certificates, not one", len(certs))
	case !certs[0].IsCA:
		return nil, fmt.Errorf("certificate of %q is not a CA's", cmp.Or(certs[0].Subject.CommonName, certs[0].Subject.String()))
	}
	return certs[0], nil
}

// parseCertificates reads PEM certificates and nothing else.
func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for len(strings.TrimSpace(string(data))) > 0 {
		block, rest := pem.Decode(data)
		if block == nil {
			return nil, errors.New("is not PEM")
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a PEM block %q, only CERTIFICATE is allowed", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("holds a broken certificate: %w", err)
		}
		certs, data = append(certs, cert), rest
	}
	if len(certs) == 0 {
		return nil, errors.New("is empty")
	}
	return certs, nil
}
