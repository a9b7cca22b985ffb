package proxmox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Version asks for the version of Proxmox VE. It needs a valid token and no
// privilege.
func (c *Client) Version(ctx context.Context) (string, error) {
	var answer struct {
		Version string `json:"version"`
	}
	err := c.get(ctx, "read version", "/version", &answer)
	return answer.Version, err
}

// Node is a host of the cluster.
type Node struct {
	Name   string
	Online bool
}

// Nodes lists the hosts by name.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	var rows []struct {
		Node   string `json:"node"`
		Status string `json:"status"`
	}
	if err := c.get(ctx, "list nodes", "/nodes", &rows); err != nil {
		return nil, err
	}
	list := make([]Node, 0, len(rows))
	for _, row := range rows {
		list = append(list, Node{Name: row.Node, Online: row.Status == "online"})
	}
	slices.SortFunc(list, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Quorate tells whether the cluster takes writes. A single host always does.
func (c *Client) Quorate(ctx context.Context) (bool, error) {
	var rows []struct {
		Type    string `json:"type"`
		Quorate int    `json:"quorate"`
	}
	if err := c.get(ctx, "read cluster status", "/cluster/status", &rows); err != nil {
		return false, err
	}
	for _, row := range rows {
		if row.Type == "cluster" {
			return row.Quorate == 1, nil
		}
	}
	return true, nil
}

// NodeStatus is what a host has.
type NodeStatus struct {
	Name        string
	Cores       int // hardware threads
	MemoryBytes int64
	FreeBytes   int64 // memory free right now
}

// NodeStatus reads what a host has.
func (c *Client) NodeStatus(ctx context.Context, node string) (NodeStatus, error) {
	var answer struct {
		CPUInfo struct {
			CPUs int `json:"cpus"`
		} `json:"cpuinfo"`
		Memory struct {
			Total int64 `json:"total"`
			Free  int64 `json:"free"`
		} `json:"memory"`
	}
	err := c.get(ctx, "read status of node "+node, "/nodes/"+node+"/status", &answer)
	return NodeStatus{Name: node, Cores: answer.CPUInfo.CPUs, MemoryBytes: answer.Memory.Total, FreeBytes: answer.Memory.Free}, err
}

// VM is a virtual machine or container on a host.
type VM struct {
	VMID        int
	Node        string
	Name        string
	Running     bool
	Template    bool
	Container   bool
	Lock        string
	Tags        []string
	Cores       int
	MemoryBytes int64
	HAManaged   bool
}

type vmRow struct {
	VMID     json.Number     `json:"vmid"`
	Name     string          `json:"name"`
	Status   string          `json:"status"`
	Template json.RawMessage `json:"template"`
	Lock     string          `json:"lock"`
	Tags     string          `json:"tags"`
	CPUs     float64         `json:"cpus"`
	MaxMem   int64           `json:"maxmem"`
	HA       struct {
		Managed int `json:"managed"`
	} `json:"ha"`
}

func (r vmRow) vm(node string) VM {
	id, _ := strconv.Atoi(r.VMID.String()) //nolint:errcheck // 0 when it is no number, which matches no VM
	return VM{
		VMID: id, Node: node, Name: r.Name, Running: r.Status == "running",
		Template: truth(text(r.Template)), Lock: r.Lock, Tags: strings.FieldsFunc(r.Tags, func(c rune) bool { return c == ';' }),
		Cores: int(r.CPUs), MemoryBytes: r.MaxMem, HAManaged: r.HA.Managed == 1,
	}
}

// VMs lists what is on a host, VMs and containers, running or not, by VMID.
// The list is live, unlike the cluster's. It holds only what the token may
// see; CheckPrivileges says whether that is all.
func (c *Client) VMs(ctx context.Context, node string) ([]VM, error) {
	var list []VM
	for _, kind := range []string{"qemu", "lxc"} {
		var rows []vmRow
		if err := c.get(ctx, "list VMs of node "+node, "/nodes/"+node+"/"+kind, &rows); err != nil {
			return nil, err
		}
		for _, row := range rows {
			vm := row.vm(node)
			vm.Container = kind == "lxc"
			list = append(list, vm)
		}
	}
	slices.SortFunc(list, func(a, b VM) int { return a.VMID - b.VMID })
	return list, nil
}

// Observed is a VM as it is right now, with the mark in its description.
type Observed struct {
	VM     VM
	Config VMConfig
	Mark   Mark
	Marked bool
}

// Belongs returns nil when the VM carries the mark of that machine.
// ErrPending: not yet, it is being made. ErrNotOurs: it is another's.
func (o Observed) Belongs(machine string) error {
	op := fmt.Sprintf("check mark of VM %d on %s", o.VM.VMID, o.VM.Node)
	switch {
	case o.VM.Template || o.Config.Template:
		return &Error{Op: op, Kind: ErrNotOurs, Message: "it is a template; templates are never written"}
	case o.Marked && strings.EqualFold(o.Mark.Machine, machine):
		return nil
	case o.Marked:
		return &Error{Op: op, Kind: ErrNotOurs, Message: fmt.Sprintf("its mark names machine %s of tenant %s, expected %s", o.Mark.Machine, o.Mark.Tenant, machine)}
	case o.lock() != "":
		return &Error{Op: op, Kind: ErrPending, Message: "it has no mark yet and is locked (" + o.lock() + ")"}
	default:
		return &Error{Op: op, Kind: ErrNotOurs, Message: fmt.Sprintf("VM %q has no mark of Aether; it belongs to someone else", o.VM.Name)}
	}
}

func (o Observed) lock() string {
	if o.Config.Lock != "" {
		return o.Config.Lock
	}
	return o.VM.Lock
}

// VM reads a VM on a host. ErrNotFound: it is not on that host.
func (c *Client) VM(ctx context.Context, node string, vmid int) (Observed, error) {
	op := fmt.Sprintf("read VM %d on %s", vmid, node)
	var row vmRow
	if err := c.get(ctx, op, vmPath(node, vmid)+"/status/current", &row); err != nil {
		return Observed{}, err
	}
	config, err := c.VMConfig(ctx, node, vmid)
	if err != nil {
		return Observed{}, err
	}
	o := Observed{VM: row.vm(node), Config: config}
	o.VM.VMID = vmid
	o.Mark, o.Marked = ParseMark(config.Description)
	return o, nil
}

// VMConfig reads a VM's configuration.
func (c *Client) VMConfig(ctx context.Context, node string, vmid int) (VMConfig, error) {
	var raw map[string]json.RawMessage
	if err := c.get(ctx, fmt.Sprintf("read configuration of VM %d on %s", vmid, node), vmPath(node, vmid)+"/config", &raw); err != nil {
		return VMConfig{}, err
	}
	return parseConfig(raw)
}

func vmPath(node string, vmid int) string { return fmt.Sprintf("/nodes/%s/qemu/%d", node, vmid) }

// FindVM looks for a VMID on all hosts and reads the VM. ErrNotFound: no host
// has it. ErrForbidden: it exists and the token may not see it.
func (c *Client) FindVM(ctx context.Context, vmid int) (Observed, error) {
	op := fmt.Sprintf("find VM %d", vmid)
	var rows []struct {
		VMID int    `json:"vmid"`
		Node string `json:"node"`
		Type string `json:"type"`
	}
	if err := c.call(ctx, op, http.MethodGet, "/cluster/resources", map[string]any{"type": "vm"}, &rows); err != nil {
		return Observed{}, err
	}
	for _, row := range rows {
		if row.VMID == vmid && row.Type == "qemu" {
			return c.VM(ctx, row.Node, vmid)
		}
	}
	// Rows the token may not see are left out in silence: ask whether the
	// VMID is free before calling it absent.
	taken, err := c.VMIDTaken(ctx, vmid)
	if err != nil {
		return Observed{}, err
	}
	if taken {
		return Observed{}, &Error{Op: op, Kind: ErrForbidden, Privilege: "VM.Audit", Path: "/vms/" + strconv.Itoa(vmid), Message: "the VMID is taken by something the token may not see"}
	}
	return Observed{}, &Error{Op: op, Kind: ErrNotFound}
}

// VMIDTaken tells whether anything in the cluster has the VMID. Proxmox
// reserves nothing by answering: the VMID's Lease does.
func (c *Client) VMIDTaken(ctx context.Context, vmid int) (bool, error) {
	err := c.get(ctx, fmt.Sprintf("check VMID %d", vmid), fmt.Sprintf("/cluster/nextid?vmid=%d", vmid), nil)
	if errors.Is(err, ErrAlreadyExists) {
		return true, nil
	}
	return false, err
}
