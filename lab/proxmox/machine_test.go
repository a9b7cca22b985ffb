package proxmox_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/proxmox"
)

// withMachine adds a plain VM 1000 with two NICs.
func withMachine(c *proxmox.Config) {
	c.Machines = append(c.Machines, proxmox.Machine{
		VMID: 1000, Node: "pv1-1", Name: "m", Image: machine.Image{OS: "blank", Agent: true}, DiskGiB: 8, MemoryMiB: 2048, Cores: 2,
		Options: map[string]string{
			"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "net1": "virtio=BC:24:11:00:00:02,bridge=vmbr1,link_down=1",
			"ide2": "local-lvm:cloudinit", "agent": "1", "ipconfig0": "ip=192.168.0.50/24,gw=192.168.0.1",
		},
	})
}

const vm1000 = "/nodes/pv1-1/qemu/1000"

func TestPower(t *testing.T) {
	l := start(t, withMachine)
	for _, step := range []struct{ verb, path, exit, status string }{
		{"POST", "/status/stop", "OK", "stopped"},
		{"POST", "/status/shutdown", "OK", "stopped"},
		{"POST", "/status/start", "OK", "running"},
		{"POST", "/status/start", "VM 1000 already running", "running"},
		{"POST", "/status/reset", "OK", "running"},
		{"POST", "/status/shutdown", "OK", "stopped"},
		{"POST", "/status/start", "OK", "running"},
		{"POST", "/status/stop", "OK", "stopped"},
		{"POST", "/template", "OK", "stopped"},
		{"POST", "/status/start", "you can't start a vm if it's a template", "stopped"},
	} {
		if exit := l.task(step.verb, vm1000+step.path, nil); exit != step.exit {
			t.Fatalf("%s: %q, want %q", step.path, exit, step.exit)
		}
		if got := l.get(vm1000 + "/status/current")["status"]; got != step.status {
			t.Fatalf("after %s: %v, want %s", step.path, got, step.status)
		}
	}
	for path, want := range map[string]string{
		"/status/reset": "500 VM 1000 not running", "/status/reboot": "500 VM 1000 not running",
		"/template": "500 you can't convert a template to a template",
	} {
		if a := l.do("POST", vm1000+path, nil); a.status != want {
			t.Errorf("%s: %s", path, a.status)
		}
	}
}

func TestPowerOfNothing(t *testing.T) {
	l := start(t)
	for path, want := range map[string]string{
		"start": "Configuration file 'nodes/pv1-1/qemu-server/999.conf' does not exist",
		"stop":  "unable to find configuration file for VM 999 on node 'pv1-1'",
	} {
		if exit := l.task("POST", "/nodes/pv1-1/qemu/999/status/"+path, nil); exit != want {
			t.Errorf("%s: %q", path, exit)
		}
	}
}

func TestStartRefusals(t *testing.T) {
	l := start(t, withMachine)
	for name, c := range map[string]struct{ key, value, exit string }{
		"cores":   {"cores", "17", "MAX 16 vcpus allowed per VM on this node"},
		"bridge":  {"net2", "virtio,bridge=vmbr9", "bridge 'vmbr9' does not exist"},
		"iso":     {"ide0", "local:iso/none.iso,media=cdrom", "volume 'local:iso/none.iso' does not exist"},
		"cicustm": {"cicustom", "user=local:snippets/x.yaml", "volume 'user=local:snippets/x.yaml' does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			l.ok("POST", vm1000+"/config", map[string]string{c.key: c.value})
			if exit := l.task("POST", vm1000+"/status/start", nil); exit != c.exit {
				t.Errorf("%q, want %q", exit, c.exit)
			}
			l.ok("POST", vm1000+"/config", map[string]string{"delete": c.key})
		})
	}
}

func TestReboot(t *testing.T) {
	l := start(t, withMachine)
	l.ok("POST", vm1000+"/status/start", nil)
	before := l.guests.get(1000)
	l.ok("POST", vm1000+"/config", map[string]string{"cores": "3"})
	l.ok("POST", vm1000+"/status/reboot", nil)
	l.eventually("it runs again", func() bool { v, _ := l.find(1000); return v.Running })
	if l.guests.get(1000) == before || l.guests.get(1000).Hardware().Cores != 3 {
		t.Error("it was not started anew with the pending change")
	}
	rows := l.list("/nodes/pv1-1/tasks?typefilter=qmstart&limit=1&source=all")
	if len(rows) != 1 || rows[0]["user"] != "root@pam" {
		t.Errorf("start task: %v", rows)
	}
}

// stubborn ignores the power button.
type stubborn struct{ *guests }

type stubbornGuest struct{ machine.Guest }

func (stubbornGuest) Shutdown() {}

func (s stubborn) PowerOn(h machine.Hardware) (machine.Guest, error) {
	g, err := s.guests.PowerOn(h)
	return stubbornGuest{g}, err
}

func TestShutdownOfADeafGuest(t *testing.T) {
	l := startAt(t, slow, withMachine, func(c *proxmox.Config) {
		g, _ := c.Hypervisor.(*guests)
		c.Hypervisor = stubborn{g}
	})
	l.ok("POST", vm1000+"/status/start", nil)
	if exit := l.task("POST", vm1000+"/status/shutdown", map[string]string{"timeout": "5"}); exit != "VM quit/powerdown failed - got timeout" {
		t.Error(exit)
	}
	// A hanging shutdown holds the lock: a stop without overruling times out.
	hanging := l.upid(l.do("POST", vm1000+"/status/shutdown", map[string]string{"timeout": "60"}))
	l.eventually("the guest is told", func() bool { return strings.Contains(l.log(hanging), "no content") })
	if exit := l.task("POST", vm1000+"/status/stop", nil); exit != "can't lock file '/var/lock/qemu-server/lock-1000.conf' - got timeout" {
		t.Error(exit)
	}
	l.ok("POST", vm1000+"/status/stop", map[string]string{"overrule-shutdown": "1"})
	if exit := l.wait(hanging); exit != "interrupted by signal" {
		t.Error(exit)
	}
	l.ok("POST", vm1000+"/status/start", nil)
	upid := l.upid(l.do("POST", vm1000+"/status/shutdown", map[string]string{"timeout": "1", "forceStop": "1"}))
	if exit := l.wait(upid); exit != "OK" || !strings.Contains(l.log(upid), "VM still running - terminating now with SIGTERM") {
		t.Errorf("%s\n%s", exit, l.log(upid))
	}
}

func TestGuestTurnsItselfOff(t *testing.T) {
	l := start(t, withMachine)
	l.ok("POST", vm1000+"/status/start", nil)
	l.guests.get(1000).Kill()
	l.eventually("it is seen as off", func() bool { v, _ := l.find(1000); return !v.Running })
	l.ok("POST", vm1000+"/status/start", nil)
}

func TestDestroyRefusals(t *testing.T) {
	l := start(t, withMachine)
	admin := func(verb, path string, form map[string]string) {
		t.Helper()
		if a := l.as(l.root, "pv1-1", verb, path, form); a.status != "200 OK" {
			t.Fatalf("%s %s: %s %v", verb, path, a.status, a.errors)
		}
	}
	for _, c := range []struct {
		name       string
		before     func()
		form       map[string]string
		want, exit string
	}{
		{"protected", func() { l.ok("POST", vm1000+"/config", map[string]string{"protection": "1"}) }, nil, "500 can't remove VM 1000 - protection mode enabled", ""},
		{"running", func() {
			l.ok("POST", vm1000+"/config", map[string]string{"protection": "0"})
			l.ok("POST", vm1000+"/status/start", nil)
		}, nil, "500 VM 1000 is running - destroy failed", ""},
		{"ha", func() {
			l.ok("POST", vm1000+"/status/stop", nil)
			admin("POST", "/cluster/ha/resources", map[string]string{"sid": "vm:1000", "state": "ignored"})
		}, nil, "500 unable to remove VM 1000 - used in HA resources and purge parameter not set.", ""},
		{"skiplock", func() {}, map[string]string{"skiplock": "1"}, "400 Parameter verification failed.", ""},
		{"gone", func() { l.ok("DELETE", vm1000, map[string]string{"purge": "1"}) }, nil, "500 Configuration file 'nodes/pv1-1/qemu-server/1000.conf' does not exist", ""},
	} {
		c.before()
		if a := l.do("DELETE", vm1000, c.form); a.status != c.want {
			t.Errorf("%s: %q, want %q", c.name, a.status, c.want)
		}
	}
	if a := l.as(l.root, "pv1-1", "GET", "/cluster/ha/resources/vm:1000", nil); a.status != "500 no such resource 'vm:1000'" {
		t.Errorf("purge left the HA resource: %s", a.status)
	}
	for _, volume := range l.cluster.Volumes("pv1-1") {
		if strings.Contains(volume, "-1000-") {
			t.Errorf("left: %s", volume)
		}
	}
}

// TestDestroyKeepsTheID looks at the VMID while a destroy runs.
func TestDestroyKeepsTheID(t *testing.T) {
	l := startAt(t, slow, withMachine)
	upid := l.upid(l.do("DELETE", vm1000, nil))
	if a := l.do("GET", "/cluster/nextid", map[string]string{"vmid": "1000"}); a.errors["vmid"] == "" {
		t.Error("the ID is free before the VM is gone")
	}
	l.wait(upid)
	if a := l.do("GET", "/cluster/nextid", map[string]string{"vmid": "1000"}); string(a.data) != `"1000"` {
		t.Errorf("nextid: %s", a.body)
	}
	v, there := l.find(1000)
	if there {
		t.Errorf("left: %+v", v)
	}
}

func TestFailedDestroyKeepsTheVM(t *testing.T) {
	l := start(t, withMachine)
	l.inject(faults.Fault{Kind: faults.FailedTask, Place: "pve/DELETE/nodes/*/qemu/*", Count: 1, Message: "can't lock file"})
	if exit := l.task("DELETE", vm1000, nil); exit != "can't lock file" {
		t.Error(exit)
	}
	if v, there := l.find(1000); !there || v.Lock != "" {
		t.Errorf("VM: %+v", v)
	}
	l.ok("DELETE", vm1000, nil)
}

func TestHA(t *testing.T) {
	l := startAt(t, slow, withMachine)
	ha := func(verb, path string, form map[string]string) string {
		return l.as(l.root, "pv1-1", verb, "/cluster/ha/resources"+path, form).status
	}
	for _, c := range []struct{ name, got, want string }{
		{"privilege", l.do("POST", "/cluster/ha/resources", map[string]string{"sid": "vm:1000"}).status, "403 Permission check failed (/, Sys.Console)"},
		{"unknown", ha("GET", "/vm:1000", nil), "500 no such resource 'vm:1000'"},
		{"delete unknown", ha("DELETE", "/vm:1000", nil), "500 cannot delete service 'vm:1000', not HA managed!"},
		{"group", ha("POST", "", map[string]string{"sid": "vm:1000", "group": "gg"}), "500 invalid parameter 'group': ha groups have been migrated to rules"},
		{"add", ha("POST", "", map[string]string{"sid": "vm:1000"}), "200 OK"},
		{"twice", ha("POST", "", map[string]string{"sid": "vm:1000"}), "500 resource ID 'vm:1000' already defined"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q, want %q", c.name, c.got, c.want)
		}
	}
	l.eventually("the manager starts it", func() bool { v, _ := l.find(1000); return v.Running })
	if got := l.get(vm1000 + "/status/current")["ha"]; fmt.Sprint(got) != "map[managed:1 state:started]" {
		t.Errorf("ha: %v", got)
	}
	upid := l.upid(l.do("POST", vm1000+"/status/stop", nil))
	if exit := l.wait(upid); exit != "OK" || !strings.Contains(upid, ":hastop:1000:") {
		t.Errorf("%s: %s", upid, exit)
	}
	if v, _ := l.find(1000); !v.Running {
		t.Error("hastop is done when the request is noted, not when the VM is off")
	}
	l.eventually("the manager stops it", func() bool { v, _ := l.find(1000); return !v.Running })
}

func TestCreate(t *testing.T) {
	l := start(t)
	create := func(form map[string]string) answer { return l.do("POST", "/nodes/pv1-1/qemu", form) }
	a := create(map[string]string{
		"vmid": "1000", "name": "new", "memory": "1024", "scsi0": "local-lvm:8,ssd=1", "net0": "virtio,bridge=vmbr0", "ide2": "local-lvm:cloudinit", "start": "1",
	})
	if v, there := l.find(1000); !there || (v.Lock != "create" && v.Lock != "") {
		t.Errorf("before the task is done: %+v", v)
	}
	if exit := l.wait(l.upid(a)); exit != "OK" {
		t.Fatal(exit)
	}
	v, _ := l.find(1000)
	if v.Config["scsi0"] != "local-lvm:vm-1000-disk-0,size=8G,ssd=1" || !strings.HasPrefix(v.Config["net0"], "virtio=BC:24:11:") ||
		v.Config["boot"] != "order=scsi0;ide2;net0" || v.UUID == "" || v.Lock != "" {
		t.Errorf("made %+v", v)
	}
	l.eventually("it starts", func() bool { v, _ := l.find(1000); return v.Running })
	for name, c := range map[string]struct {
		form         map[string]string
		status, exit string
	}{
		"existing":     {map[string]string{"vmid": "1000"}, "500 unable to create VM 1000 - VM 1000 already exists on node 'pv1-1'", ""},
		"elsewhere":    {map[string]string{"vmid": "201"}, "500 unable to create VM 201 - VM 201 already exists on node 'pv1-2'", ""},
		"root only":    {map[string]string{"vmid": "1001", "args": "-s"}, "500 only root can set 'args' config", ""},
		"missing pool": {map[string]string{"vmid": "1001", "pool": "xx"}, "403 Permission check failed (pool 'xx' does not exist)", ""},
		"bad format": {
			map[string]string{"vmid": "1001", "scsi0": "local-lvm:8,format=qcow2"},
			"200 OK",
			"unable to create VM 1001 - unsupported format 'qcow2' at /usr/share/perl5/PVE/Storage/LvmThinPlugin.pm line 102.",
		},
		"bad option": {map[string]string{"vmid": "1001", "net0": "virtio,bridge=vmbr0,foo=1"}, "400 Parameter verification failed.", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := create(c.form)
			if a.status != c.status {
				t.Fatalf("%q, want %q", a.status, c.status)
			}
			if c.exit != "" && l.wait(l.upid(a)) != c.exit {
				t.Errorf("%q, want %q", l.wait(l.upid(a)), c.exit)
			}
			if _, there := l.find(1001); there {
				t.Error("left a VM")
			}
		})
	}
}

func TestResize(t *testing.T) {
	l := start(t, withMachine)
	for _, c := range []struct{ disk, size, exit, want string }{
		{"scsi0", "10G", "OK", "10G"},
		{"scsi0", "+2G", "OK", "12G"},
		{"scsi0", "12G", "OK", "12G"},
		{"scsi0", "12800M", "OK", "12800M"},
		{"scsi0", "4G", "shrinking disks is not supported", "12800M"},
		{"scsi3", "4G", "disk 'scsi3' does not exist", "12800M"},
		{"ide2", "4G", "you can't resize a cdrom", "12800M"},
	} {
		if exit := l.task("PUT", vm1000+"/resize", map[string]string{"disk": c.disk, "size": c.size}); exit != c.exit {
			t.Errorf("%s %s: %q, want %q", c.disk, c.size, exit, c.exit)
		}
		if v, _ := l.find(1000); v.Config["scsi0"] != "local-lvm:vm-1000-disk-0,size="+c.want {
			t.Errorf("%s %s: %s", c.disk, c.size, v.Config["scsi0"])
		}
	}
	for name, form := range map[string]map[string]string{
		"disk": {"disk": "floppy0", "size": "1G"}, "size": {"disk": "scsi0", "size": "big"},
	} {
		if a := l.do("PUT", vm1000+"/resize", form); a.errors[name] == "" {
			t.Errorf("%s: %s %v", name, a.status, a.errors)
		}
	}
}

func TestSnapshots(t *testing.T) {
	l := start(t, withMachine)
	l.ok("POST", vm1000+"/snapshot", map[string]string{"snapname": "s1", "description": "d"})
	if exit := l.task("POST", vm1000+"/snapshot", map[string]string{"snapname": "s1"}); exit != "snapshot name 's1' already used" {
		t.Error(exit)
	}
	if a := l.do("POST", vm1000+"/snapshot", map[string]string{"snapname": "current"}); a.status != "500 unable to use snapshot name 'current' (reserved name)" {
		t.Error(a.status)
	}
	if a := l.do("POST", vm1000+"/template", nil); a.status != "500 unable to create template, because VM contains snapshots" {
		t.Error(a.status)
	}
	rows := l.list(vm1000 + "/snapshot")
	if len(rows) != 2 || rows[0]["name"] != "s1" || rows[1]["name"] != "current" || rows[1]["parent"] != "s1" {
		t.Errorf("snapshots: %v", rows)
	}
	if got := l.get(vm1000 + "/config?snapshot=s1")["name"]; got != "m" {
		t.Errorf("snapshot's config: %v", got)
	}
	l.ok("DELETE", vm1000+"/snapshot/s1", nil)
	if exit := l.task("DELETE", vm1000+"/snapshot/s1", nil); exit != "snapshot 's1' does not exist" {
		t.Error(exit)
	}
}

func TestAgent(t *testing.T) {
	l := startAt(t, slow, withMachine)
	ask := func(want string) {
		t.Helper()
		if a := l.do("GET", vm1000+"/agent/get-osinfo", nil); a.status != want {
			t.Errorf("%q, want %q", a.status, want)
		}
	}
	if a := l.do("GET", "/nodes/pv1-1/qemu/999/agent/get-osinfo", nil); a.status != "500 Configuration file 'nodes/pv1-1/qemu-server/999.conf' does not exist" {
		t.Error(a.status)
	}
	ask("500 VM 1000 is not running")
	l.ok("POST", vm1000+"/config", map[string]string{"delete": "agent"})
	ask("500 No QEMU guest agent configured")
	l.ok("POST", vm1000+"/status/start", nil)
	// Configured now, but the port is not there before the next start.
	l.ok("POST", vm1000+"/config", map[string]string{"agent": "1"})
	l.ok("POST", vm1000+"/status/reboot", nil)
	l.eventually("it runs again", func() bool { v, _ := l.find(1000); return v.Running })
	begin := time.Now()
	ask("500 QEMU guest agent is not running")
	if time.Since(begin) < 30*time.Millisecond {
		t.Error("the ping's time-out was not waited for")
	}
	l.eventually("the agent answers", func() bool { return l.do("POST", vm1000+"/agent/ping", nil).status == "200 OK" })
	id := l.inject(faults.Fault{Kind: faults.NoAgent, Place: "pve/agent/1000"})
	ask("500 QEMU guest agent is not running")
	l.faults.Clear(id)
	ask("200 OK")
	a := l.do("POST", vm1000+"/agent/exec", map[string]string{"command": "hostname"})
	if a.status != "200 OK" || string(a.data) != `{"pid":1001}` {
		t.Fatalf("%s %s", a.status, a.body)
	}
	if got := l.get(vm1000 + "/agent/exec-status?pid=1001"); got["out-data"] != "m\n" || got["exited"] != 1.0 {
		t.Errorf("exec: %v", got)
	}
	for path, want := range map[string]string{"/agent/exec-status?pid=1001": "500 Agent error: PID 1001 does not exist"} {
		if a := l.do("GET", vm1000+path, nil); a.status != want {
			t.Error(a.status)
		}
	}
	if a := l.do("POST", vm1000+"/agent/exec", map[string]string{"command": "foo"}); !strings.Contains(a.status, "Failed to execute child process") {
		t.Error(a.status)
	}
	interfaces := l.get(vm1000 + "/agent/network-get-interfaces")["result"]
	if !strings.Contains(fmt.Sprint(interfaces), "bc:24:11:00:00:01") {
		t.Errorf("interfaces: %v", interfaces)
	}
}
