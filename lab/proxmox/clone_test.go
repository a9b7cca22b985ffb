package proxmox_test

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"

	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/proxmox"
	"aether.internal/aether/lab/proxmox/access"
)

// withExtras adds VMs of all kinds that a clone can fail on.
func withExtras(c *proxmox.Config) {
	image := machine.Image{OS: "blank"}
	c.Machines = []proxmox.Machine{
		{VMID: 500, Node: "pv1-1", Name: "plain", Image: image, DiskGiB: 8, MemoryMiB: 1024, Options: map[string]string{"net0": "virtio,bridge=vmbr0,tag=4"}},
		{VMID: 501, Node: "pv1-1", Name: "locked", Image: image, DiskGiB: 1, Options: map[string]string{"lock": "backup"}},
		{VMID: 502, Node: "pv1-2", Name: "elsewhere", Image: image, DiskGiB: 1},
		{VMID: 503, Node: "pv1-1", Name: "discless", Options: map[string]string{"ide2": "none,media=cdrom"}},
	}
	c.Templates = append(c.Templates, proxmox.Template{VMID: 190, Node: "pv1-1", Name: "flagged", Image: image, DiskGiB: 1, FlagOnly: true})
	c.Pools = []string{"tenants"}
}

func TestCloneRefusals(t *testing.T) {
	l := start(t, withExtras)
	cloner := l.user("cloner@pve", map[string]string{"/vms/101": "PVETemplateUser", "/storage": "PVEDatastoreAdmin", "/sdn": "PVESDNUser"})
	noStorage := l.user("nostorage@pve", map[string]string{"/vms": "PVEVMAdmin", "/sdn": "PVESDNUser"})
	noBridge := l.user("nobridge@pve", map[string]string{"/vms": "PVEVMAdmin", "/storage": "PVEDatastoreAdmin"})
	pooled := l.user("pooled@pve", map[string]string{
		"/vms/101": "PVETemplateUser", "/pool/tenants": "PVEVMAdmin", "/storage": "PVEDatastoreAdmin", "/sdn": "PVESDNUser",
	})
	type form = map[string]string
	for name, c := range map[string]struct {
		token  string
		source int
		form   form
		status string
	}{
		"missing source":    {l.secret, 999, form{"newid": "1000"}, "500 unable to find configuration file for VM 999 on node 'pv1-1'"},
		"source elsewhere":  {l.secret, 502, form{"newid": "1000"}, "500 unable to find configuration file for VM 502 on node 'pv1-1'"},
		"missing pool":      {l.secret, 101, form{"newid": "1000", "pool": "x"}, "403 Permission check failed (pool 'x' does not exist)"},
		"missing target":    {l.secret, 101, form{"newid": "1000", "target": "pv9"}, "500 no such cluster node 'pv9'"},
		"missing storage":   {l.secret, 101, form{"newid": "1000", "storage": "ceph", "full": "1"}, "500 storage 'ceph' does not exist"},
		"wrong storage":     {l.secret, 101, form{"newid": "1000", "storage": "local", "full": "1"}, "400 Parameter verification failed."},
		"non-shared target": {l.secret, 101, form{"newid": "1000", "storage": "local-lvm", "full": "1", "target": "pv1-2"}, "500 can't clone to non-shared storage 'local-lvm'"},
		"locked":            {l.secret, 501, form{"newid": "1000"}, "500 VM is locked (backup)"},
		"missing snapshot":  {l.secret, 500, form{"newid": "1000", "snapname": "s1"}, "500 snapshot 's1' does not exist"},
		"linked storage":    {l.secret, 101, form{"newid": "1000", "storage": "local-lvm"}, "500 parameter 'storage' not allowed for linked clones"},
		"linked format":     {l.secret, 101, form{"newid": "1000", "format": "raw"}, "500 parameter 'format' not allowed for linked clones"},
		"other node":        {l.secret, 101, form{"newid": "1000", "target": "pv1-2", "full": "1"}, "500 can't clone VM to node 'pv1-2' (VM uses local storage)"},
		"existing":          {l.secret, 101, form{"newid": "500"}, "500 unable to create VM 500: config file already exists"},
		"linked plain":      {l.secret, 500, form{"newid": "1000", "full": "0"}, "500 Linked clone feature is not supported for 'local-lvm:vm-500-disk-0' (scsi0)"},
		"linked flagged":    {l.secret, 190, form{"newid": "1000"}, "500 Linked clone feature is not supported for 'local-lvm:vm-190-disk-0' (scsi0)"},
		"bad format":        {l.secret, 101, form{"newid": "1000", "format": "vdi", "full": "1"}, "400 Parameter verification failed."},
		"small id":          {l.secret, 101, form{"newid": "99"}, "400 Parameter verification failed."},
		"no right at all":   {l.user("none@pve", nil), 101, form{"newid": "1000"}, "403 Permission check failed (/vms/101, VM.Clone)"},
		"no new vm":         {cloner, 101, form{"newid": "1000"}, "403 Permission check failed"},
		"no storage right":  {noStorage, 101, form{"newid": "1000"}, "403 Permission check failed (/storage/local-lvm, Datastore.AllocateSpace)"},
		"no bridge right":   {noBridge, 101, form{"newid": "1000"}, "403 Permission check failed (/sdn/zones/localnetwork/vmbr0, SDN.Use)"},
		"no tag right":      {noBridge, 500, form{"newid": "1000"}, "403 Permission check failed (/sdn/zones/localnetwork/vmbr0/4, SDN.Use)"},
		"pool needed":       {pooled, 101, form{"newid": "1000"}, "403 Permission check failed"},
	} {
		t.Run(name, func(t *testing.T) {
			got := l.as(c.token, "pv1-1", "POST", fmt.Sprintf("/nodes/pv1-1/qemu/%d/clone", c.source), c.form)
			if got.status != c.status {
				t.Errorf("got %q %v, want %q", got.status, got.errors, c.status)
			}
			if _, there := l.find(1000); there {
				t.Error("a VM was made")
			}
		})
	}
	t.Run("pool is enough", func(t *testing.T) {
		upid := l.upid(l.as(pooled, "pv1-1", "POST", "/nodes/pv1-1/qemu/101/clone", form{"newid": "1001", "pool": "tenants"}))
		if exit := l.wait(upid); exit != "OK" {
			t.Fatal(exit)
		}
		if a := l.as(pooled, "pv1-1", "GET", "/nodes/pv1-1/qemu/1001/config", nil); a.status != "200 OK" {
			t.Error(a.status)
		}
	})
}

func TestCloneResult(t *testing.T) {
	l := start(t, withExtras)
	source, _ := l.find(101)
	for name, c := range map[string]struct {
		id   int
		from int
		form map[string]string
		disk string
		log  string
		want map[string]string
	}{
		"linked": {
			1000, 101,
			map[string]string{"name": "w1", "description": "mark"},
			"local-lvm:vm-1000-disk-0,size=10G",
			"create linked clone of drive scsi0 (local-lvm:base-101-disk-0)\n  Logical volume \"vm-1000-disk-0\" created.",
			map[string]string{"name": "w1", "description": "mark", "ide2": "local-lvm:vm-1000-cloudinit,media=cdrom,size=4M"},
		},
		"full": {
			1001, 101,
			map[string]string{"full": "1"},
			"local-lvm:vm-1001-disk-0,size=10G",
			"transferred 10.0 GiB of 10.0 GiB (100.00%)",
			map[string]string{"name": "Copy-of-VM-talos-pv1-1"},
		},
		"full qcow2 falls back": {
			1002, 101,
			map[string]string{"full": "1", "format": "qcow2"},
			"local-lvm:vm-1002-disk-0,size=10G",
			"format 'qcow2' is not supported by the target storage 'local-lvm' - using 'raw' instead", nil,
		},
		"plain is full": {1003, 500, nil, "local-lvm:vm-1003-disk-0,size=8G", "create full clone of drive scsi0 (local-lvm:vm-500-disk-0)", nil},
	} {
		t.Run(name, func(t *testing.T) {
			form := map[string]string{"newid": strconv.Itoa(c.id)}
			maps.Copy(form, c.form)
			upid := l.upid(l.do("POST", fmt.Sprintf("/nodes/pv1-1/qemu/%d/clone", c.from), form))
			if want := fmt.Sprintf(":qmclone:%d:aether@pve!lab:", c.from); !strings.HasSuffix(upid, want) {
				t.Errorf("upid %s", upid)
			}
			if exit := l.wait(upid); exit != "OK" {
				t.Fatal(exit)
			}
			if log := l.log(upid); !strings.Contains(log, c.log) || !strings.HasSuffix(log, "\nTASK OK") {
				t.Errorf("log:\n%s", log)
			}
			v, _ := l.find(c.id)
			if v.Config["scsi0"] != c.disk || v.Template || v.Lock != "" {
				t.Errorf("made %+v", v)
			}
			for key, want := range c.want {
				if v.Config[key] != want {
					t.Errorf("%s: %q, want %q", key, v.Config[key], want)
				}
			}
			if v.UUID == "" || v.UUID == source.UUID || v.Config["net0"] == source.Config["net0"] || v.Config["vmgenid"] == source.Config["vmgenid"] {
				t.Error("identity was copied")
			}
		})
	}
}

// TestCloneInFlight looks at a VM while it is made.
func TestCloneInFlight(t *testing.T) {
	l := startAt(t, slow)
	upid := l.upid(l.do("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1000", "name": "w1", "full": "1"}))
	l.eventually("the configuration appears", func() bool { _, ok := l.find(1000); return ok })
	v, _ := l.find(1000)
	if v.Lock != "clone" || v.Config["scsi0"] != "" {
		t.Errorf("in flight: %+v", v)
	}
	if name := l.get("/nodes/pv1-1/qemu/1000/status/current")["name"]; name != "VM 1000" && name != "w1" {
		t.Errorf("shows as %v", name)
	}
	if a := l.do("POST", "/nodes/pv1-1/qemu/1000/template", nil); a.status != "500 VM is locked (clone)" {
		t.Errorf("template: %s", a.status)
	}
	// The file lock is held for the whole copy, which takes longer than 10 s.
	if a := l.do("POST", "/nodes/pv1-1/qemu/1000/config", map[string]string{"onboot": "1"}); a.status != "500 can't lock file '/var/lock/qemu-server/lock-1000.conf' - got timeout" {
		t.Errorf("config: %s", a.status)
	}
	if a := l.do("GET", "/cluster/nextid", map[string]string{"vmid": "1000"}); a.errors["vmid"] != "VM 1000 already exists" {
		t.Errorf("nextid: %s %v", a.status, a.errors)
	}
	l.wait(upid)
}

func TestCloneRaceForOneID(t *testing.T) {
	l := startAt(t, slow)
	var wg sync.WaitGroup
	exits := make([]string, 3)
	for i := range exits {
		a := l.do("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1000", "full": "1"})
		if a.status != "200 OK" {
			exits[i] = a.status
			continue
		}
		upid := l.upid(a)
		wg.Go(func() { exits[i] = l.wait(upid) })
	}
	wg.Wait()
	won := 0
	for _, exit := range exits {
		switch exit {
		case "OK":
			won++
		case "can't lock file '/var/lock/qemu-server/lock-1000.conf' - got timeout",
			"500 unable to create VM 1000: config file already exists", "unable to create VM 1000: config file already exists":
		default:
			t.Errorf("unexpected end %q", exit)
		}
	}
	if won != 1 {
		t.Errorf("%d clones won: %q", won, exits)
	}
}

func TestCloneAcrossNodes(t *testing.T) {
	l := start(t)
	l.ok("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1000"})
	exit := l.task("POST", "/nodes/pv1-2/qemu/201/clone", map[string]string{"newid": "1000"})
	if exit != "unable to create VM 1000 - VM 1000 already exists on node 'pv1-1'" {
		t.Error(exit)
	}
}

// TestStorageLock runs more linked clones than fit into the time-out of the
// storage's lock: 10 s at 1 s each.
func TestStorageLock(t *testing.T) {
	l := startAt(t, slow)
	const clones = 16
	upids := make([]string, clones)
	var wg sync.WaitGroup
	for i := range upids {
		wg.Go(func() {
			upids[i] = l.upid(l.do("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": strconv.Itoa(1000 + i)}))
		})
	}
	wg.Wait()
	ok, late := 0, 0
	for i, upid := range upids {
		switch exit := l.wait(upid); exit {
		case "OK":
			ok++
		case "clone failed: can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout":
			late++
			if _, there := l.find(1000 + i); there {
				t.Errorf("failed clone %d left a VM", i)
			}
		default:
			t.Errorf("unexpected end %q", exit)
		}
	}
	if ok < 5 || late < 1 {
		t.Errorf("%d clones done, %d too late; want both kinds", ok, late)
	}
	if n := len(l.cluster.VMs()); n != 4+ok {
		t.Errorf("%d VMs", n)
	}
}

func TestRunningSourceIsLocked(t *testing.T) {
	l := startAt(t, slow, withExtras)
	l.ok("POST", "/nodes/pv1-1/qemu/500/status/start", nil)
	first := l.upid(l.do("POST", "/nodes/pv1-1/qemu/500/clone", map[string]string{"newid": "1000"}))
	second := l.upid(l.do("POST", "/nodes/pv1-1/qemu/500/clone", map[string]string{"newid": "1001"}))
	if exit := l.wait(second); exit != "can't lock file '/var/lock/qemu-server/lock-500.conf' - got timeout" {
		t.Errorf("second: %s", exit)
	}
	if exit := l.wait(first); exit != "OK" {
		t.Errorf("first: %s", exit)
	}
}

// TestFailedClone fails in the middle and looks for what is left.
func TestFailedClone(t *testing.T) {
	for name, c := range map[string]struct {
		message, exit string
		left          bool
	}{
		"error":    {"storage is full", "clone failed: storage is full", false},
		"warnings": {"WARNINGS: 1", "WARNINGS: 1", true},
		"killed":   {"unexpected status", "unexpected status", true},
	} {
		t.Run(name, func(t *testing.T) {
			l := start(t)
			before := len(l.cluster.Volumes("pv1-1"))
			l.inject(faults.Fault{Kind: faults.FailedTask, Place: "pve/POST/nodes/*/qemu/101/clone", Count: 1, Message: c.message})
			upid := l.upid(l.do("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1000"}))
			if exit := l.wait(upid); exit != c.exit {
				t.Errorf("exit %q, want %q", exit, c.exit)
			}
			v, there := l.find(1000)
			if there != c.left {
				t.Errorf("VM left: %v", there)
			}
			if !c.left && len(l.cluster.Volumes("pv1-1")) != before {
				t.Errorf("volumes left: %v", l.cluster.Volumes("pv1-1"))
			}
			if name == "killed" {
				if v.Lock != "clone" {
					t.Errorf("lock %q", v.Lock)
				}
				if exit := l.task("POST", "/nodes/pv1-1/qemu/1000/status/start", nil); exit != "VM is locked (clone)" {
					t.Errorf("start: %s", exit)
				}
				if exit := l.task("DELETE", "/nodes/pv1-1/qemu/1000", nil); exit != "VM is locked (clone)" {
					t.Errorf("destroy: %s", exit)
				}
			}
		})
	}
}

func TestTaskInterrupted(t *testing.T) {
	l := startAt(t, slow)
	upid := l.upid(l.do("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1000", "full": "1"}))
	if row := l.list("/nodes/pv1-1/tasks?source=active"); len(row) != 1 || row[0]["status"] != "RUNNING" {
		t.Errorf("active tasks: %v", row)
	}
	if a := l.do("DELETE", "/nodes/pv1-1/tasks/"+upid, nil); a.status != "200 OK" {
		t.Fatal(a.status)
	}
	if exit := l.wait(upid); exit != "clone failed: interrupted by signal" {
		t.Error(exit)
	}
	if _, there := l.find(1000); there {
		t.Error("the clone was not cleaned up")
	}
}

func TestPrivilegeSeparation(t *testing.T) {
	l := start(t)
	value := l.token("aether@pve!narrow", true)
	if a := l.as(value, "pv1-1", "GET", "/nodes/pv1-1/qemu/101/config", nil); a.status != "403 Permission check failed (/vms/101, VM.Audit)" {
		t.Error(a.status)
	}
	grant := access.ACL{Path: "/vms/101", Who: "aether@pve!narrow", Role: "Administrator", Propagate: true}
	if err := l.cluster.Access().Grant(grant); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/nodes/pv1-1/qemu/101/config": "200 OK",
		"/nodes/pv1-1/qemu/102/config": "403 Permission check failed (/vms/102, VM.Audit)",
		// The user has no Sys.Modify, whatever the token has.
		"/nodes/pv1-1/status": "403 Permission check failed (/nodes/pv1-1, Sys.Audit)",
	} {
		if a := l.as(value, "pv1-1", "GET", path, nil); a.status != want {
			t.Errorf("%s: %s", path, a.status)
		}
	}
}

// TestLinkedClonesPinTheirTemplate tries to destroy a template in use.
func TestLinkedClonesPinTheirTemplate(t *testing.T) {
	l := start(t)
	l.ok("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1000"})
	want := "base volume 'local-lvm:base-101-disk-0' is still in use by linked cloned"
	if exit := l.task("DELETE", "/nodes/pv1-1/qemu/101", nil); exit != want {
		t.Error(exit)
	}
	l.ok("DELETE", "/nodes/pv1-1/qemu/1000", nil)
	l.ok("DELETE", "/nodes/pv1-1/qemu/101", nil)
	for _, volume := range l.cluster.Volumes("pv1-1") {
		if strings.Contains(volume, "-101-") || strings.Contains(volume, "-1000-") {
			t.Errorf("left: %s", volume)
		}
	}
}

// TestContentIsCopied writes on a disk and clones it.
func TestContentIsCopied(t *testing.T) {
	l := start(t, withExtras)
	l.ok("POST", "/nodes/pv1-1/qemu/500/status/start", nil)
	content := l.guests.get(500).Hardware().Disks[0].Content
	content.Write("state", []byte("x"))
	l.ok("POST", "/nodes/pv1-1/qemu/500/clone", map[string]string{"newid": "1000"})
	content.Write("state", []byte("y"))
	l.ok("POST", "/nodes/pv1-1/qemu/1000/status/start", nil)
	if data, _ := l.guests.get(1000).Hardware().Disks[0].Content.Read("state"); string(data) != "x" {
		t.Errorf("clone holds %q", data)
	}
}
