package plan

// Observed is the state of the site a plan is made from. Activities fill it.
type Observed struct {
	// Hosts are the hosts of the site, also those that do not answer.
	Hosts []Host `json:"hosts"`
	// Quorate tells whether the Proxmox cluster can write.
	Quorate bool `json:"quorate"`
	// MissingPrivileges are what the token lacks, as "VM.Clone on /vms/901".
	MissingPrivileges []string `json:"missingPrivileges,omitempty"`
	// FreeVMIDs is how many VMIDs of the site's range are neither leased nor in
	// use by others.
	FreeVMIDs int `json:"freeVMIDs"`
	// VMIDRange is the site's range, for people.
	VMIDRange string `json:"vmidRange"`
	// FreeWorkerAddresses and FreeProxyAddresses count what is left in the
	// ranges of the tenant's network, by network name.
	FreeWorkerAddresses map[string]int `json:"freeWorkerAddresses"`
	// FreeProxyAddresses counts free proxy addresses by network name.
	FreeProxyAddresses map[string]int `json:"freeProxyAddresses"`
	// Images are the results of asking the mirrors for what a worker boots.
	Images []Image `json:"images,omitempty"`
	// Leased tells that this tenant already holds its proxy: VMs that exist are
	// not counted twice.
	ExistingProxy bool `json:"existingProxy,omitempty"`
	// ExistingWorkers counts the tenant's workers by pool and host.
	ExistingWorkers []PoolOnHost `json:"existingWorkers,omitempty"`
}

// Host is one Proxmox host as observed.
type Host struct {
	Name    string `json:"name"`
	Cluster string `json:"cluster"`
	// Problem says why the host cannot be asked; empty when it answers.
	Problem string `json:"problem,omitempty"`
	// MemoryMiB that may be promised to VMs: total without the reserve.
	MemoryMiB int64 `json:"memoryMiB"`
	// VCPUs that may be promised to VMs.
	VCPUs int64 `json:"vcpus"`
	// Holders are who holds what of it: our VMs and foreign ones, running or
	// stopped.
	Holders []Holder `json:"holders,omitempty"`
	// DiskFreeGiB on the storage of VM disks.
	DiskFreeGiB int64 `json:"diskFreeGiB"`
	// Bridges of the host.
	Bridges []Bridge `json:"bridges,omitempty"`
	// TemplateProblems are what is wrong with the host's templates.
	TemplateProblems []string `json:"templateProblems,omitempty"`
	// TemplateDiskGiB is the size of the worker template's disk.
	TemplateDiskGiB int64 `json:"templateDiskGiB,omitempty"`
}

// Holder is a VM that holds memory and CPUs of a host.
type Holder struct {
	Name      string `json:"name"`
	MemoryMiB int64  `json:"memoryMiB"`
	VCPUs     int64  `json:"vcpus"`
	Foreign   bool   `json:"foreign,omitempty"`
	Stopped   bool   `json:"stopped,omitempty"`
}

// Bridge is a bridge of a host.
type Bridge struct {
	Name      string `json:"name"`
	VLANAware bool   `json:"vlanAware"`
}

// Image is one image a worker needs before or while it boots.
type Image struct {
	Ref     string `json:"ref"`
	Problem string `json:"problem,omitempty"`
}

// PoolOnHost counts workers of a pool on a host.
type PoolOnHost struct {
	Pool  string `json:"pool"`
	Host  string `json:"host"`
	Count int32  `json:"count"`
}

// MemoryFreeMiB is what can still be promised.
func (h Host) MemoryFreeMiB() int64 {
	free := h.MemoryMiB
	for _, holder := range h.Holders {
		free -= holder.MemoryMiB
	}
	return free
}

// VCPUsFree is what can still be promised.
func (h Host) VCPUsFree() int64 {
	free := h.VCPUs
	for _, holder := range h.Holders {
		free -= holder.VCPUs
	}
	return free
}
