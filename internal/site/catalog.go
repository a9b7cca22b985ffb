package site

// Versions are the versions Aether may install.
type Versions struct {
	// Kubernetes are the versions a tenant may choose, as v1.35.4.
	Kubernetes []string `json:"kubernetes"`
	// Talos is the version in the worker templates, as v1.12.6.
	Talos string `json:"talos"`
	// Cilium is the version of the chart and its images, as v1.20.2.
	Cilium string `json:"cilium"`
	// CoreDNS is the image tag, as v1.14.2. Kamaji's own default follows its
	// library, not the tenant's version.
	CoreDNS string `json:"coredns"`
	// Konnectivity is the tag of server and agent, as v0.34.0. Kamaji's own
	// default may name one that was never published.
	Konnectivity string `json:"konnectivity"`
}

// Images are repositories, without tags.
type Images struct {
	// Kubelet of the workers. Default ghcr.io/siderolabs/kubelet.
	Kubelet string `json:"kubelet,omitempty"`
	// Installer of the workers, for upgrades: it must fit the template's
	// platform and extensions, as factory.talos.dev/nocloud-installer/<schematic>.
	// Default ghcr.io/siderolabs/installer.
	Installer string `json:"installer,omitempty"`
	// Probe is the image, with its tag, of the pod that proves a worker: it runs
	// `netexec` and has a `hostname` command. Default
	// registry.k8s.io/e2e-test-images/agnhost:2.53.
	Probe string `json:"probe,omitempty"`
	// ControlPlane is the registry of kube-apiserver and its companions.
	// Default registry.k8s.io.
	ControlPlane string `json:"controlPlane,omitempty"`
	// CoreDNS repository. Default registry.k8s.io/coredns.
	CoreDNS string `json:"coredns,omitempty"`
	// KonnectivityServer repository. Default
	// registry.k8s.io/kas-network-proxy/proxy-server.
	KonnectivityServer string `json:"konnectivityServer,omitempty"`
	// KonnectivityAgent repository. Default
	// registry.k8s.io/kas-network-proxy/proxy-agent.
	KonnectivityAgent string `json:"konnectivityAgent,omitempty"`
}

// MachineClass is a size of worker.
type MachineClass struct {
	// Name is a DNS label pools refer to.
	Name string `json:"name"`
	// Cores of the VM, 1 to 512.
	Cores int `json:"cores"`
	// MemoryMiB of the VM, 1024 to 4194304. Talos needs 1 GiB at least.
	MemoryMiB int `json:"memoryMiB"`
	// DiskGiB of the VM, 10 to 65536, and never below the template's.
	DiskGiB int `json:"diskGiB"`
}

// ProxyClass is the size of a proxy VM.
type ProxyClass struct {
	// Cores of the VM, 1 to 64. Default 2.
	Cores int `json:"cores,omitempty"`
	// MemoryMiB of the VM, 256 to 65536. Default 1024.
	MemoryMiB int `json:"memoryMiB,omitempty"`
}

// Charts are the Helm charts Aether installs into tenants.
type Charts struct {
	// Cilium is the tenants' network.
	Cilium Chart `json:"cilium"`
}

// Chart says where a chart comes from. Exactly one of Path, OCI and Repository.
type Chart struct {
	// Path of an unpacked chart or a .tgz on the machine of the worker. A
	// relative name is relative to the site file.
	Path string `json:"path,omitempty"`
	// OCI is a reference as oci://registry/project/cilium.
	OCI string `json:"oci,omitempty"`
	// Repository is the URL of a chart repository, as https://helm.cilium.io.
	Repository string `json:"repository,omitempty"`
	// Name of the chart in the repository. Required with Repository.
	Name string `json:"name,omitempty"`
	// Version of the chart. Required with OCI and Repository; with Path it is
	// compared with what is found there when stated.
	Version string `json:"version,omitempty"`
	// Values are laid over Aether's own. Only known keys are taken; those
	// Aether computes (the API address, ranges, MTU) are refused.
	Values map[string]any `json:"values,omitempty"`
}

// Mirror says where workers pull a registry's images from.
type Mirror struct {
	// Host is the registry in the reference, as ghcr.io, or * for all others.
	Host string `json:"host"`
	// Endpoints are asked in order.
	Endpoints []MirrorEndpoint `json:"endpoints"`
	// SkipFallback stops workers from asking the registry itself when all
	// endpoints fail.
	SkipFallback bool `json:"skipFallback,omitempty"`
}

// MirrorEndpoint is one server that serves a registry's images.
type MirrorEndpoint struct {
	// URL with scheme, as https://harbor.example/v2/proxy-ghcr.io.
	URL string `json:"url"`
	// OverridePath takes the URL's path as it is. Harbor needs it: without
	// it /v2 is appended behind the project.
	OverridePath bool `json:"overridePath,omitempty"`
	// CA of the endpoint, when it is not publicly trusted.
	CA *Certificates `json:"ca,omitempty"`
}
