package proxmox

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Privilege is a privilege needed on a path.
type Privilege struct {
	Path string
	Name string
	For  string // what it is needed for
}

// String says the privilege and what it is for.
func (p Privilege) String() string {
	return fmt.Sprintf("%s on %s (%s)", p.Name, p.Path, p.For)
}

// Use says what of a cluster Aether works with.
type Use struct {
	FirstVMID int
	Templates []int
	Nodes     []string
	Disks     []string // storages of disks
	ISOs      []string // storages of images
	Bridges   []Attachment
	Pool      string
}

// Attachment is a bridge with the VLAN tag VMs get on it; 0: untagged.
type Attachment struct {
	Bridge string
	VLAN   int
}

// Needed lists the privileges that use takes, sorted by path.
func (u Use) Needed() []Privilege {
	var list []Privilege
	add := func(path, purpose string, names ...string) {
		for _, name := range names {
			list = append(list, Privilege{Path: path, Name: name, For: purpose})
		}
	}
	add("/", "read the cluster's state", "Sys.Audit")
	vms := fmt.Sprintf("/vms/%d", u.FirstVMID) // stands for all VMs: what holds here is inherited from /vms
	add(vms, "make and remove VMs", "VM.Allocate", "VM.Audit", "VM.PowerMgmt")
	add(vms, "configure VMs", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Cloudinit", "VM.Config.Disk",
		"VM.Config.HWType", "VM.Config.Memory", "VM.Config.Network", "VM.Config.Options")
	for _, vmid := range u.Templates {
		add(fmt.Sprintf("/vms/%d", vmid), "clone the template", "VM.Audit", "VM.Clone")
	}
	for _, node := range u.Nodes {
		add("/nodes/"+node, "read memory, tasks and bridges", "Sys.Audit")
	}
	for _, storage := range u.Disks {
		add("/storage/"+storage, "make disks", "Datastore.AllocateSpace", "Datastore.Audit")
	}
	for _, storage := range u.ISOs {
		add("/storage/"+storage, "upload and delete images", "Datastore.Allocate", "Datastore.AllocateTemplate", "Datastore.Audit")
	}
	for _, a := range u.Bridges {
		path := "/sdn/zones/localnetwork/" + a.Bridge
		if a.VLAN != 0 {
			path += fmt.Sprintf("/%d", a.VLAN)
		}
		add(path, "attach VMs to the bridge", "SDN.Audit", "SDN.Use")
	}
	if u.Pool != "" {
		add("/pool/"+u.Pool, "put VMs into the pool", "Pool.Allocate", "VM.Allocate")
	}
	slices.SortFunc(list, func(a, b Privilege) int { return strings.Compare(a.Path+" "+a.Name, b.Path+" "+b.Name) })
	return slices.CompactFunc(list, func(a, b Privilege) bool { return a.Path == b.Path && a.Name == b.Name })
}

// MissingPrivileges asks Proxmox what the token holds on each path and
// returns what it lacks of the needed, in their order.
func (c *Client) MissingPrivileges(ctx context.Context, needed []Privilege) ([]Privilege, error) {
	held := map[string]map[string]int{}
	var missing []Privilege
	for _, privilege := range needed {
		if _, asked := held[privilege.Path]; !asked {
			var answer map[string]map[string]int
			op := "read privileges on " + privilege.Path
			if err := c.call(ctx, op, http.MethodGet, "/access/permissions", map[string]any{"path": privilege.Path}, &answer); err != nil {
				return nil, err
			}
			held[privilege.Path] = answer[privilege.Path]
		}
		if _, ok := held[privilege.Path][privilege.Name]; !ok {
			missing = append(missing, privilege)
		}
	}
	return missing, nil
}
