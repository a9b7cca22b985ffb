package proxmox

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Role is what a VM is for.
type Role string

// The roles.
const (
	RoleWorker Role = "worker"
	RoleProxy  Role = "proxy"
)

// Mark says whose a VM is. It stands in the VM's description from the clone
// on, and as tags from the first config write on. Only the description counts:
// a clone takes no tags, and people edit tags.
type Mark struct {
	Machine string // UUID of the machine
	Tenant  string
	Role    Role
}

const markHead = "Managed by Aether. Do not edit."

// Description is the VM description that carries the mark.
func (m Mark) Description() string {
	return fmt.Sprintf("%s\n\naether-machine: %s\naether-tenant: %s\naether-role: %s\n", markHead, m.Machine, m.Tenant, m.Role)
}

// Tags are the VM tags that go with the mark, sorted.
func (m Mark) Tags() []string {
	tags := []string{"aether", "aether-" + string(m.Role), "tenant-" + m.Tenant}
	slices.Sort(tags)
	return tags
}

// ParseMark reads the mark out of a VM's description. It returns false when
// there is none or it is not whole.
func ParseMark(description string) (Mark, bool) {
	value := func(key string) string {
		match := regexp.MustCompile(`(?m)^aether-` + key + `:[ \t]*(\S+)[ \t\r]*$`).FindStringSubmatch(description)
		if match == nil {
			return ""
		}
		return match[1]
	}
	m := Mark{Machine: strings.ToLower(value("machine")), Tenant: value("tenant"), Role: Role(value("role"))}
	if m.Machine == "" || m.Tenant == "" || m.Role != RoleWorker && m.Role != RoleProxy {
		return Mark{}, false
	}
	return m, true
}
