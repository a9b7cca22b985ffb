package site

import "net/netip"

// Cluster is one Proxmox VE cluster: the hosts that share users and VMIDs.
type Cluster struct {
	// Name is a DNS label. Leases carry it, so it never changes.
	Name string `json:"name"`
	// Endpoints are the URLs of the API, https://<host>:8006, of at least one
	// host; with more, the client fails over.
	Endpoints []string `json:"endpoints"`
	// Token is the API token, USER@REALM!TOKENID=SECRET.
	Token SecretSource `json:"token"`
	// TLS pins the API's certificate.
	TLS TLS `json:"tls"`
	// SSH is the door for flushing neighbour caches on a host. Without it
	// Aether waits for the caches to expire.
	SSH *SSH `json:"ssh,omitempty"`
	// VMIDs is the range Aether allocates from: 1000 or above.
	VMIDs VMIDRange `json:"vmids"`
	// Pool is the Proxmox resource pool new VMs are put in. Empty: none.
	Pool string `json:"pool,omitempty"`
	// Hosts are the cluster's hosts that Aether may use.
	Hosts []Host `json:"hosts"`
}

// SecretSource says where a secret value is. Exactly one of Secret and File.
type SecretSource struct {
	// Secret is a Secret in the management cluster.
	Secret *SecretReference `json:"secret,omitempty"`
	// File is a file on the machine of the worker that holds the value alone.
	// A relative name is relative to the site file.
	File string `json:"file,omitempty"`
}

// SecretReference names one key of a Secret in the management cluster.
type SecretReference struct {
	// Namespace of the Secret.
	Namespace string `json:"namespace"`
	// Name of the Secret.
	Name string `json:"name"`
	// Key in the Secret's data. Default: the only key the Secret has.
	Key string `json:"key,omitempty"`
}

// TLS pins a server's certificate: by CA, by fingerprints, or both. One of
// them is required; an unverified connection is never made.
type TLS struct {
	// CA is the certificate authority, for Proxmox /etc/pve/pve-root-ca.pem.
	CA *Certificates `json:"ca,omitempty"`
	// Fingerprints are SHA-256 fingerprints of server certificates, as
	// AA:BB:…, one for each host, since each has its own.
	Fingerprints []string `json:"fingerprints,omitempty"`
}

// Certificates are PEM certificates. Exactly one of PEM and File.
type Certificates struct {
	// PEM holds the certificates themselves.
	PEM string `json:"pem,omitempty"`
	// File names a file that holds them. A relative name is relative to the
	// site file. Load reads it into PEM.
	File string `json:"file,omitempty"`
}

// SSH is the door to the hosts of a cluster. It is used for one command:
// ip neigh flush to <address> dev <bridge>.
type SSH struct {
	// User to log in as.
	User string `json:"user"`
	// Port of the SSH server. Default 22.
	Port int `json:"port,omitempty"`
	// Key is the private key.
	Key SecretSource `json:"key"`
	// KnownHosts are lines in the format of known_hosts. Exactly one of
	// KnownHosts and KnownHostsFile.
	KnownHosts []string `json:"knownHosts,omitempty"`
	// KnownHostsFile names a file of such lines. A relative name is relative
	// to the site file. Load reads it into KnownHosts.
	KnownHostsFile string `json:"knownHostsFile,omitempty"`
}

// VMIDRange is a range of VMIDs, both ends included.
type VMIDRange struct {
	// From is the first VMID, 1000 or more.
	From int `json:"from"`
	// To is the last VMID, at most 999999999.
	To int `json:"to"`
}

// Host is one Proxmox VE host.
type Host struct {
	// Name is the node's name as Proxmox shows it, never a full domain name:
	// Proxmox answers 596 for those.
	Name string `json:"name"`
	// Address is the host's IP address, for the SSH door.
	Address netip.Addr `json:"address"`
	// Reserve is what is left to the host itself.
	Reserve Reserve `json:"reserve,omitempty"`
	// VCPUsPerCore is how many virtual CPUs may be promised per real one.
	// Default 4, at most 32.
	VCPUsPerCore int `json:"vcpusPerCore,omitempty"`
	// Storage says where disks and ISO images go.
	Storage Storage `json:"storage"`
	// Templates are the VMIDs of the templates on this host. Proxmox cannot
	// clone from another host's local storage, so each host has its own.
	Templates Templates `json:"templates"`
	// Bridges are the names of the bridges that VMs may be attached to.
	Bridges []string `json:"bridges"`
}

// Reserve is what is never promised to a VM.
type Reserve struct {
	// MemoryMiB for Proxmox itself. Default 0.
	MemoryMiB int `json:"memoryMiB,omitempty"`
	// Cores for Proxmox itself, in real cores. Default 0.
	Cores int `json:"cores,omitempty"`
}

// Storage names a host's storages.
type Storage struct {
	// Disks is the storage of VM disks.
	Disks string `json:"disks"`
	// ISO is the storage of uploaded ISO images; it must allow content iso.
	ISO string `json:"iso"`
	// CloneMode is linked (default: quick, needs the template on Disks) or
	// full (independent of the template).
	CloneMode CloneMode `json:"cloneMode,omitempty"`
	// CloneSlots is how many clones may run at once on Disks, over all
	// tenants and workers. Default 2, at most 16.
	CloneSlots int `json:"cloneSlots,omitempty"`
}

// CloneMode is how disks are made from a template.
type CloneMode string

// The clone modes.
const (
	LinkedClone CloneMode = "linked"
	FullClone   CloneMode = "full"
)

// Templates are VMIDs of templates, 100 to 999.
type Templates struct {
	// Worker is the Talos template.
	Worker int `json:"worker"`
	// Proxy is the Envoy template.
	Proxy int `json:"proxy"`
}
