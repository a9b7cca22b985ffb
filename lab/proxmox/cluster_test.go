package proxmox_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/proxmox"
)

func TestNextID(t *testing.T) {
	l := start(t)
	for query, want := range map[string]string{"": `"100"`, "?vmid=100": `"100"`, "?vmid=105": `"105"`} {
		if a := l.do("GET", "/cluster/nextid"+query, nil); string(a.data) != want {
			t.Errorf("%q: %s", query, a.body)
		}
	}
	if a := l.do("GET", "/cluster/nextid?vmid=201", nil); a.status != "400 Parameter verification failed." || a.errors["vmid"] != "VM 201 already exists" {
		t.Errorf("%s %v", a.status, a.errors)
	}
	if a := l.do("GET", "/cluster/nextid?vmid=99", nil); a.errors["vmid"] == "" {
		t.Errorf("%s", a.status)
	}
	l.ok("POST", "/nodes/pv1-2/qemu/201/clone", map[string]string{"newid": "100"})
	if a := l.do("GET", "/cluster/nextid", nil); string(a.data) != `"103"` {
		t.Errorf("next: %s", a.data)
	}
}

func TestClusterStatus(t *testing.T) {
	l := start(t)
	got := l.list("/cluster/status")
	want := []map[string]any{
		{"type": "cluster", "id": "cluster", "name": "homelab", "version": 1.0, "nodes": 2.0, "quorate": 1.0},
		{"type": "node", "id": "node/pv1-1", "name": "pv1-1", "nodeid": 1.0, "ip": "192.168.0.8", "online": 1.0, "local": 1.0, "level": ""},
		{"type": "node", "id": "node/pv1-2", "name": "pv1-2", "nodeid": 2.0, "ip": "192.168.0.10", "online": 1.0, "local": 0.0, "level": ""},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	nobody := l.user("nobody@pve", nil)
	if a := l.as(nobody, "pv1-1", "GET", "/cluster/status", nil); a.status != "403 Permission check failed (/, Sys.Audit)" {
		t.Error(a.status)
	}
}

func TestNodes(t *testing.T) {
	l := start(t, withMachine)
	status := l.get("/nodes/pv1-2/status")
	memory, _ := status["memory"].(map[string]any)
	if memory["total"] != float64(int64(409)<<30/10) {
		t.Errorf("memory: %v", memory)
	}
	cpu, _ := status["cpuinfo"].(map[string]any)
	load, _ := status["loadavg"].([]any)
	if cpu["cpus"] != 12.0 || len(load) != 3 || load[0] != "0.10" {
		t.Errorf("status: %v", status)
	}
	before := l.get("/nodes/pv1-1/status")["memory"].(map[string]any)["used"].(float64)
	l.ok("POST", vm1000+"/status/start", nil)
	if after := l.get("/nodes/pv1-1/status")["memory"].(map[string]any)["used"].(float64); after-before != 2<<30 {
		t.Errorf("a VM of 2 GiB takes %v", after-before)
	}
	rows := l.list("/nodes")
	if len(rows) != 2 || rows[0]["maxcpu"] != 16.0 || rows[0]["status"] != "online" || len(fmt.Sprint(rows[0]["ssl_fingerprint"])) != 95 {
		t.Errorf("nodes: %v", rows)
	}
	var bridges []string
	for _, row := range l.list("/nodes/pv1-1/network?type=bridge") {
		bridges = append(bridges, fmt.Sprint(row["iface"], row["bridge_vlan_aware"]))
	}
	if got := strings.Join(bridges, " "); got != "vmbr01 vmbr1<nil> vmbr2<nil>" {
		t.Error(got)
	}
	nobody := l.user("nobody@pve", nil)
	if a := l.as(nobody, "pv1-1", "GET", "/nodes/pv1-1/network?type=any_bridge", nil); string(a.data) != "[]" {
		t.Errorf("any_bridge without rights: %s", a.data)
	}
	if a := l.as(nobody, "pv1-1", "GET", "/nodes/pv1-1/qemu", nil); string(a.data) != "[]" {
		t.Errorf("VMs without rights: %s", a.data)
	}
	for path, want := range map[string]string{
		"/cluster/sdn/zones": "200 OK", "/cluster/sdn/zones/z1": "403 Permission check failed (/sdn/zones/z1, SDN.Allocate)",
		"/cluster/sdn/vnets/v1": "500 sdn vnet 'v1' does not exist", "/nodes/pv1-1/network/vmbr0": "200 OK", "/nodes/pv1-1/lxc": "200 OK",
		"/nodes/pv1-1/version": "200 OK", "/nodes/pv1-1/dns": "200 OK", "/nodes/pv1-1/time": "200 OK", "/cluster/options": "200 OK",
		"/cluster/ha/status/current": "200 OK", "/cluster/ha/rules": "200 OK", vm1000: "200 OK", vm1000 + "/status": "200 OK",
		"/access/roles": "200 OK", "/access/users": "200 OK", "/access/acl": "200 OK", "/cluster/resources?type=lxc": "400 Parameter verification failed.",
	} {
		if a := l.do("GET", path, nil); a.status != want {
			t.Errorf("%s: %s", path, a.status)
		}
	}
}

// TestResourcesLag sees a new VM at once, but not what it is like.
func TestResourcesLag(t *testing.T) {
	l := startAt(t, slow)
	row := func(id float64) map[string]any {
		rows := l.list("/cluster/resources?type=vm")
		i := slices.IndexFunc(rows, func(r map[string]any) bool { return r["vmid"] == id })
		if i < 0 {
			return nil
		}
		return rows[i]
	}
	if r := row(101); r["template"] != 1.0 || r["name"] != "talos-pv1-1" || r["maxcpu"] != 2.0 || r["node"] != "pv1-1" || r["id"] != "qemu/101" {
		t.Errorf("template: %v", r)
	}
	l.ok("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1000", "name": "w1"})
	l.eventually("the name is broadcast", func() bool { return row(1000)["name"] == "w1" })
	// Just after a broadcast, a change stays unseen for nearly ten seconds.
	l.ok("POST", "/nodes/pv1-1/qemu/1000/status/start", nil)
	seen := row(1000)["status"]
	l.eventually("the status is broadcast", func() bool { return row(1000)["status"] == "running" })
	if seen == "running" {
		t.Log("the broadcast came in between")
	}
	upid := l.upid(l.do("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1001", "full": "1"}))
	var first map[string]any
	l.eventually("the new VM shows", func() bool { first = row(1001); return first != nil })
	if first["lock"] != "clone" || (first["status"] != "unknown" && first["name"] != "VM 1001" && first["name"] != "talos-pv1-1") {
		t.Errorf("new VM: %v", first)
	}
	l.wait(upid)
	if rows := l.list("/cluster/resources?type=storage"); len(rows) != 4 {
		t.Errorf("storages: %v", rows)
	}
	if rows := l.list("/cluster/resources?type=node"); len(rows) != 2 {
		t.Errorf("nodes: %v", rows)
	}
	if rows := l.list("/cluster/resources"); len(rows) < 4+2+6 {
		t.Errorf("all: %v", rows)
	}
}

func TestQuorum(t *testing.T) {
	l := start(t, withMachine)
	l.ok("POST", vm1000+"/status/start", nil)
	id := l.inject(faults.Fault{Kind: faults.NoQuorum, Place: "pve/quorum"})
	want := "500 cluster not ready - no quorum?"
	for name, got := range map[string]string{
		"clone":   l.do("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1001"}).status,
		"create":  l.do("POST", "/nodes/pv1-1/qemu", map[string]string{"vmid": "1001"}).status,
		"config":  l.do("PUT", vm1000+"/config", map[string]string{"onboot": "1"}).status,
		"async":   l.do("POST", vm1000+"/config", map[string]string{"onboot": "1"}).status,
		"resize":  l.do("PUT", vm1000+"/resize", map[string]string{"disk": "scsi0", "size": "9G"}).status,
		"start":   l.do("POST", vm1000+"/status/start", nil).status,
		"destroy": l.do("DELETE", "/nodes/pv1-1/qemu/101", nil).status,
	} {
		if got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
	if quorate := l.list("/cluster/status")[0]["quorate"]; quorate != 0.0 {
		t.Errorf("quorate: %v", quorate)
	}
	l.ok("POST", vm1000+"/status/stop", nil) // needs no quorum
	l.faults.Clear(id)
	l.ok("POST", vm1000+"/status/start", nil)
}

// TestHostOff cuts the power of a host under a running clone.
func TestHostOff(t *testing.T) {
	l := startAt(t, slow, func(c *proxmox.Config) {
		for i, onboot := range []string{"1", "0"} {
			c.Machines = append(c.Machines, proxmox.Machine{
				VMID: 1000 + i, Node: "pv1-2", Name: "m", Image: machine.Image{OS: "blank"}, DiskGiB: 1, MemoryMiB: 512, Running: true,
				Options: map[string]string{"onboot": onboot},
			})
		}
	})
	l.eventually("both run", func() bool { a, _ := l.find(1000); b, _ := l.find(1001); return a.Running && b.Running })
	upid := l.upid(l.do("POST", "/nodes/pv1-2/qemu/201/clone", map[string]string{"newid": "1002", "full": "1"}))
	l.eventually("the clone began", func() bool { _, ok := l.find(1002); return ok })
	endpoint := l.cluster.Endpoint("pv1-2")
	id := l.inject(faults.Fault{Kind: faults.HostOff, Place: "pve/host/pv1-2"})
	l.eventually("the host is off", func() bool { return l.cluster.Endpoint("pv1-2") == "" })
	l.eventually("its VMs are off", func() bool { v, _ := l.find(1000); return !v.Running })

	if res, err := l.client().Get(endpoint + "/version"); err == nil { //nolint:noctx // it must fail
		_ = res.Body.Close()
		t.Error("the host still answers")
	}
	for _, path := range []string{"/nodes/pv1-2/status", "/nodes/pv1-2/qemu/1000/status/current"} {
		if a := l.do("GET", path, nil); a.status != "595 No route to host" || a.body != "" {
			t.Errorf("%s: %s %q", path, a.status, a.body)
		}
	}
	// The other host works on, by the vote of the third party.
	l.ok("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1003"})
	if rows := l.list("/nodes"); rows[1]["status"] != "offline" || rows[1]["maxcpu"] != nil {
		t.Errorf("nodes: %v", rows[1])
	}
	for _, row := range l.list("/cluster/resources?type=vm") {
		if row["node"] == "pv1-2" && row["status"] != "unknown" {
			t.Errorf("resources: %v", row)
		}
	}

	l.faults.Clear(id)
	l.eventually("the host is back", func() bool { return l.cluster.Endpoint("pv1-2") == endpoint })
	l.eventually("onboot starts", func() bool { v, _ := l.find(1000); return v.Running })
	if v, _ := l.find(1001); v.Running {
		t.Error("a VM without onboot was started")
	}
	if exit := l.wait(upid); exit != "unexpected status" {
		t.Errorf("the killed clone ended as %q", exit)
	}
	if v, there := l.find(1002); !there || v.Lock != "clone" {
		t.Errorf("the killed clone's VM: %+v", v)
	}
}

func TestTwoNodesWithoutAThirdVote(t *testing.T) {
	l := start(t, func(c *proxmox.Config) { c.QDevice = false })
	id := l.inject(faults.Fault{Kind: faults.HostOff, Place: "pve/host/pv1-2"})
	l.eventually("the host is off", func() bool { return l.cluster.Endpoint("pv1-2") == "" })
	if a := l.do("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1000"}); a.status != "500 cluster not ready - no quorum?" {
		t.Error(a.status)
	}
	l.faults.Clear(id)
	l.eventually("the host is back", func() bool { return l.cluster.Endpoint("pv1-2") != "" })
	l.ok("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1000"})
}

func TestAPIAway(t *testing.T) {
	l := start(t, func(c *proxmox.Config) {
		c.Machines = []proxmox.Machine{{VMID: 1000, Node: "pv1-2", Name: "m", DiskGiB: 1, Running: true}}
	})
	l.eventually("it runs", func() bool { v, _ := l.find(1000); return v.Running })
	id := l.inject(faults.Fault{Kind: faults.Away, Place: "pve/api/pv1-2"})
	l.eventually("the API is down", func() bool { return l.cluster.Endpoint("pv1-2") == "" })
	if a := l.do("GET", "/nodes/pv1-2/status", nil); a.status != "595 Connection refused" {
		t.Error(a.status)
	}
	if v, _ := l.find(1000); !v.Running {
		t.Error("the VM does not run on")
	}
	l.faults.Clear(id)
	l.eventually("it is back", func() bool { return l.do("GET", "/nodes/pv1-2/status", nil).status == "200 OK" })
}

func TestEitherNodeAnswers(t *testing.T) {
	l := start(t)
	upid := l.upid(l.as(l.secret, "pv1-2", "POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1000"}))
	if !strings.HasPrefix(upid, "UPID:pv1-1:") {
		t.Error(upid)
	}
	if exit := l.wait(upid); exit != "OK" {
		t.Error(exit)
	}
	if a := l.as(l.secret, "pv1-2", "GET", "/cluster/status", nil); !strings.Contains(string(a.data), `"level":"","local":1,"name":"pv1-2"`) {
		t.Errorf("local: %s", a.data)
	}
}

func TestTaskLists(t *testing.T) {
	l := start(t, withMachine)
	other := l.user("other@pve", map[string]string{"/vms": "PVEVMAdmin", "/storage": "PVEDatastoreAdmin", "/sdn": "PVESDNUser"})
	l.ok("POST", vm1000+"/status/start", nil)
	l.task("POST", vm1000+"/status/start", nil)
	upid := l.upid(l.as(other, "pv1-1", "POST", vm1000+"/status/stop", nil))
	if exit := l.wait(upid); exit != "OK" {
		t.Fatal(exit)
	}
	status := l.get("/nodes/pv1-1/tasks/" + upid + "/status")
	if status["user"] != "other@pve" || status["tokenid"] != "t" || status["type"] != "qmstop" || status["id"] != "1000" || status["status"] != "stopped" {
		t.Errorf("status: %v", status)
	}
	if _, ok := status["pid"].(float64); !ok {
		t.Errorf("pid: %v", status["pid"])
	}
	for query, want := range map[string]int{
		"": 3, "?typefilter=qmstart": 2, "?errors=1": 1, "?vmid=1000": 3, "?vmid=999": 0, "?limit=1": 1, "?source=active": 0, "?start=2": 1,
		"?since=4000000000": 0, "?until=1": 0, "?userfilter=other": 1, "?statusfilter=ok": 2, "?statusfilter=error": 1,
	} {
		if got := l.list("/nodes/pv1-1/tasks" + query); len(got) != want {
			t.Errorf("%q: %d rows, want %d", query, len(got), want)
		}
	}
	if a := l.do("GET", "/nodes/pv1-1/tasks?limit=1", nil); a.total != 3 {
		t.Errorf("total %d", a.total)
	}
	newest := l.list("/nodes/pv1-1/tasks?limit=1")[0]
	if newest["upid"] != upid || newest["status"] != "OK" || newest["endtime"] == nil {
		t.Errorf("newest: %v", newest)
	}
	rows := l.list("/cluster/tasks")
	if len(rows) != 3 || rows[0]["saved"] != "1" {
		t.Errorf("cluster tasks: %v", rows)
	}
	var log struct {
		status int
		total  int
	}
	a := l.do("GET", "/nodes/pv1-1/tasks/"+upid+"/log", map[string]string{"start": "0", "limit": "50"})
	if log.total = a.total; log.total != 1 || string(a.data) != `[{"n":1,"t":"TASK OK"}]` {
		t.Errorf("log: %s", a.body)
	}
	if a := l.do("GET", "/nodes/pv1-1/tasks/"+upid+"/log", map[string]string{"start": "5"}); string(a.data) != "[]" {
		t.Errorf("past the end: %s", a.data)
	}
	own := l.as(other, "pv1-1", "GET", "/nodes/pv1-1/tasks", nil)
	if !strings.Contains(string(own.data), upid) || strings.Count(string(own.data), "UPID") != 1 {
		t.Errorf("own tasks: %s", own.data)
	}
}

func TestPools(t *testing.T) {
	l := start(t, withMachine)
	root := func(verb, path string, form map[string]string) string {
		return l.as(l.root, "pv1-1", verb, path, form).status
	}
	type form = map[string]string
	for _, c := range []struct {
		verb, path string
		form       form
		want       string
	}{
		{"POST", "/pools", form{"poolid": "tenants"}, "200 OK"},
		{"POST", "/pools", form{"poolid": "tenants"}, "500 pool 'tenants' already exists"},
		{"PUT", "/pools", form{"poolid": "nope", "vms": "1000"}, "500 pool 'nope' does not exist"},
		{"PUT", "/pools", form{"poolid": "tenants", "vms": "1000"}, "200 OK"},
		{"PUT", "/pools", form{"poolid": "tenants", "vms": "1000"}, "500 VM 1000 is already a pool member"},
		{"PUT", "/pools", form{"poolid": "tenants", "vms": "101", "delete": "1"}, "500 VM 101 is not a pool member"},
		{"DELETE", "/pools?poolid=tenants", nil, "500 pool 'tenants' is not empty (contains VM 1000)"},
		{"POST", "/pools", form{"poolid": "second"}, "200 OK"},
		{"PUT", "/pools/second", form{"vms": "1000"}, "500 VM 1000 is already a pool member"},
		{"PUT", "/pools", form{"poolid": "second", "vms": "1000", "allow-move": "1"}, "200 OK"},
		{"DELETE", "/pools/tenants", nil, "200 OK"},
		{"GET", "/pools?poolid=tenants", nil, "500 pool 'tenants' does not exist"},
		{"GET", "/pools/second", nil, "200 OK"},
	} {
		if got := root(c.verb, c.path, c.form); got != c.want {
			t.Errorf("%s %s %v: %q, want %q", c.verb, c.path, c.form, got, c.want)
		}
	}
	a := l.as(l.root, "pv1-1", "GET", "/pools", form{"poolid": "second"})
	if !strings.Contains(string(a.data), `"id":"qemu/1000"`) {
		t.Errorf("members: %s", a.data)
	}
	if a := l.as(l.secret, "pv1-1", "POST", "/pools", form{"poolid": "x"}); a.status != "403 Permission check failed (/pool/x, Pool.Allocate)" {
		t.Error(a.status)
	}
}

func TestPermissionsCall(t *testing.T) {
	l := start(t)
	got := l.get("/access/permissions?path=/storage/local-lvm")
	held, _ := got["/storage/local-lvm"].(map[string]any)
	if held["Datastore.AllocateSpace"] != 1.0 || held["VM.Clone"] != nil {
		t.Errorf("a deeper grant replaces those above: %v", got)
	}
	all := l.get("/access/permissions")
	if root, _ := all["/"].(map[string]any); root["VM.Clone"] != 1.0 || root["Sys.Audit"] != 1.0 {
		t.Errorf("permissions: %v", all)
	}
	nobody := l.user("nobody@pve", nil)
	if a := l.as(nobody, "pv1-1", "GET", "/access/permissions?path=/", nil); string(a.data) != "{}" {
		t.Errorf("nothing held: %s", a.data)
	}
	if a := l.as(nobody, "pv1-1", "GET", "/access/permissions?userid=root@pam", nil); a.status != "403 Permission check failed (/access, Sys.Audit)" {
		t.Error(a.status)
	}
}

func TestTokensAndGrantsByAPI(t *testing.T) {
	l := start(t)
	call := func(verb, path string, form map[string]string) answer { return l.as(l.root, "pv1-1", verb, path, form) }
	a := call("POST", "/access/users/aether@pve/token/second", map[string]string{"privsep": "0"})
	if a.status != "200 OK" || !strings.Contains(string(a.data), `"full-tokenid":"aether@pve!second"`) {
		t.Fatalf("%s %s", a.status, a.body)
	}
	if a := call("POST", "/access/users/aether@pve/token/second", nil); a.errors["tokenid"] != "Token already exists." {
		t.Errorf("%s %v", a.status, a.errors)
	}
	if a := call("GET", "/access/users/aether@pve/token", nil); !strings.Contains(string(a.data), `"tokenid":"second"`) {
		t.Errorf("%s", a.data)
	}
	value := "PVEAPIToken=aether@pve!second=" + between(string(a.data), `"value":"`, `"`)
	if a := l.as(value, "pv1-1", "GET", "/version", nil); a.status != "200 OK" {
		t.Error(a.status)
	}
	grant := map[string]string{"path": "/", "users": "aether@pve", "roles": "PVEVMAdmin", "delete": "1"}
	if a := call("PUT", "/access/acl", grant); a.status != "200 OK" {
		t.Error(a.status)
	}
	if a := l.do("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1000"}); a.status != "403 Permission check failed (/vms/101, VM.Clone)" {
		t.Error(a.status)
	}
	if a := call("PUT", "/access/acl", map[string]string{"path": "/", "users": "aether@pve", "roles": "Nonsense"}); a.status != "500 role 'Nonsense' does not exist" {
		t.Error(a.status)
	}
	if a := call("DELETE", "/access/users/aether@pve/token/second", nil); a.status != "200 OK" {
		t.Error(a.status)
	}
	if a := l.as(value, "pv1-1", "GET", "/version", nil); a.status != "401 Authentication failed!" {
		t.Error(a.status)
	}
}

func between(text, before, after string) string {
	_, rest, _ := strings.Cut(text, before)
	found, _, _ := strings.Cut(rest, after)
	return found
}
