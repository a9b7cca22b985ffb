package site

import "net/netip"

// APIVersion and Kind are what a site file states as its type.
const (
	APIVersion = "aether.internal/v1alpha1"
	Kind       = "Site"
)

// LowestVMID is the lowest VMID Aether ever writes. VMIDs below it belong to
// templates and to the operator.
const LowestVMID = 1000

// Site is the whole site file.
type Site struct {
	// APIVersion is aether.internal/v1alpha1.
	APIVersion string `json:"apiVersion"`
	// Kind is Site.
	Kind string `json:"kind"`
	// Metadata names the site.
	Metadata Metadata `json:"metadata"`
	// Spec describes it.
	Spec Spec `json:"spec"`
}

// Metadata names the site.
type Metadata struct {
	// Name is a DNS label. It appears in messages only.
	Name string `json:"name"`
}

// Spec describes a site.
type Spec struct {
	// Proxmox are the Proxmox VE clusters, at least one.
	Proxmox []Cluster `json:"proxmox"`
	// Networks are the networks VMs are attached to. At least one of kind
	// management and one of kind tenant.
	Networks []Network `json:"networks"`
	// Management describes the management Kubernetes cluster.
	Management Management `json:"management"`
	// Proxy says where the proxy VMs find the platform.
	Proxy Proxy `json:"proxy"`
	// Versions are the versions Aether may install.
	Versions Versions `json:"versions"`
	// Images are the repositories the node and control plane images come from.
	Images Images `json:"images,omitempty"`
	// MachineClasses are the sizes a pool may choose from, at least one.
	MachineClasses []MachineClass `json:"machineClasses"`
	// ProxyClass is the size of the proxy VMs. Default: 2 cores, 1024 MiB,
	// the template's disk.
	ProxyClass ProxyClass `json:"proxyClass,omitempty"`
	// Charts are the Helm charts Aether installs into tenants.
	Charts Charts `json:"charts"`
	// Mirrors say where workers pull images from instead of the registry
	// named in the reference. Empty: workers need the Internet.
	Mirrors []Mirror `json:"mirrors,omitempty"`
	// TrustedRoots are certificate authorities every worker trusts, for
	// instance Harbor's.
	TrustedRoots []Certificates `json:"trustedRoots,omitempty"`
	// Defaults are what a tenant gets when it does not say.
	Defaults Defaults `json:"defaults"`
	// ReservedCIDRs are ranges used elsewhere that must be reachable, so no
	// tenant's pods or services may use them. Networks above need not be
	// repeated.
	ReservedCIDRs []netip.Prefix `json:"reservedCIDRs,omitempty"`
}

// Management describes the management Kubernetes cluster.
type Management struct {
	// PodCIDR is the pod range of the management cluster.
	PodCIDR netip.Prefix `json:"podCIDR"`
	// ServiceCIDR is the service range of the management cluster.
	ServiceCIDR netip.Prefix `json:"serviceCIDR"`
	// DataStores are the names of Kamaji's DataStore objects tenants may use.
	DataStores []string `json:"dataStores"`
}

// Proxy says where a proxy VM finds the platform. Both are addresses on the
// management network, without a name: the proxy VM has no resolver to trust
// before it enrolled.
type Proxy struct {
	// XDS is address:port of the xDS server.
	XDS netip.AddrPort `json:"xds"`
	// Enrolment is address:port where the agent trades its one-time token
	// for a certificate.
	Enrolment netip.AddrPort `json:"enrolment"`
}

// Defaults are what a tenant gets when it does not say.
type Defaults struct {
	// PodCIDR is the pod range of a tenant.
	PodCIDR netip.Prefix `json:"podCIDR"`
	// ServiceCIDR is the service range of a tenant.
	ServiceCIDR netip.Prefix `json:"serviceCIDR"`
	// DNSDomain is the cluster domain. Default cluster.local.
	DNSDomain string `json:"dnsDomain,omitempty"`
	// DataStore is the Kamaji DataStore, one of management.dataStores.
	DataStore string `json:"dataStore"`
	// Kubernetes is the version, one of versions.kubernetes.
	Kubernetes string `json:"kubernetes"`
	// MachineClass is the class of a pool, one of machineClasses.
	MachineClass string `json:"machineClass"`
	// Cluster is the Proxmox cluster, one of proxmox.
	Cluster string `json:"cluster"`
	// Networks are the networks a tenant's VMs are attached to.
	Networks NetworkChoice `json:"networks"`
}

// NetworkChoice names one network per role.
type NetworkChoice struct {
	// Management is the network of kind management the proxy VM reaches the
	// tenant's control plane over.
	Management string `json:"management"`
	// Tenant is the network of kind tenant workers and the proxy's front are on.
	Tenant string `json:"tenant"`
	// Storage is the network of kind storage workers get a second card on.
	// Empty: none.
	Storage string `json:"storage,omitempty"`
}
