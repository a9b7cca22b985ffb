package proxmox

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func spec() CloneSpec {
	return CloneSpec{Node: "pv1-1", Template: 901, VMID: 1000, Name: "demo-w1", Mark: Mark{Machine: testMachine, Tenant: "demo", Role: RoleWorker}}
}

func TestCloneLooksFirst(t *testing.T) {
	id := upid("qmclone", "901")
	inFlight := func(s *server, log string) {
		s.on("GET", "/nodes/pv1-1/tasks", answer{data: []map[string]any{{"upid": id, "type": "qmclone", "id": "901"}}})
		s.task(id, "OK", log)
	}
	nothing := func(s *server) { s.on("GET", "/nodes/pv1-1/tasks", answer{data: []any{}}) }
	locked := map[string]any{"digest": "d", "lock": "clone"}
	tests := []struct {
		name  string
		set   func(*server)
		upid  UPID
		kind  error
		posts int
	}{
		{"nothing there", func(s *server) { s.noVM(1000); nothing(s) }, UPID(id), nil, 1},
		{"another target in flight", func(s *server) { s.noVM(1000); inFlight(s, `  Logical volume "vm-1001-disk-0" created.`) }, UPID(id), nil, 1},
		{"in flight, no file yet", func(s *server) { s.noVM(1000); inFlight(s, "creating a clone of VM 901 with ID 1000") }, UPID(id), nil, 0},
		{"in flight, locked", func(s *server) {
			s.vm(1000, false, locked)
			inFlight(s, `  Logical volume "vm-1000-disk-0" created.`)
		}, UPID(id), nil, 0},
		{"done", func(s *server) { s.vm(1000, false, ours()) }, "", nil, 0},
		{"another's", func(s *server) { s.vm(1000, false, map[string]any{"name": "db"}) }, "", ErrAlreadyExists, 0},
		{"clone died", func(s *server) { s.vm(1000, false, locked); nothing(s) }, "", ErrLocked, 0},
		{"host away", func(s *server) {
			s.on("GET", "/nodes/pv1-1/qemu/1000/status/current", answer{status: 595, reason: "No route to host"})
		}, "", ErrUnreachable, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newServer(t)
			s.on("POST", "/nodes/pv1-1/qemu/901/clone", answer{data: id})
			test.set(s)
			got, err := s.client(t).Clone(context.Background(), spec())
			if got != test.upid || !errors.Is(err, test.kind) {
				t.Errorf("got %q and %v, want %q and %v", got, err, test.upid, test.kind)
			}
			posts := s.seen("POST")
			if len(posts) != test.posts {
				t.Errorf("posted %v, want %d", posts, test.posts)
			}
			if len(posts) == 1 && (!strings.Contains(posts[0], testMachine) || strings.Contains(posts[0], "storage")) {
				t.Errorf("the clone lacks the mark or names a storage: %s", posts[0])
			}
		})
	}
}

func TestReservedVMIDsAreNeverWritten(t *testing.T) {
	s := newServer(t)
	c := s.client(t)
	low := Ref{Node: "pv1-1", VMID: 999, Machine: testMachine}
	clone := spec()
	clone.VMID = 999
	_, cloned := c.Clone(context.Background(), clone)
	_, started := c.Start(context.Background(), low, nil)
	for name, err := range map[string]error{
		"clone": cloned, "start": started, "stop": c.Stop(context.Background(), low, nil),
		"destroy": c.Destroy(context.Background(), low, nil), "configure": c.WriteConfig(context.Background(), low, ConfigWish{Name: "x"}),
		"grow": c.Grow(context.Background(), low, "scsi0", 40, nil), "link": c.SetLinkDown(context.Background(), low, 0, true),
	} {
		if !errors.Is(err, ErrNotOurs) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if len(s.seen("")) != 0 {
		t.Errorf("Proxmox was asked: %v", s.seen(""))
	}
}

func TestOthersAreNotTouched(t *testing.T) {
	other := ours()
	other["description"] = Mark{Machine: "another", Tenant: "demo", Role: RoleWorker}.Description()
	template := ours()
	template["template"] = 1
	for name, config := range map[string]map[string]any{"another machine": other, "no mark": {"name": "db"}, "template": template} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			s.vm(1000, true, config)
			c := s.client(t)
			if err := c.Destroy(context.Background(), ref(), nil); !errors.Is(err, ErrNotOurs) {
				t.Errorf("destroy: got %v", err)
			}
			if err := c.Stop(context.Background(), ref(), nil); !errors.Is(err, ErrNotOurs) {
				t.Errorf("stop: got %v", err)
			}
			if writes := append(s.seen("POST"), append(s.seen("DELETE"), s.seen("PUT")...)...); len(writes) > 0 {
				t.Errorf("it was written: %v", writes)
			}
		})
	}
}

func TestWriteConfigWritesOnlyWhatDiffers(t *testing.T) {
	s := newServer(t)
	before, after := ours(), ours()
	after["cores"], after["digest"] = 4, "d2"
	s.vm(1000, false, before)
	s.on("GET", "/nodes/pv1-1/qemu/1000/config", answer{data: before}, answer{data: after})
	s.on("PUT", "/nodes/pv1-1/qemu/1000/config", answer{})
	mark := spec().Mark
	wish := ConfigWish{Name: "demo-w1", Mark: &mark, Cores: 4, MemoryMiB: 2048, Remove: []string{"net7"}}
	if err := s.client(t).WriteConfig(context.Background(), ref(), wish); err != nil {
		t.Fatal(err)
	}
	puts := s.seen("PUT")
	if want := `PUT /nodes/pv1-1/qemu/1000/config {"cores":4,"digest":"d1","sockets":1}`; len(puts) != 1 || puts[0] != want {
		t.Errorf("got %v, want %s", puts, want)
	}
	if err := s.client(t).WriteConfig(context.Background(), ref(), wish); err != nil || len(s.seen("PUT")) != 1 {
		t.Errorf("repeated: %v, %v", err, s.seen("PUT"))
	}
}

func TestWriteConfigReadsBack(t *testing.T) {
	s := newServer(t)
	s.vm(1000, false, ours())
	s.on("PUT", "/nodes/pv1-1/qemu/1000/config", answer{})
	err := s.client(t).WriteConfig(context.Background(), ref(), ConfigWish{MemoryMiB: 4096})
	if !errors.Is(err, ErrConflict) || !strings.Contains(err.Error(), "memory") {
		t.Errorf("got %v", err)
	}
}

func TestSetLinkDownKeepsTheRest(t *testing.T) {
	s := newServer(t)
	down := ours()
	down["net0"] = "virtio=BC:24:11:00:00:01,bridge=vmbr1,link_down=1,firewall=1"
	s.vm(1000, true, ours())
	s.on("GET", "/nodes/pv1-1/qemu/1000/config", answer{data: ours()}, answer{data: ours()}, answer{data: down})
	s.on("PUT", "/nodes/pv1-1/qemu/1000/config", answer{})
	if err := s.client(t).SetLinkDown(context.Background(), ref(), 0, true); err != nil {
		t.Fatal(err)
	}
	if puts := s.seen("PUT"); len(puts) != 1 || !strings.Contains(puts[0], `"net0":"virtio=BC:24:11:00:00:01,bridge=vmbr1,link_down=1,firewall=1"`) {
		t.Errorf("got %v", puts)
	}
	if err := s.client(t).SetLinkDown(context.Background(), ref(), 3, true); !errors.Is(err, ErrInvalid) {
		t.Errorf("a card that is not there: got %v", err)
	}
}

func TestGrow(t *testing.T) {
	id := upid("resize", "1000")
	sized := func(size string) map[string]any {
		config := ours()
		config["scsi0"] = "local-lvm:vm-1000-disk-0,size=" + size
		return config
	}
	tests := []struct {
		name   string
		after  string
		answer answer
		exit   string
		gib    int
		kind   error
		puts   int
	}{
		{"grows", "40G", answer{data: id}, "OK", 40, nil, 1},
		{"has it", "20G", answer{data: id}, "OK", 20, nil, 0},
		{"never shrinks", "20G", answer{data: id}, "OK", 10, ErrInvalid, 0},
		{"old Proxmox answers null", "40G", answer{}, "OK", 40, nil, 1},
		{"task failed but grew", "40G", answer{data: id}, "can't lock file 'x' - got timeout", 40, nil, 1},
		{"task failed", "20G", answer{data: id}, "volume 'local-lvm:vm-1000-disk-0' does not exist", 40, ErrNoSuchVolume, 1},
		{"answer lost", "40G", answer{status: 596, reason: "Connection timed out"}, "OK", 40, ErrUnreachable, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newServer(t)
			s.vm(1000, false, ours())
			s.on("GET", "/nodes/pv1-1/qemu/1000/config", answer{data: sized("20G")}, answer{data: sized(test.after)})
			s.on("PUT", "/nodes/pv1-1/qemu/1000/resize", test.answer)
			s.task(id, test.exit)
			err := s.client(t).Grow(context.Background(), ref(), "scsi0", test.gib, nil)
			puts := s.seen("PUT")
			if !errors.Is(err, test.kind) || len(puts) != test.puts {
				t.Errorf("got %v and %v", err, puts)
			}
			if len(puts) == 1 && !strings.Contains(puts[0], `"size":"40G"`) {
				t.Errorf("the size must be absolute: %s", puts[0])
			}
		})
	}
}

func TestStartJudgesByState(t *testing.T) {
	id := upid("qmstart", "1000")
	for name, test := range map[string]struct {
		exit    string
		running bool
		kind    error
	}{
		"ok":              {"OK", true, nil},
		"already running": {"VM 1000 already running", true, nil},
		"failed":          {"start failed: Cannot allocate memory", false, ErrNoMemory},
		"ok but off":      {"OK", false, ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			s.vm(1000, false, ours())
			status := "stopped"
			if test.running {
				status = "running"
			}
			s.on("GET", "/nodes/pv1-1/qemu/1000/status/current", answer{data: map[string]any{"status": "stopped"}}, answer{data: map[string]any{"status": status}})
			s.on("POST", "/nodes/pv1-1/qemu/1000/status/start", answer{data: id})
			s.task(id, test.exit)
			if _, err := s.client(t).Start(context.Background(), ref(), nil); !errors.Is(err, test.kind) {
				t.Errorf("got %v, want %v", err, test.kind)
			}
		})
	}
}

func TestDestroy(t *testing.T) {
	id := upid("qmdestroy", "1000")
	gone := answer{status: 500, reason: "Configuration file 'nodes/pv1-1/qemu-server/1000.conf' does not exist"}
	stopped := answer{data: map[string]any{"status": "stopped"}}
	running := answer{data: map[string]any{"status": "running"}}
	t.Run("running", func(t *testing.T) {
		s := newServer(t)
		s.vm(1000, true, ours())
		s.on("GET", "/nodes/pv1-1/qemu/1000/status/current", running, running, stopped, gone)
		s.on("POST", "/nodes/pv1-1/qemu/1000/status/stop", answer{data: upid("qmstop", "1000")})
		s.task(upid("qmstop", "1000"), "OK")
		s.on("DELETE", "/nodes/pv1-1/qemu/1000", answer{data: id})
		s.task(id, "OK")
		if err := s.client(t).Destroy(context.Background(), ref(), nil); err != nil {
			t.Fatal(err)
		}
		if d := s.seen("DELETE"); len(d) != 1 || !strings.Contains(d[0], "purge=1") || !strings.Contains(d[0], "destroy-unreferenced-disks=1") {
			t.Errorf("got %v", d)
		}
	})
	t.Run("absent", func(t *testing.T) {
		s := newServer(t)
		s.noVM(1000)
		if err := s.client(t).Destroy(context.Background(), ref(), nil); err != nil {
			t.Error(err)
		}
	})
	t.Run("task failed and VM lives on", func(t *testing.T) {
		s := newServer(t)
		s.vm(1000, false, ours())
		s.on("DELETE", "/nodes/pv1-1/qemu/1000", answer{data: id})
		s.task(id, "can't lock file '/var/lock/qemu-server/lock-1000.conf' - got timeout")
		if err := s.client(t).Destroy(context.Background(), ref(), nil); !errors.Is(err, ErrLockTimeout) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("earlier destroy in flight", func(t *testing.T) {
		s := newServer(t)
		locked := ours()
		locked["lock"] = "destroyed"
		s.vm(1000, false, locked)
		s.on("GET", "/nodes/pv1-1/qemu/1000/status/current", answer{data: map[string]any{"status": "stopped", "lock": "destroyed"}}, gone)
		s.on("GET", "/nodes/pv1-1/tasks", answer{data: []map[string]any{{"upid": id, "type": "qmdestroy", "id": "1000"}}})
		s.task(id, "OK")
		if err := s.client(t).Destroy(context.Background(), ref(), nil); err != nil || len(s.seen("DELETE")) != 0 {
			t.Errorf("got %v and %v", err, s.seen("DELETE"))
		}
	})
	t.Run("locked for ever", func(t *testing.T) {
		s := newServer(t)
		locked := ours()
		locked["lock"] = "clone"
		s.vm(1000, false, locked)
		s.on("GET", "/nodes/pv1-1/tasks", answer{data: []any{}})
		err := s.client(t).Destroy(context.Background(), ref(), nil)
		if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "qm unlock 1000") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("under high availability", func(t *testing.T) {
		s := newServer(t)
		s.vm(1000, true, ours())
		managed := answer{data: map[string]any{"status": "running", "ha": map[string]any{"managed": 1}}}
		s.on("GET", "/nodes/pv1-1/qemu/1000/status/current", managed, managed, managed, stopped, gone)
		s.on("PUT", "/cluster/ha/resources/vm:1000", answer{})
		s.on("DELETE", "/cluster/ha/resources/vm:1000", answer{})
		s.on("DELETE", "/nodes/pv1-1/qemu/1000", answer{data: id})
		s.task(id, "OK")
		if err := s.client(t).Destroy(context.Background(), ref(), nil); err != nil {
			t.Fatal(err)
		}
		if puts := s.seen("PUT"); len(puts) != 1 || !strings.Contains(puts[0], `"state":"disabled"`) {
			t.Errorf("got %v", puts)
		}
	})
}

func TestFindVMTellsHiddenFromAbsent(t *testing.T) {
	s := newServer(t)
	s.on("GET", "/cluster/resources", answer{data: []map[string]any{{"vmid": 1001, "node": "pv1-1", "type": "qemu"}}})
	s.on("GET", "/cluster/nextid", answer{status: 400, reason: "Parameter verification failed.", errors: map[string]string{"vmid": "VM 1000 already exists"}}, answer{data: "1000"})
	if _, err := s.client(t).FindVM(context.Background(), 1000); !errors.Is(err, ErrForbidden) {
		t.Errorf("a VM that is hidden: got %v", err)
	}
	if _, err := s.client(t).FindVM(context.Background(), 1000); !errors.Is(err, ErrNotFound) {
		t.Errorf("a VM that is absent: got %v", err)
	}
	s.vm(1001, true, ours())
	found, err := s.client(t).FindVM(context.Background(), 1001)
	if err != nil || found.VM.Node != "pv1-1" || !found.Marked || found.Belongs(testMachine) != nil {
		t.Errorf("got %+v and %v", found, err)
	}
}

func TestParseConfig(t *testing.T) {
	s := newServer(t)
	config := ours()
	config["smbios1"] = "uuid=6F1C2A34-0000-4000-8000-000000000001,base64=1"
	config["agent"] = "enabled=1,fstrim_cloned_disks=1"
	config["net1"] = "virtio=BC:24:11:00:00:02,bridge=vmbr0,tag=4,mtu=1,link_down=1"
	config["ide2"] = "local-lvm:vm-1000-cloudinit,media=cdrom"
	config["boot"] = "order=scsi0"
	s.vm(1000, false, config)
	got, err := s.client(t).VMConfig(context.Background(), "pv1-1", 1000)
	if err != nil {
		t.Fatal(err)
	}
	mac := func(text string) net.HardwareAddr {
		address, err := net.ParseMAC(text)
		if err != nil {
			t.Fatal(err)
		}
		return address
	}
	got.values = nil
	want := VMConfig{
		Digest: "d1", Name: "demo-w1", Description: spec().Mark.Description(), Tags: []string{"aether", "aether-worker", "tenant-demo"},
		Cores: 2, MemoryMiB: 2048, UUID: testMachine, Agent: true, Boot: "order=scsi0",
		NICs: []NIC{
			{Index: 0, Model: "virtio", MAC: mac("bc:24:11:00:00:01"), Bridge: "vmbr1", more: []string{"firewall=1"}},
			{Index: 1, Model: "virtio", MAC: mac("bc:24:11:00:00:02"), Bridge: "vmbr0", VLAN: 4, MTU: 1, LinkDown: true},
		},
		Disks:  []Disk{{Slot: "scsi0", Storage: "local-lvm", Volume: "local-lvm:vm-1000-disk-0", SizeBytes: 20 << 30}},
		Drives: []Drive{{Slot: "ide2", Volume: "local-lvm:vm-1000-cloudinit", CloudInit: true}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(NIC{}, VMConfig{})); diff != "" {
		t.Error(diff)
	}
}

func TestISO(t *testing.T) {
	s := newServer(t)
	id := upid("imgcopy", "")
	s.on("POST", "/nodes/pv1-1/storage/local/upload", answer{data: id})
	s.task(id, "OK")
	s.on("GET", "/nodes/pv1-1/storage/local/content", answer{data: []map[string]any{{"volid": "local:iso/aether-1000.iso"}}})
	c := s.client(t)
	volume, err := c.UploadISO(context.Background(), "pv1-1", "local", "aether-1000.iso", []byte("image"), nil)
	if err != nil || volume != "local:iso/aether-1000.iso" {
		t.Fatalf("got %q and %v", volume, err)
	}
	body := s.seen("POST")[0]
	if strings.Index(body, `name="content"`) > strings.Index(body, `name="filename"; filename="aether-1000.iso"`) {
		t.Errorf("Proxmox wants content before the file: %s", body)
	}
	if _, err := c.UploadISO(context.Background(), "pv1-1", "local", "../x.iso", nil, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("a name with a path: got %v", err)
	}
	s.on("POST", "/nodes/pv1-1/storage/local/upload", answer{status: 403, reason: "Permission check failed (/storage/local, Datastore.AllocateTemplate)"})
	if _, err := c.UploadISO(context.Background(), "pv1-1", "local", "a.iso", nil, nil); !errors.Is(err, ErrForbidden) || !strings.Contains(err.Error(), "Datastore.AllocateTemplate on /storage/local") {
		t.Errorf("got %v", err)
	}
	if err := c.DeleteISO(context.Background(), "pv1-1", "local", "other.iso", nil); err != nil || len(s.seen("DELETE")) != 0 {
		t.Errorf("an image that is not there: %v, %v", err, s.seen("DELETE"))
	}
	s.on("DELETE", "/nodes/pv1-1/storage/local/content/local:iso/aether-1000.iso", answer{data: upid("imgdel", "local")})
	s.task(upid("imgdel", "local"), "OK")
	if err := c.DeleteISO(context.Background(), "pv1-1", "local", "aether-1000.iso", nil); err != nil {
		t.Error(err)
	}
}

func TestMark(t *testing.T) {
	mark := Mark{Machine: testMachine, Tenant: "demo", Role: RoleProxy}
	for _, text := range []string{mark.Description(), "a person's words\r\n" + strings.ReplaceAll(mark.Description(), "\n", "\r\n"), strings.ToUpper(testMachine[:0]) + mark.Description() + "more"} {
		if got, ok := ParseMark(text); !ok || got != mark {
			t.Errorf("%q: got %+v, %t", text, got, ok)
		}
	}
	for _, text := range []string{"", "aether-machine: x", strings.Replace(mark.Description(), "proxy", "king", 1)} {
		if got, ok := ParseMark(text); ok {
			t.Errorf("%q: got %+v", text, got)
		}
	}
}

func TestLint(t *testing.T) {
	good := VMConfig{
		Drives:   []Drive{{Slot: "ide2", Volume: "local-lvm:vm-901-cloudinit", CloudInit: true}},
		Template: true, Boot: "order=scsi0", Disks: []Disk{{Slot: "scsi0", Storage: "local-lvm", Volume: "local-lvm:base-901-disk-0"}},
	}
	if found := lint(good, 901, "local-lvm", true); len(found) != 0 {
		t.Errorf("a good template: %v", found)
	}
	tests := map[string]func(*VMConfig){
		"template": func(c *VMConfig) { c.Template = false },
		"lock":     func(c *VMConfig) { c.Lock = "backup" },
		"boot":     func(c *VMConfig) { c.Boot = "c" },
		"disks":    func(c *VMConfig) { c.Disks = nil },
		"scsi0":    func(c *VMConfig) { c.Disks = []Disk{{Slot: "scsi0", Storage: "tank", Volume: "tank:base-901-disk-0"}} },
		"ide3": func(c *VMConfig) {
			c.Drives = []Drive{{Slot: "ide3", Volume: "local-lvm:vm-901-cloudinit", CloudInit: true}}
		},
		"ide0": func(c *VMConfig) { c.Drives = []Drive{{Slot: "ide0", Volume: "local:iso/talos.iso"}} },
	}
	for field, spoil := range tests {
		bad := good
		spoil(&bad)
		if found := lint(bad, 901, "local-lvm", true); len(found) != 1 || found[0].Field != field || found[0].Do == "" {
			t.Errorf("%s: got %v", field, found)
		}
	}
	unconverted := good
	unconverted.Disks = []Disk{{Slot: "scsi0", Storage: "local-lvm", Volume: "local-lvm:vm-901-disk-0"}}
	if found := lint(unconverted, 901, "local-lvm", true); len(found) != 1 || !strings.Contains(found[0].String(), "qm template 901") {
		t.Errorf("disks not converted: got %v", found)
	}
}

func TestMissingPrivileges(t *testing.T) {
	s := newServer(t)
	s.on("GET", "/access/permissions", answer{data: map[string]any{"/vms/1000": map[string]int{"VM.Allocate": 1}}}, answer{data: map[string]any{}})
	missing, err := s.client(t).MissingPrivileges(context.Background(), []Privilege{
		{Path: "/vms/1000", Name: "VM.Allocate"}, {Path: "/vms/1000", Name: "VM.Audit"}, {Path: "/storage/local", Name: "Datastore.Audit"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []Privilege{{Path: "/vms/1000", Name: "VM.Audit"}, {Path: "/storage/local", Name: "Datastore.Audit"}}
	if diff := cmp.Diff(want, missing); diff != "" {
		t.Error(diff)
	}
	needed := Use{FirstVMID: 1000, Templates: []int{901}, Nodes: []string{"pv1-1"}, Disks: []string{"local"}, ISOs: []string{"local"}, Bridges: []Attachment{{"vmbr0", 4}}}.Needed()
	count := 0
	for _, p := range needed {
		if p.Path == "/storage/local" && p.Name == "Datastore.Audit" {
			count++
		}
	}
	if count != 1 {
		t.Errorf("a privilege that two uses need is asked %d times", count)
	}
}

func TestBridgeCarries(t *testing.T) {
	aware := Bridge{Name: "vmbr0", Active: true, VLANAware: true, VLANs: []VLANRange{{2, 10}}}
	for _, test := range []struct {
		bridge Bridge
		tag    int
		text   string
	}{
		{aware, 0, ""},
		{aware, 4, ""},
		{aware, 11, "add 11 to its bridge-vids"},
		{Bridge{Name: "vmbr0", Active: true}, 0, ""},
		{Bridge{Name: "vmbr0", Active: true}, 4, "bridge-vlan-aware yes"},
		{Bridge{Name: "vmbr0"}, 0, "ifreload"},
	} {
		err := test.bridge.Carries(test.tag)
		if (err == nil) != (test.text == "") || err != nil && !strings.Contains(err.Error(), test.text) {
			t.Errorf("%+v, tag %d: got %v", test.bridge, test.tag, err)
		}
	}
}

func TestBridges(t *testing.T) {
	s := newServer(t)
	s.on("GET", "/nodes/pv1-1/network", answer{data: []map[string]any{
		{"iface": "vmbr1", "type": "bridge", "active": 1, "mtu": "9000"},
		{"iface": "vmbr0", "type": "bridge", "active": 1, "bridge_vlan_aware": 1, "bridge_vids": "2-10 20"},
	}})
	got, err := s.client(t).Bridges(context.Background(), "pv1-1")
	if err != nil {
		t.Fatal(err)
	}
	want := []Bridge{
		{Name: "vmbr0", Active: true, VLANAware: true, VLANs: []VLANRange{{2, 10}, {20, 20}}},
		{Name: "vmbr1", Active: true, MTU: 9000},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestCloudInitWish(t *testing.T) {
	wish := ConfigWish{CloudInit: &CloudInit{
		Slot: "ide2", Storage: "local-lvm", Nameservers: []netip.Addr{netip.MustParseAddr("192.168.0.1")},
		Addresses: map[int]AddressConfig{0: {Address: netip.MustParsePrefix("10.1.1.50/24"), Gateway: netip.MustParseAddr("10.1.1.1")}},
	}}
	set := wish.changes(VMConfig{values: map[string]string{}})
	want := map[string]any{"ide2": "local-lvm:cloudinit", "ipconfig0": "ip=10.1.1.50/24,gw=10.1.1.1", "nameserver": "192.168.0.1"}
	if diff := cmp.Diff(want, set); diff != "" {
		t.Error(diff)
	}
}

func TestShutdownForces(t *testing.T) {
	s := newServer(t)
	s.vm(1000, true, ours())
	s.on("GET", "/nodes/pv1-1/qemu/1000/status/current", answer{data: map[string]any{"status": "running"}}, answer{data: map[string]any{"status": "stopped"}})
	id := upid("qmshutdown", "1000")
	s.on("POST", "/nodes/pv1-1/qemu/1000/status/shutdown", answer{data: id})
	s.task(id, "OK")
	if err := s.client(t).Shutdown(context.Background(), ref(), 30*time.Second, nil); err != nil {
		t.Fatal(err)
	}
	if posts := s.seen("POST"); !strings.Contains(posts[0], `"forceStop":1`) || !strings.Contains(posts[0], `"timeout":30`) {
		t.Errorf("got %v", posts)
	}
}
