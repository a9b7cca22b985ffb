package proxmox_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aether.internal/aether/lab/proxmox"
)

func TestConfigTypes(t *testing.T) {
	l := start(t, withMachine)
	l.ok("POST", vm1000+"/config", map[string]string{
		"memory": "4096", "cores": "4", "cpulimit": "2", "onboot": "1", "balloon": "0", "description": "line", "cipassword": "hunter2hunter2", "agent": "enabled=1",
	})
	conf := l.get(vm1000 + "/config")
	for key, want := range map[string]any{
		"memory": "4096", "cores": 4.0, "cpulimit": "2", "onboot": 1.0, "balloon": 0.0, "description": "line\n", "cipassword": "**********",
		"agent": "enabled=1", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "scsi0": "local-lvm:vm-1000-disk-0,size=8G", "boot": "order=scsi0",
	} {
		if conf[key] != want {
			t.Errorf("%s: %#v, want %#v", key, conf[key], want)
		}
	}
	if _, ok := conf["template"]; ok {
		t.Error("a VM has the key template")
	}
	if got := l.get("/nodes/pv1-1/qemu/101/status/current"); got["template"] != 1.0 {
		t.Errorf("template: %v", got["template"])
	}
	if _, ok := l.get(vm1000 + "/status/current")["template"]; ok {
		t.Error("status/current of a VM has the key template")
	}
	if v, _ := l.find(1000); strings.Contains(v.Config["cipassword"], "hunter2") {
		t.Error("the password is in the configuration")
	}
}

func TestConfigRefusals(t *testing.T) {
	l := start(t, withMachine)
	narrow := l.user("narrow@pve", map[string]string{"/vms": "PVEVMUser"})
	type form = map[string]string
	for name, c := range map[string]struct {
		token  string
		form   form
		status string
		errors form
	}{
		"nothing":        {l.secret, form{}, "500 no options specified", nil},
		"unknown delete": {l.secret, form{"delete": "foo"}, "400 Parameter verification failed.", form{"delete": "unknown option 'foo'"}},
		"digest":         {l.secret, form{"onboot": "1", "digest": strings.Repeat("0", 40)}, "500 checksum mismatch (file change by other user?)", nil},
		"balloon":        {l.secret, form{"balloon": "9000"}, "500 balloon value too large (must be smaller than assigned memory)", nil},
		"boot order":     {l.secret, form{"boot": "order=scsi9"}, "500 invalid bootorder: device 'scsi9' does not exist'", nil},
		"skiplock":       {l.secret, form{"onboot": "1", "skiplock": "1"}, "400 Parameter verification failed.", form{"skiplock": "Only root may use this option."}},
		"name":           {l.secret, form{"name": "a_b"}, "400 Parameter verification failed.", form{"name": "invalid format - value does not look like a valid DNS name\n"}},
		"net key":        {l.secret, form{"net0": "virtio,foo=1"}, "400 Parameter verification failed.", form{"net0": "invalid format - format error\nnet0.foo: property is not defined in schema and the schema does not allow additional properties\n"}},
		"net index":      {l.secret, form{"net32": "virtio"}, "400 Parameter verification failed.", form{"net32": "property is not defined in schema and the schema does not allow additional properties"}},
		"net mac":        {l.secret, form{"net0": "virtio=01:00:00:00:00:00,bridge=vmbr0"}, "400 Parameter verification failed.", form{"net0": "invalid format - format error\nnet0.macaddr: invalid format - value does not look like a valid unicast MAC address\n"}},
		"vlan":           {l.secret, form{"net0": "virtio,bridge=vmbr0,tag=4095"}, "400 Parameter verification failed.", form{"net0": "invalid format - format error\nnet0.tag: value must have a maximum value of 4094\n"}},
		"sshkeys":        {l.secret, form{"sshkeys": "ssh-ed25519 AAAA+x"}, "400 Parameter verification failed.", form{"sshkeys": "invalid format - invalid urlencoded string: ssh-ed25519 AAAA+x\n"}},
		"ipconfig":       {l.secret, form{"ipconfig0": "ip=10.0.0.300/24"}, "400 Parameter verification failed.", form{"ipconfig0": "invalid format - format error\nipconfig0.ip: invalid format - value does not look like a valid network/mask\n"}},
		"gateway alone":  {l.secret, form{"ipconfig0": "gw=10.0.0.1"}, "400 Parameter verification failed.", form{"ipconfig0": "invalid format - gateway specified without specifying an IP address\n"}},
		"tag":            {l.secret, form{"tags": "a b!"}, "400 Parameter verification failed.", form{"tags": "invalid format - invalid characters in tag\n"}},
		"smbios":         {l.secret, form{"smbios1": "uuid=x"}, "400 Parameter verification failed.", form{"smbios1": "invalid format - format error\nsmbios1.uuid: value does not match the regex pattern\n"}},
		"ostype":         {l.secret, form{"ostype": "talos"}, "400 Parameter verification failed.", form{"ostype": "value 'talos' does not have a value in the enumeration 'other, wxp, w2k, w2k3, w2k8, wvista, win7, win8, win10, win11, l24, l26, solaris'"}},
		"requires":       {l.secret, form{"onboot": "1", "force": "1"}, "400 Parameter verification failed.", form{"delete": "missing property required by 'force'"}},
		"description":    {l.secret, form{"description": strings.Repeat("x", 8193)}, "400 Parameter verification failed.", form{"description": "value may only be 8192 characters long"}},
		"cpu":            {narrow, form{"cores": "4"}, "403 Permission check failed (/vms/1000, VM.Config.CPU)", nil},
		"memory":         {narrow, form{"memory": "4096"}, "403 Permission check failed (/vms/1000, VM.Config.Memory)", nil},
		"options":        {narrow, form{"tags": "x"}, "403 Permission check failed (/vms/1000, VM.Config.Options)", nil},
		"disk":           {narrow, form{"scsi1": "local-lvm:1"}, "403 Permission check failed (/vms/1000, VM.Config.Disk)", nil},
		"delete disk":    {narrow, form{"delete": "scsi0"}, "403 Permission check failed (/vms/1000, VM.Config.Disk)", nil},
		"network":        {narrow, form{"net0": "virtio,bridge=vmbr0"}, "403 Permission check failed (/vms/1000, VM.Config.Network)", nil},
		"hardware":       {narrow, form{"smbios1": "uuid=c8961a3b-dfde-4a50-824d-c20285c96257"}, "403 Permission check failed (/vms/1000, VM.Config.HWType)", nil},
		"root's":         {l.secret, form{"args": "-s"}, "500 only root can set 'args' config", nil},
		"lock":           {l.secret, form{"lock": "backup"}, "500 only root can set 'lock' config", nil},
		"iso storage":    {narrow, form{"ide0": "local:iso/x.iso,media=cdrom"}, "403 Permission check failed (/storage/local, Datastore.AllocateSpace|Datastore.Audit)", nil},
		"missing disk":   {l.secret, form{"scsi1": "local-lvm:vm-1000-disk-7"}, "500 volume 'local-lvm:vm-1000-disk-7' does not exist", nil},
		"second ci":      {l.secret, form{"ide0": "local-lvm:cloudinit"}, `500 lvcreate 'pve/vm-1000-cloudinit' error:   Logical Volume "vm-1000-cloudinit" already exists in volume group "pve"`, nil},
		"no images":      {l.secret, form{"scsi1": "local:1"}, "400 Parameter verification failed.", form{"storage": "storage 'local' does not support vm images"}},
		"no vm":          {l.secret, nil, "500 Configuration file 'nodes/pv1-1/qemu-server/999.conf' does not exist", nil},
	} {
		t.Run(name, func(t *testing.T) {
			before, _ := l.find(1000)
			path, body := vm1000, c.form
			if name == "no vm" {
				path, body = "/nodes/pv1-1/qemu/999", form{"onboot": "1"}
			}
			got := l.as(c.token, "pv1-1", "PUT", path+"/config", body)
			if got.status != c.status {
				t.Errorf("%q %v, want %q", got.status, got.errors, c.status)
			}
			if diff := cmp.Diff(c.errors, got.errors); diff != "" {
				t.Error(diff)
			}
			after, _ := l.find(1000)
			if diff := cmp.Diff(before, after); diff != "" {
				t.Error("a refused call changed something:\n" + diff)
			}
		})
	}
}

func TestDigest(t *testing.T) {
	l := start(t, withMachine)
	digest := fmt.Sprint(l.get(vm1000 + "/config")["digest"])
	if len(digest) != 40 {
		t.Fatalf("digest %q", digest)
	}
	if a := l.do("PUT", vm1000+"/config", map[string]string{"tags": "a", "digest": digest}); a.status != "200 OK" {
		t.Error(a.status)
	}
	if a := l.do("PUT", vm1000+"/config", map[string]string{"tags": "b", "digest": digest}); a.status != "500 checksum mismatch (file change by other user?)" {
		t.Error(a.status)
	}
}

func TestBackgroundDelay(t *testing.T) {
	l := start(t, withMachine)
	a := l.do("POST", vm1000+"/config", map[string]string{"onboot": "1", "background_delay": "5"})
	if a.status != "200 OK" || string(a.data) != "null" {
		t.Errorf("%s %s", a.status, a.body)
	}
}

func TestConfigOfAStoppedMachine(t *testing.T) {
	l := start(t, withMachine)
	for _, c := range []struct {
		name string
		set  map[string]string
		want map[string]string // "" means absent
	}{
		{"tags", map[string]string{"tags": "Zebra, apple;apple"}, map[string]string{"tags": "apple;zebra"}},
		{"mac is made", map[string]string{"net2": "virtio,bridge=vmbr1,firewall=0"}, nil},
		{"mac is kept", map[string]string{"net2": "virtio=bc:24:11:aa:bb:cc,tag=4,bridge=vmbr0"}, map[string]string{"net2": "virtio=BC:24:11:AA:BB:CC,bridge=vmbr0,tag=4"}},
		{"disk is made", map[string]string{"scsi1": "local-lvm:4"}, map[string]string{"scsi1": "local-lvm:vm-1000-disk-1,size=4G"}},
		{"disk is replaced", map[string]string{"scsi1": "local-lvm:2"}, map[string]string{"scsi1": "local-lvm:vm-1000-disk-2,size=2G", "unused0": "local-lvm:vm-1000-disk-1"}},
		{"disk is detached", map[string]string{"delete": "scsi1"}, map[string]string{"scsi1": "", "unused1": "local-lvm:vm-1000-disk-2"}},
		{"disk is attached", map[string]string{"scsi2": "local-lvm:vm-1000-disk-2"}, map[string]string{"scsi2": "local-lvm:vm-1000-disk-2,size=2G", "unused1": ""}},
		{"unused is freed", map[string]string{"delete": "unused0"}, map[string]string{"unused0": ""}},
		{"forced delete", map[string]string{"delete": "scsi2", "force": "1"}, map[string]string{"scsi2": "", "unused0": ""}},
		{"drive is dropped", map[string]string{"delete": "ide2"}, map[string]string{"ide2": ""}},
		{"drive is made", map[string]string{"ide0": "local-lvm:cloudinit"}, map[string]string{"ide0": "local-lvm:vm-1000-cloudinit,media=cdrom,size=4M"}},
		{"empty cdrom", map[string]string{"cdrom": "none"}, map[string]string{"ide2": "none,media=cdrom"}},
		{"boot", map[string]string{"boot": "order=scsi0;ide0"}, map[string]string{"boot": "order=scsi0;ide0"}},
		{"legacy boot", map[string]string{"boot": "cdn"}, map[string]string{"boot": "cdn"}},
	} {
		l.ok("POST", vm1000+"/config", c.set)
		v, _ := l.find(1000)
		for key, want := range c.want {
			if got, has := v.Config[key]; got != want || (want == "" && has) {
				t.Errorf("%s: %s is %q, want %q", c.name, key, got, want)
			}
		}
		if len(v.Pending) > 0 {
			t.Errorf("%s: pending %v", c.name, v.Pending)
		}
	}
	v, _ := l.find(1000)
	if !strings.HasPrefix(v.Config["net2"], "virtio=BC:24:11:") {
		t.Errorf("net2: %s", v.Config["net2"])
	}
	var left []string
	for _, volume := range l.cluster.Volumes("pv1-1") {
		if strings.Contains(volume, "-1000-") {
			left = append(left, volume)
		}
	}
	if diff := cmp.Diff([]string{"local-lvm:vm-1000-cloudinit", "local-lvm:vm-1000-disk-0"}, left); diff != "" {
		t.Error(diff)
	}
}

func TestConfigOfARunningMachine(t *testing.T) {
	l := start(t, withMachine)
	l.ok("POST", vm1000+"/status/start", nil)
	guest := l.guests.get(1000)
	l.ok("POST", vm1000+"/config", map[string]string{
		"cores": "4", "tags": "now", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0,link_down=1", "net1": "virtio=BC:24:11:00:00:02,bridge=vmbr1",
	})
	nics := guest.Hardware().NICs
	if !nics[0].LinkDown || nics[1].LinkDown {
		t.Errorf("cables: %+v", nics)
	}
	v, _ := l.find(1000)
	if diff := cmp.Diff(map[string]string{"cores": "4"}, v.Pending); diff != "" {
		t.Error(diff)
	}
	if got := l.get(vm1000 + "/config")["cores"]; got != 4.0 {
		t.Errorf("config shows %v cores", got)
	}
	if got := l.get(vm1000 + "/config?current=1")["cores"]; got != 2.0 {
		t.Errorf("current config shows %v cores", got)
	}
	if got := l.get(vm1000 + "/status/current")["cpus"]; got != 2.0 {
		t.Errorf("status shows %v cpus", got)
	}
	found := false
	for _, row := range l.list(vm1000 + "/pending") {
		if row["key"] == "cores" {
			found = row["value"] == 2.0 && row["pending"] == 4.0
		}
	}
	if !found {
		t.Errorf("pending: %v", l.list(vm1000+"/pending"))
	}
	l.ok("POST", vm1000+"/config", map[string]string{"revert": "cores", "delete": "net1"})
	l.ok("POST", vm1000+"/status/stop", nil)
	l.ok("POST", vm1000+"/status/start", nil)
	h := l.guests.get(1000).Hardware()
	if h.Cores != 2 || len(h.NICs) != 1 || !h.NICs[0].LinkDown {
		t.Errorf("hardware after restart: %+v", h)
	}
}

func TestHardware(t *testing.T) {
	l := start(t, withMachine)
	l.ok("POST", vm1000+"/config", map[string]string{
		"scsi1": "local-lvm:1", "boot": "order=scsi1;scsi0", "net5": "virtio=BC:24:11:00:00:05,bridge=vmbr0,tag=4,mtu=1400", "sockets": "2",
		"smbios1": "uuid=C8961A3B-DFDE-4A50-824D-C20285C96257",
	})
	l.ok("POST", vm1000+"/status/start", nil)
	h := l.guests.get(1000).Hardware()
	if h.UUID != "c8961a3b-dfde-4a50-824d-c20285c96257" || h.Cores != 4 || h.MemoryMiB != 2048 || h.Host != "pv1-1" || !h.AgentDevice || h.Name != "m" {
		t.Errorf("hardware: %+v", h)
	}
	if len(h.Disks) != 2 || h.Disks[0].Slot != "scsi1" || h.Disks[1].SizeBytes != 8<<30 || h.Disks[1].Volume != "local-lvm:vm-1000-disk-0" {
		t.Errorf("disks: %+v", h.Disks)
	}
	if len(h.NICs) != 3 || h.NICs[2].Index != 5 || h.NICs[2].VLAN != 4 || h.NICs[2].MTU != 1400 || !h.NICs[1].LinkDown {
		t.Errorf("NICs: %+v", h.NICs)
	}
	if len(h.Media) != 1 || h.Media[0].Label != "cidata" || !strings.Contains(string(h.Media[0].Files["network-config"]), "address: '192.168.0.50'") {
		t.Errorf("media: %+v", h.Media)
	}
}

func TestCloudInitDrive(t *testing.T) {
	l := start(t, withMachine)
	l.ok("POST", vm1000+"/status/start", nil)
	l.ok("POST", vm1000+"/config", map[string]string{"ipconfig0": "ip=192.168.0.51/24,gw=192.168.0.1"})
	medium := func() string { return string(l.guests.get(1000).Hardware().Media[0].Files["network-config"]) }
	if !strings.Contains(medium(), "192.168.0.50") {
		t.Error("the drive changed before it was made anew")
	}
	changed := false
	for _, row := range l.list(vm1000 + "/cloudinit") {
		changed = changed || (row["key"] == "ipconfig0" && row["pending"] == "ip=192.168.0.51/24,gw=192.168.0.1")
	}
	if !changed {
		t.Errorf("cloudinit: %v", l.list(vm1000+"/cloudinit"))
	}
	if a := l.do("PUT", vm1000+"/cloudinit", nil); a.status != "200 OK" {
		t.Error(a.status)
	}
	if !strings.Contains(medium(), "192.168.0.51") {
		t.Error("the drive was not made anew")
	}
	var dump string
	for kind, want := range map[string]string{"user": "hostname: m", "network": "192.168.0.51", "meta": "instance-id: "} {
		a := l.do("GET", vm1000+"/cloudinit/dump", map[string]string{"type": kind})
		if dump = string(a.data); !strings.Contains(dump, want) {
			t.Errorf("%s: %s", kind, dump)
		}
	}
}

// TestLinkDownAtBirth clones a VM whose NIC is unplugged.
func TestLinkDownAtBirth(t *testing.T) {
	l := start(t, withMachine, func(c *proxmox.Config) { c.QDevice = true })
	l.ok("POST", vm1000+"/clone", map[string]string{"newid": "1001"})
	l.ok("POST", "/nodes/pv1-1/qemu/1001/status/start", nil)
	if nics := l.guests.get(1001).Hardware().NICs; !nics[1].LinkDown || nics[1].MAC.String() == "bc:24:11:00:00:02" {
		t.Errorf("NICs: %+v", nics)
	}
}
