package domain

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/google/uuid"
)

// SystemNamespace is the platform's own namespace in the management cluster:
// AetherVMs and Leases live there.
const SystemNamespace = "aether-system"

// FieldManager is the name Aether's server-side applies go by. The number of
// replicas of a MachineDeployment is set under ReplicasFieldManager instead,
// or the next apply would drop it.
const (
	FieldManager         = "aether"
	ReplicasFieldManager = "aether-replicas"
	DoorFieldManager     = "aether-door"
)

// Labels and annotations that Aether puts on objects.
const (
	// TenantLabel names the tenant an object belongs to.
	TenantLabel = "aether.internal/tenant"
	// PoolLabel names the pool an object belongs to.
	PoolLabel = "aether.internal/pool"
	// HostLabel names the Proxmox host an object belongs to.
	HostLabel = "aether.internal/host"
	// RoleLabel is worker or proxy.
	RoleLabel = "aether.internal/role"
	// CreatedByLabel marks what Aether created and may therefore delete.
	CreatedByLabel = "aether.internal/created-by"
	// RetryAnnotation on an AetherCluster asks for another try after a failure:
	// any new value starts the workflow again.
	RetryAnnotation = "aether.internal/retry"
)

// MachineID is the identity of one virtual machine: a UUID minted before
// anything is made. It is the name of the AetherVM, the SMBIOS UUID, the last
// segment of the provider ID, the workflow ID and the holder of every Lease.
type MachineID string

// NewMachineID mints a machine ID. It is random, so workflows must get theirs
// from an activity.
func NewMachineID() MachineID { return MachineID(uuid.NewString()) }

// ParseMachineID accepts a UUID in its usual lower-case form.
func ParseMachineID(text string) (MachineID, error) {
	id, err := uuid.Parse(text)
	if err != nil || id.String() != text {
		return "", fmt.Errorf("machine ID: %q is not allowed; give a UUID in lower case, as 6f1e0c52-8e0f-4a36-9a0e-0f6f2a3c4d5e", text)
	}
	return MachineID(text), nil
}

// Short returns the first block of the UUID, for names.
func (id MachineID) Short() string {
	first, _, _ := strings.Cut(string(id), "-")
	return first
}

// providerScheme is the scheme of provider IDs. The autoscaler keys machines
// by the text after the last slash, so that segment is unique by itself.
const providerScheme = "aether://"

// ProviderID returns the provider ID of a tenant's machine.
func ProviderID(tenant string, id MachineID) string {
	return providerScheme + tenant + "/" + string(id)
}

// ParseProviderID splits a provider ID into tenant and machine ID.
func ParseProviderID(text string) (tenant string, id MachineID, err error) {
	rest, ok := strings.CutPrefix(text, providerScheme)
	tenant, last, found := strings.Cut(rest, "/")
	if !ok || !found || tenant == "" {
		return "", "", fmt.Errorf("provider ID: %q is not one of Aether's; expected %s<tenant>/<machine ID>", text, providerScheme)
	}
	id, err = ParseMachineID(last)
	if err != nil {
		return "", "", fmt.Errorf("provider ID %q: %w", text, err)
	}
	return tenant, id, nil
}

// TenantNamespace returns the tenant's namespace in the management cluster.
func TenantNamespace(tenant string) string { return "tenant-" + tenant }

// WorkerName returns the name of a worker's VM, which is also its host name
// and the name of its Node: at most 62 characters for names the API accepts.
func WorkerName(tenant, pool string, id MachineID) string {
	return fmt.Sprintf("%s-%s-%s", tenant, pool, id.Short())
}

// ProxyName returns the name of a proxy's VM.
func ProxyName(tenant string, generation int64) string {
	return fmt.Sprintf("%s-proxy-%d", tenant, generation)
}

// WorkerMAC returns the MAC of a worker's card: it follows from the machine ID
// and the card's index, so a repeated attempt chooses the same.
func WorkerMAC(id MachineID, nic int) net.HardwareAddr {
	return localMAC(fmt.Sprintf("machine/%s/%d", id, nic))
}

// ProxyMAC returns the MAC that goes with a tenant's proxy address. It belongs
// to the address and not to the VM, so a replacement needs no new ARP entry.
func ProxyMAC(tenantAddress netip.Addr) net.HardwareAddr {
	return localMAC("address/" + tenantAddress.String())
}

// localMAC makes a locally administered unicast MAC from a text.
func localMAC(text string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(text))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^0x01 | 0x02
	return mac
}
