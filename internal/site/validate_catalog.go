package site

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

func (r *report) catalog(spec *Spec) {
	r.atLeastOne("spec.versions.kubernetes", len(spec.Versions.Kubernetes), "version")
	for i, version := range spec.Versions.Kubernetes {
		r.version(fmt.Sprintf("spec.versions.kubernetes[%d]", i), version)
	}
	r.version("spec.versions.talos", spec.Versions.Talos)
	r.version("spec.versions.cilium", spec.Versions.Cilium)
	r.version("spec.versions.coredns", spec.Versions.CoreDNS)
	r.version("spec.versions.konnectivity", spec.Versions.Konnectivity)

	r.repository("spec.images.kubelet", spec.Images.Kubelet)
	r.repository("spec.images.controlPlane", spec.Images.ControlPlane)
	r.repository("spec.images.coredns", spec.Images.CoreDNS)
	r.repository("spec.images.konnectivityServer", spec.Images.KonnectivityServer)
	r.repository("spec.images.konnectivityAgent", spec.Images.KonnectivityAgent)

	r.atLeastOne("spec.machineClasses", len(spec.MachineClasses), "machine class")
	names := make([]string, 0, len(spec.MachineClasses))
	for i, class := range spec.MachineClasses {
		field := fmt.Sprintf("spec.machineClasses[%d]", i)
		names = append(names, class.Name)
		r.label(field+".name", class.Name)
		r.between(field+".cores", class.Cores, 1, 512, "")
		r.between(field+".memoryMiB", class.MemoryMiB, 1024, 4<<20, "Talos needs 1 GiB at least")
		r.between(field+".diskGiB", class.DiskGiB, 10, 64<<10, "Talos needs 10 GiB at least")
	}
	r.unique("spec.machineClasses", names)
	r.between("spec.proxyClass.cores", spec.ProxyClass.Cores, 1, 64, "")
	r.between("spec.proxyClass.memoryMiB", spec.ProxyClass.MemoryMiB, 256, 64<<10, "")

	r.chart("spec.charts.cilium", &spec.Charts.Cilium)
	r.mirrors(spec.Mirrors)
	for i := range spec.TrustedRoots {
		r.certificates(fmt.Sprintf("spec.trustedRoots[%d]", i), &spec.TrustedRoots[i])
	}
}

func (r *report) version(field, version string) {
	if !regexp.MustCompile(`^v(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})(-[0-9A-Za-z.-]{1,64})?$`).MatchString(version) {
		r.add(field, shown(version), "a full version, as v1.35.4", "state major, minor and patch with a leading v")
	}
}

// repository checks an image repository with its registry and without a tag.
func (r *report) repository(field, name string) {
	if !regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$`).MatchString(name) {
		r.add(field, shown(name), "registry/repository without a tag, as ghcr.io/siderolabs/kubelet", "correct it; the tag comes from spec.versions")
	}
}

func (r *report) chart(field string, c *Chart) {
	r.exactlyOne(field, map[string]bool{"path": c.Path != "", "oci": c.OCI != "", "repository": c.Repository != ""})
	if c.OCI != "" && !strings.HasPrefix(c.OCI, "oci://") {
		r.add(field+".oci", shown(c.OCI), "a reference that starts with oci://", "as oci://harbor.example/charts/cilium")
	}
	if c.Repository != "" {
		if parsed, err := url.Parse(c.Repository); err != nil || parsed.Host == "" || parsed.Scheme != "https" && parsed.Scheme != "http" {
			r.add(field+".repository", shown(c.Repository), "the URL of a chart repository", "as https://helm.cilium.io")
		}
		r.required(field+".name", c.Name, "the chart's name in the repository")
	}
	if c.OCI != "" || c.Repository != "" {
		r.required(field+".version", c.Version, "the chart's version, as 1.20.2")
	}
}

func (r *report) mirrors(mirrors []Mirror) {
	seen := map[string]int{}
	for i, mirror := range mirrors {
		field := fmt.Sprintf("spec.mirrors[%d]", i)
		if mirror.Host != "*" && !regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?$`).MatchString(mirror.Host) {
			r.add(field+".host", shown(mirror.Host), "a registry's host as it stands in references, as ghcr.io, or *", "leave out scheme and path")
		}
		if first, ok := seen[mirror.Host]; ok {
			r.add(field+".host", shown(mirror.Host)+fmt.Sprintf(", which spec.mirrors[%d] has too", first), "a host used once", "put all endpoints under one")
		}
		seen[mirror.Host] = i
		r.atLeastOne(field+".endpoints", len(mirror.Endpoints), "endpoint")
		for j := range mirror.Endpoints {
			r.mirrorEndpoint(fmt.Sprintf("%s.endpoints[%d]", field, j), &mirror.Endpoints[j])
		}
	}
}

func (r *report) mirrorEndpoint(field string, e *MirrorEndpoint) {
	parsed, err := url.Parse(e.URL)
	if err != nil || parsed.Host == "" || parsed.Scheme != "https" && parsed.Scheme != "http" || parsed.User != nil {
		r.add(field+".url", shown(e.URL), "a URL with scheme and without credentials", "as https://harbor.example/v2/proxy-ghcr.io")
		return
	}
	if path := strings.Trim(parsed.Path, "/"); path != "" && path != "v2" && !strings.HasSuffix(path, "/v2") && !e.OverridePath {
		r.add(field+".overridePath", "false with the path "+shown(parsed.Path), "true",
			"without it /v2 is appended behind the project, which Harbor does not serve")
	}
	if parsed.Scheme == "http" && e.CA != nil {
		r.add(field+".ca", "a CA for an http address", "nothing, or an https address", "Talos refuses TLS settings for http")
	}
	r.certificates(field+".ca", e.CA)
}
