package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Role says what a virtual machine is for.
type Role string

// The roles.
const (
	RoleWorker Role = "Worker"
	RoleProxy  Role = "Proxy"
)

// AetherVMSpec is the intent to have one virtual machine. It is written before
// anything is made in Proxmox VE, and filled in as leases are taken. Its name
// is the machine ID: the SMBIOS UUID of the VM, the workflow ID and the holder
// of every Lease.
type AetherVMSpec struct {
	// tenant the VM belongs to.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="tenant cannot be changed"
	Tenant string `json:"tenant"`

	// role is Worker or Proxy.
	// +required
	// +kubebuilder:validation:Enum=Worker;Proxy
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="role cannot be changed"
	Role Role `json:"role"`

	// pool of a worker.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Pool string `json:"pool,omitempty"`

	// generation of a proxy: 1 for the first, counted up by each rotation.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Generation int64 `json:"generation,omitempty"`

	// class of the machine in the site.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Class string `json:"class,omitempty"`

	// proxmoxCluster is the name of the Proxmox cluster in the site.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ProxmoxCluster string `json:"proxmoxCluster"`

	// host is the Proxmox node.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Host string `json:"host"`

	// vmName is the name of the VM, and the host name and Node name of a worker.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	VMName string `json:"vmName"`

	// cores of the VM.
	// +required
	// +kubebuilder:validation:Minimum=1
	Cores int32 `json:"cores"`
	// memoryMiB is the memory of the VM.
	// +required
	// +kubebuilder:validation:Minimum=128
	MemoryMiB int32 `json:"memoryMiB"`
	// diskGiB is the size of the first disk; 0 keeps the template's.
	// +optional
	// +kubebuilder:validation:Minimum=0
	DiskGiB int32 `json:"diskGiB,omitempty"`

	// vmid is the leased VMID; 0 until the lease is held. It changes only while
	// nothing was cloned to it: when it turns out that something outside of
	// Aether has it, another is leased.
	// +optional
	// +kubebuilder:validation:Minimum=1000
	// +kubebuilder:validation:Maximum=999999999
	VMID int32 `json:"vmid,omitempty"`

	// nics are the network cards in order: net0, net1.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	NICs []NIC `json:"nics,omitempty"`

	// claimRef is the AetherMachine that has claimed the VM.
	// +optional
	ClaimRef ClaimReference `json:"claimRef,omitzero"`
}

// NIC is one network card of a VM with its leased address.
type NIC struct {
	// network of the site.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Network string `json:"network"`
	// mac is chosen by Aether, lower case.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{2}:){5}[0-9a-f]{2}$`
	MAC string `json:"mac,omitempty"`
	// address with its prefix length, as 10.1.1.50/24; empty until leased.
	// +optional
	// +kubebuilder:validation:MaxLength=18
	Address string `json:"address,omitempty"`
}

// ClaimReference names the object that uses a VM. The UID is told for people;
// namespace and name count, so that a claim survives clusterctl move.
type ClaimReference struct {
	// namespace of the AetherMachine.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// name of the AetherMachine.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// uid of the AetherMachine when it claimed.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid,omitempty"`
}

// AetherVMStatus is the VM as it was last seen.
type AetherVMStatus struct {
	// phase is for people: Pending, Cloning, Booting, Joining, Usable, Removing,
	// Removed or Failed.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Phase string `json:"phase,omitempty"`
	// conditions of the VM.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// task is the UPID of the Proxmox task that was last waited for.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Task string `json:"task,omitempty"`
	// nodeName is the Node the worker registered as.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`
}

// AetherVM is the durable record of one virtual machine. It lives in the
// namespace aether-system.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=aethervms,scope=Namespaced,categories=cluster-api,shortName=avm
// +kubebuilder:printcolumn:name="Tenant",type=string,JSONPath=`.spec.tenant`
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=`.spec.role`
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.spec.host`
// +kubebuilder:printcolumn:name="VMID",type=integer,JSONPath=`.spec.vmid`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Name",type=string,priority=1,JSONPath=`.spec.vmName`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AetherVM struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the intent.
	// +required
	Spec AetherVMSpec `json:"spec"`
	// status is the VM as it was last seen.
	// +optional
	Status AetherVMStatus `json:"status,omitzero"`
}

// AetherVMList is a list of AetherVMs.
//
// +kubebuilder:object:root=true
type AetherVMList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AetherVM `json:"items"`
}
