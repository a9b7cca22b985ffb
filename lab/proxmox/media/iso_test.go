package media

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"github.com/google/go-cmp/cmp"
)

// burn makes an image the way go-proxmox does, with the options to vary.
func burn(t *testing.T, files map[string]string, options iso9660.FinalizeOptions) []byte {
	t.Helper()
	name := filepath.Join(t.TempDir(), "x.iso")
	store, err := file.CreateFromPath(name, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	image, err := iso9660.Create(store, 0, 0, sector, "")
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range files {
		if dir := filepath.Dir(path); dir != "." {
			if err := image.Mkdir(dir); err != nil {
				t.Fatal(err)
			}
		}
		f, err := image.OpenFile("/"+path, os.O_CREATE|os.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := image.Finalize(options); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestParseISO(t *testing.T) {
	files := map[string]string{"user-data": "#cloud-config\n", "meta-data": "instance-id: 1\n", "openstack/content": "x"}
	want := &Disc{Label: "cidata", Files: map[string][]byte{}}
	for name, text := range files {
		want.Files[name] = []byte(text)
	}
	for name, options := range map[string]iso9660.FinalizeOptions{
		"rock ridge": {RockRidge: true, VolumeIdentifier: "cidata"},
		"both":       {RockRidge: true, Joliet: true, VolumeIdentifier: "cidata"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseISO(burn(t, files, options))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseISORefuses(t *testing.T) {
	good := burn(t, map[string]string{"user-data": "x"}, iso9660.FinalizeOptions{RockRidge: true, VolumeIdentifier: "cidata"})
	broken := append([]byte(nil), good...)
	for i := descriptors + 120; i < descriptors+sector; i++ {
		broken[i] = 0xff
	}
	for name, data := range map[string][]byte{
		"empty": nil, "text": []byte("hello"), "zeros": make([]byte, 1<<20), "cut": good[:descriptors+100], "broken tables": broken,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ParseISO(data); !errors.Is(err, ErrNotISO) {
				t.Errorf("got %v, want ErrNotISO", err)
			}
		})
	}
}

func TestNoCloud(t *testing.T) {
	got := NoCloud(Source{VMID: 1001, SearchDomain: "lab", Nameservers: []string{"192.168.0.1"}, Config: map[string]string{
		"name": "w1", "ciuser": "root", "sshkeys": "ssh-ed25519%20AAAA%20me%0A", "ciupgrade": "0",
		"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "net1": "virtio=BC:24:11:00:00:02,bridge=vmbr1", "net2": "virtio=BC:24:11:00:00:03",
		"ipconfig0": "ip=192.168.0.50/24,gw=192.168.0.1", "ipconfig1": "ip=dhcp,ip6=auto",
	}})
	if diff := cmp.Diff(CloudInit{
		User: "#cloud-config\nhostname: w1\nmanage_etc_hosts: true\nfqdn: w1.lab\nuser: root\ndisable_root: False\n" +
			"ssh_authorized_keys:\n  - ssh-ed25519 AAAA me\nchpasswd:\n  expire: False\n",
		Network: `version: 1
config:
    - type: physical
      name: eth0
      mac_address: 'bc:24:11:00:00:01'
      subnets:
      - type: static
        address: '192.168.0.50'
        netmask: '255.255.255.0'
        gateway: '192.168.0.1'
    - type: physical
      name: eth1
      mac_address: 'bc:24:11:00:00:02'
      subnets:
      - type: dhcp4
      - type: ipv6_slaac
    - type: nameserver
      address:
      - '192.168.0.1'
      search:
      - 'lab'
`,
		Meta: got.Meta,
	}, got); diff != "" {
		t.Error(diff)
	}
	again := NoCloud(Source{VMID: 1001, Config: map[string]string{"name": "w2"}})
	if again.Meta == got.Meta {
		t.Error("the instance ID did not change with the content")
	}
}
