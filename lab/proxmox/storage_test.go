package proxmox_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"

	"aether.internal/aether/lab/proxmox"
)

// cidata makes a cloud-init image.
func cidata(t *testing.T, userData string) []byte {
	t.Helper()
	name := filepath.Join(t.TempDir(), "x.iso")
	store, err := file.CreateFromPath(name, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	image, err := iso9660.Create(store, 0, 0, 2048, "")
	if err != nil {
		t.Fatal(err)
	}
	f, err := image.OpenFile("/user-data", os.O_CREATE|os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte(userData)); err != nil {
		t.Fatal(err)
	}
	if err := image.Finalize(iso9660.FinalizeOptions{RockRidge: true, VolumeIdentifier: "cidata"}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

type part struct{ name, value string }

// upload sends parts in their order and then the file.
func (l *lab) upload(token, storage, filename string, data []byte, parts ...part) answer {
	l.t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	for _, p := range parts {
		if err := w.WriteField(p.name, p.value); err != nil {
			l.t.Fatal(err)
		}
	}
	if filename != "" {
		f, err := w.CreateFormFile("filename", filename)
		if err != nil {
			l.t.Fatal(err)
		}
		if _, err := f.Write(data); err != nil {
			l.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		l.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(l.t.Context(), "POST", l.cluster.Endpoint("pv1-1")+"/nodes/pv1-1/storage/"+storage+"/upload", &body)
	if err != nil {
		l.t.Fatal(err)
	}
	req.Header.Set("Content-Type", w.FormDataContentType())
	req.Header.Set("Authorization", token)
	a, err := l.send(req)
	if err != nil {
		l.t.Fatal(err)
	}
	return a
}

func TestUpload(t *testing.T) {
	l := start(t, withMachine)
	iso := cidata(t, "#cloud-config\n")
	sum := sha256.Sum256(iso)
	content := part{"content", "iso"}
	none := l.user("none@pve", nil)
	for name, c := range map[string]struct {
		token, storage, file string
		data                 []byte
		parts                []part
		status, exit         string
	}{
		"iso":             {l.secret, "local", "x.iso", iso, []part{content}, "200 OK", "OK"},
		"again":           {l.secret, "local", "x.iso", iso, []part{content}, "200 OK", "OK"},
		"checksum":        {l.secret, "local", "y.iso", iso, []part{content, {"checksum-algorithm", "sha256"}, {"checksum", hex.EncodeToString(sum[:])}}, "200 OK", "OK"},
		"wrong checksum":  {l.secret, "local", "z.iso", iso, []part{content, {"checksum-algorithm", "sha256"}, {"checksum", "00"}}, "200 OK", "checksum mismatch: got '" + hex.EncodeToString(sum[:]) + "' != expect '00'"},
		"not an iso":      {l.secret, "local", "z.iso", []byte("hello"), []part{content}, "200 OK", "import failed: 'z.iso' is not a valid ISO image"},
		"extension":       {l.secret, "local", "z.txt", iso, []part{content}, "400 Parameter verification failed.", ""},
		"block storage":   {l.secret, "local-lvm", "z.iso", iso, []part{content}, "500 can't upload to storage type 'lvmthin'", ""},
		"content type":    {l.secret, "local", "z.ova", iso, []part{{"content", "import"}}, "500 storage 'local' does not support 'import' content", ""},
		"snippets":        {l.secret, "local", "z.yaml", iso, []part{{"content", "snippets"}}, "400 Parameter verification failed.", ""},
		"no content":      {l.secret, "local", "z.iso", iso, nil, "400 Parameter verification failed.", ""},
		"unknown storage": {l.secret, "nope", "z.iso", iso, []part{content}, "500 storage 'nope' does not exist", ""},
		"wrong order":     {l.secret, "local", "z.iso", iso, []part{{"checksum-algorithm", "sha256"}, content}, "501 wrong field order or unknown part 'content' in upload", ""},
		"no file":         {l.secret, "local", "", nil, []part{content}, "501 wrong field order or missing file part in upload", ""},
		"no right":        {none, "local", "z.iso", iso, []part{content}, "403 Permission check failed (/storage/local, Datastore.AllocateTemplate)", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := l.upload(c.token, c.storage, c.file, c.data, c.parts...)
			if a.status != c.status {
				t.Fatalf("%q %v, want %q", a.status, a.errors, c.status)
			}
			if c.exit == "" {
				return
			}
			upid := l.upid(a)
			if !strings.Contains(upid, ":imgcopy::aether@pve!lab:") {
				t.Errorf("upid %s", upid)
			}
			if exit := l.wait(upid); exit != c.exit {
				t.Errorf("%q, want %q", exit, c.exit)
			}
		})
	}
	rows := l.list("/nodes/pv1-1/storage/local/content?content=iso")
	if len(rows) != 2 || rows[0]["volid"] != "local:iso/x.iso" || rows[0]["format"] != "iso" || rows[0]["size"] != float64(len(iso)) {
		t.Errorf("content: %v", rows)
	}
}

// TestISOInTheDrive puts a disc into a running VM, takes it out and deletes it.
func TestISOInTheDrive(t *testing.T) {
	l := start(t, withMachine)
	if exit := l.wait(l.upid(l.upload(l.secret, "local", "x.iso", cidata(t, "hello"), part{"content", "iso"}))); exit != "OK" {
		t.Fatal(exit)
	}
	l.ok("POST", vm1000+"/config", map[string]string{"ide0": "none,media=cdrom"})
	l.ok("POST", vm1000+"/status/start", nil)
	media := func() int { return len(l.guests.get(1000).Hardware().Media) }
	if media() != 1 {
		t.Errorf("%d media at first", media())
	}
	l.ok("POST", vm1000+"/config", map[string]string{"ide0": "local:iso/x.iso,media=cdrom"})
	got := l.guests.get(1000).Hardware().Media
	if len(got) != 2 || got[0].Slot != "ide0" || got[0].Label != "cidata" || string(got[0].Files["user-data"]) != "hello" {
		t.Errorf("media: %+v", got)
	}
	l.ok("POST", vm1000+"/config", map[string]string{"ide0": "none,media=cdrom"})
	if media() != 1 {
		t.Errorf("%d media at last", media())
	}
	info := l.get("/nodes/pv1-1/storage/local/content/local:iso/x.iso")
	if _, has := info["volid"]; has || info["path"] != "/var/lib/vz/template/iso/x.iso" || info["format"] != "iso" {
		t.Errorf("volume: %v", info)
	}
	upid := l.upid(l.do("DELETE", "/nodes/pv1-1/storage/local/content/local:iso/x.iso", nil))
	if exit := l.wait(upid); exit != "OK" || !strings.Contains(upid, ":imgdel:local:") {
		t.Errorf("%s: %s", upid, exit)
	}
	if exit := l.task("DELETE", "/nodes/pv1-1/storage/local/content/local:iso/x.iso", nil); exit != "volume 'local:iso/x.iso' does not exist" {
		t.Error(exit)
	}
	if a := l.do("GET", "/nodes/pv1-1/storage/local/content/local:iso/x.iso", nil); a.status != "500 volume_size_info on 'local:iso/x.iso' failed - no format" {
		t.Error(a.status)
	}
}

func TestStorages(t *testing.T) {
	l := start(t, withMachine)
	var names []string
	for _, row := range l.list("/nodes/pv1-1/storage") {
		names = append(names, fmt.Sprint(row["storage"], " ", row["type"], " ", row["content"], " ", row["active"], row["enabled"], row["shared"]))
	}
	if got := strings.Join(names, "; "); got != "local dir iso,vztmpl,backup 1 1 0; local-lvm lvmthin images,rootdir 1 1 0" {
		t.Error(got)
	}
	if rows := l.list("/nodes/pv1-1/storage?content=images"); len(rows) != 1 || rows[0]["storage"] != "local-lvm" || rows[0]["used"].(float64) <= 0 {
		t.Errorf("images: %v", rows)
	}
	if a := l.do("GET", "/nodes/pv1-1/storage?storage=xx", nil); a.errors["storage"] != "No such storage." {
		t.Errorf("%s %v", a.status, a.errors)
	}
	if a := l.do("GET", "/nodes/pv1-1/storage/xx/content", nil); a.status != "500 storage 'xx' does not exist" {
		t.Error(a.status)
	}
	rows := l.list("/nodes/pv1-1/storage/local-lvm/content?vmid=1000")
	if len(rows) != 2 || rows[1]["volid"] != "local-lvm:vm-1000-disk-0" || rows[1]["format"] != "raw" || rows[1]["vmid"] != 1000.0 {
		t.Errorf("content: %v", rows)
	}
	l.ok("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1001"})
	rows = l.list("/nodes/pv1-1/storage/local-lvm/content?vmid=1001")
	if len(rows) != 2 || rows[1]["parent"] != "base-101-disk-0@__base__" {
		t.Errorf("clone's content: %v", rows)
	}
	if rows := l.list("/storage"); len(rows) != 2 {
		t.Errorf("configured: %v", rows)
	}
	a := l.do("POST", "/nodes/pv1-1/storage/local-lvm/content", map[string]string{"vmid": "1000", "filename": "vm-1000-extra", "size": "1G"})
	if string(a.data) != `"local-lvm:vm-1000-extra"` {
		t.Errorf("%s %s", a.status, a.body)
	}
	l.ok("DELETE", "/nodes/pv1-1/storage/local-lvm/content/vm-1000-extra", nil)
}

func TestFullStorage(t *testing.T) {
	l := start(t, withMachine, func(c *proxmox.Config) {
		for i := range c.Nodes {
			storages := append([]proxmox.Storage(nil), c.Nodes[i].Storages...)
			storages[1].Bytes = 8 << 30
			c.Nodes[i].Storages = storages
		}
	})
	exit := l.task("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1001", "full": "1"})
	if !strings.HasPrefix(exit, "clone failed: lvcreate") || !strings.Contains(exit, "free space in thin pool") {
		t.Error(exit)
	}
	if _, there := l.find(1001); there {
		t.Error("left a VM")
	}
}

// TestSharedStorage clones to the other node, which needs all of the VM to be
// on a storage that both have.
func TestSharedStorage(t *testing.T) {
	l := start(t, func(c *proxmox.Config) {
		for i := range c.Nodes {
			c.Nodes[i].Storages = append(append([]proxmox.Storage(nil), c.Nodes[i].Storages...),
				proxmox.Storage{Name: "ceph", Type: "rbd", Content: []string{"images"}, Bytes: 1 << 40, Shared: true})
		}
		c.Templates = append(c.Templates, proxmox.Template{VMID: 300, Node: "pv1-1", Name: "shared", Storage: "ceph", DiskGiB: 4})
	})
	l.ok("POST", "/nodes/pv1-1/qemu/300/clone", map[string]string{"newid": "1000", "target": "pv1-2"})
	if v, _ := l.find(1000); v.Node != "pv1-2" || v.Config["scsi0"] != "ceph:vm-1000-disk-0,size=4G" {
		t.Errorf("made %+v", v)
	}
}
