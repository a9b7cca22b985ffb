package proxmox

import (
	"crypto/md5"  //nolint:gosec // a checksum that the client chose
	"crypto/sha1" //nolint:gosec // a checksum that the client chose
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/proxmox/media"
	"aether.internal/aether/lab/proxmox/schema"
	"aether.internal/aether/lab/proxmox/task"
	"aether.internal/aether/lab/proxmox/wire"
)

func (c *Cluster) mayUseStorage(r *call, name string) bool {
	return c.access.CheckAny(r.id, "/storage/"+name, "Datastore.Audit", "Datastore.AllocateSpace") == nil
}

func nodeStorages(c *Cluster, r *call) (any, error) {
	want := r.values.Get("storage")
	if want != "" && r.node.storages[want] == nil {
		return nil, paramError("storage", "No such storage.")
	}
	contents := schema.SplitList(r.values.Get("content"))
	rows := []map[string]any{}
	for _, spec := range r.node.Storages {
		wrongContent := len(contents) > 0 && !slices.ContainsFunc(contents, func(k string) bool { return slices.Contains(spec.Content, k) })
		if (want != "" && want != spec.Name) || wrongContent || !c.mayUseStorage(r, spec.Name) {
			continue
		}
		c.mu.Lock()
		row := r.node.storages[spec.Name].row()
		c.mu.Unlock()
		row["storage"] = spec.Name
		rows = append(rows, row)
	}
	return rows, nil
}

func storageStatus(c *Cluster, r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := c.storage(r.node, r.values.Get("storage"))
	if err != nil {
		return nil, err
	}
	return s.row(), nil
}

func storageContent(c *Cluster, r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := c.storage(r.node, r.values.Get("storage"))
	if err != nil {
		return nil, err
	}
	rows := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(s.volumes)) {
		v := s.volumes[name]
		if kind := r.values.Get("content"); kind != "" && kind != v.content {
			continue
		}
		if r.values.Has("vmid") && r.values.Int("vmid", 0) != v.vmid {
			continue
		}
		rows = append(rows, v.row(s.Name))
	}
	return rows, nil
}

// volumeID completes a volume's name with the storage of the path.
func volumeID(r *call) string {
	name := r.values.Get("volume")
	if strings.Contains(name, ":") {
		return name
	}
	return r.values.Get("storage") + ":" + name
}

func readVolume(c *Cluster, r *call) (any, error) {
	volid := volumeID(r)
	storageName, _, _ := splitVolume(volid)
	if err := c.access.CheckAny(r.id, "/storage/"+storageName, "Datastore.AllocateSpace", "Datastore.Audit"); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s, v, err := c.volume(r.node, volid)
	if err != nil {
		if s == nil {
			return nil, err
		}
		return nil, fail("volume_size_info on '%s' failed - no format", volid)
	}
	return map[string]any{"path": s.path(v), "size": v.size, "used": v.used, "format": v.format}, nil
}

func (s *storage) path(v *volume) string {
	if s.blockOnly() {
		return "/dev/pve/" + v.name
	}
	if file, ok := strings.CutPrefix(v.name, "iso/"); ok {
		return "/var/lib/vz/template/iso/" + file
	}
	return "/var/lib/vz/images/" + v.name
}

func createVolume(c *Cluster, r *call) (any, error) {
	text := r.values.Get("size")
	if strings.Trim(text, "0123456789") == "" {
		text += "K"
	}
	size, _ := parseSize(text)
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := c.storage(r.node, r.values.Get("storage"))
	if err != nil {
		return nil, err
	}
	name := r.values.Get("filename")
	if s.volumes[name] != nil {
		return nil, fail("disk image '%s' already exists", s.path(s.volumes[name]))
	}
	volid, err := c.allocate(s, newDisk{vmid: r.vmid(), size: size, format: r.values.Get("format"), content: blankContent()})
	if err != nil {
		return nil, err
	}
	_, made, _ := splitVolume(volid)
	v := s.volumes[made]
	delete(s.volumes, made)
	v.name = name
	s.volumes[name] = v
	return s.Name + ":" + name, nil
}

func deleteVolume(c *Cluster, r *call) (any, error) {
	volid := volumeID(r)
	storageName, name, _ := splitVolume(volid)
	if err := c.checkDeleteVolume(r, volid); err != nil {
		return nil, err
	}
	id := storageName
	if vmid := ownerOf(name); vmid != 0 {
		id = fmt.Sprintf("%d@%s", vmid, storageName)
	}
	t := c.start(r, taskSpec{kind: "imgdel", id: id}, func(t *task.Task) error {
		if err := t.Step(latency.VMConfig, 1); err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		s, v, err := c.volume(r.node, volid)
		if err != nil {
			return err
		}
		if s.children(v.name) > 0 {
			return fail("base volume '%s' is still in use by linked clones", volid)
		}
		delete(s.volumes, v.name)
		return nil
	})
	if delay := r.values.Int("delay", 0); delay > 0 {
		select {
		case <-t.Done():
			return nil, nil
		case <-time.After(c.cfg.Clock.Scale(time.Duration(delay) * time.Second)):
		}
	}
	return t.UPID().String(), nil
}

func (c *Cluster) checkDeleteVolume(r *call, volid string) error {
	storageName, name, _ := splitVolume(volid)
	c.mu.Lock()
	_, err := c.storage(r.node, storageName)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if vmid := ownerOf(name); vmid != 0 && c.access.Check(r.id, fmt.Sprintf("/vms/%d", vmid), "VM.Config.Disk") == nil {
		return c.access.Check(r.id, "/storage/"+storageName, "Datastore.AllocateSpace")
	}
	return c.access.Check(r.id, "/storage/"+storageName, "Datastore.Allocate")
}

// ownerOf reads the VM out of the name of an image.
func ownerOf(name string) int {
	name = name[strings.LastIndex(name, "/")+1:]
	for _, prefix := range []string{"vm-", "base-"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			digits, _, _ := strings.Cut(rest, "-")
			if id, err := strconv.Atoi(digits); err == nil {
				return id
			}
		}
	}
	return 0
}

// upload takes a file. PVE 9 looks into it: an ISO must be one.
func upload(c *Cluster, r *call) (any, error) {
	if r.upload == nil {
		return nil, paramError("filename", "property is missing and it is not optional")
	}
	c.mu.Lock()
	s, err := c.storage(r.node, r.values.Get("storage"))
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	content := r.values.Get("content")
	name := strings.ReplaceAll(r.upload.FileName[strings.LastIndexAny(r.upload.FileName, `/\`)+1:], " ", "_")
	switch {
	case s.blockOnly():
		return nil, fail("can't upload to storage type '%s'", s.Type)
	case !s.holds(content):
		return nil, fail("storage '%s' does not support '%s' content", s.Name, content)
	case !goodExtension(content, name):
		return nil, paramError("filename", "wrong file extension")
	}
	t := c.start(r, taskSpec{kind: "imgcopy"}, func(t *task.Task) error { return c.importFile(r, t, importing{s, content, name}) })
	return t.UPID().String(), nil
}

func goodExtension(content, name string) bool {
	lower := strings.ToLower(name)
	switch content {
	case "iso":
		return strings.HasSuffix(lower, ".iso") || strings.HasSuffix(lower, ".img")
	case "vztmpl":
		return strings.HasSuffix(lower, ".tar.gz") || strings.HasSuffix(lower, ".tar.xz") || strings.HasSuffix(lower, ".tar.zst")
	default:
		return strings.HasSuffix(lower, ".ova") || strings.HasSuffix(lower, ".qcow2") || strings.HasSuffix(lower, ".raw") || strings.HasSuffix(lower, ".vmdk")
	}
}

func checkSum(r *call) error {
	algorithms := map[string]func() hash.Hash{
		"md5": md5.New, "sha1": sha1.New, "sha224": sha256.New224, "sha256": sha256.New, "sha384": sha512.New384, "sha512": sha512.New,
	}
	algorithm := r.values.Get("checksum-algorithm")
	if algorithm == "" {
		return nil
	}
	h := algorithms[algorithm]()
	_, _ = h.Write(r.upload.Data) // never fails
	if got := hex.EncodeToString(h.Sum(nil)); got != strings.ToLower(r.values.Get("checksum")) {
		return fail("checksum mismatch: got '%s' != expect '%s'", got, r.values.Get("checksum"))
	}
	return nil
}

type importing struct {
	storage       *storage
	content, name string
}

func (c *Cluster) importFile(r *call, t *task.Task, i importing) error {
	target := "/var/lib/vz/template/" + i.content + "/" + i.name
	t.Log("starting file import from: /var/tmp/pveupload-%016x", t.UPID().PID)
	t.Log("target node: %s", r.node.Name)
	t.Log("target file: %s", target)
	t.Log("file size is: %d", len(r.upload.Data))
	if err := t.Step(latency.ISOUpload, 1); err != nil {
		return err
	}
	if err := checkSum(r); err != nil {
		return err
	}
	v := &volume{
		name: i.content + "/" + i.name, content: i.content, format: formatOf(i.content, i.name),
		size: int64(len(r.upload.Data)), used: int64(len(r.upload.Data)), created: time.Now(),
	}
	if i.content == "iso" {
		disc, err := media.ParseISO(r.upload.Data)
		if err != nil {
			return fail("import failed: '%s' is not a valid ISO image", i.name)
		}
		v.disc = disc
	}
	t.Log("command: cp -- /var/tmp/pveupload-%016x %s", t.UPID().PID, target)
	c.mu.Lock()
	defer c.mu.Unlock()
	if i.storage.used()+v.used > i.storage.Bytes {
		return fail("import failed: cp: error writing '%s': No space left on device", target)
	}
	i.storage.volumes[v.name] = v
	t.Log("finished file import successfully")
	return nil
}

func formatOf(content, name string) string {
	if content == "vztmpl" {
		return "t" + name[strings.LastIndex(name, ".")+1:]
	}
	return strings.ToLower(name[strings.LastIndex(name, ".")+1:])
}

// storageConfig lists the storages as the datacenter knows them.
func (c *Cluster) storageConfig() map[string]map[string]any {
	all := map[string]map[string]any{}
	for _, n := range c.order {
		for _, s := range n.Storages {
			all[s.Name] = map[string]any{
				"storage": s.Name, "type": s.Type, "content": strings.Join(s.Content, ","), "shared": boolInt(s.Shared), "digest": "",
			}
		}
	}
	return all
}

func listStorageConfig(c *Cluster, r *call) (any, error) {
	all := c.storageConfig()
	rows := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if c.mayUseStorage(r, name) && (!r.values.Has("type") || r.values.Get("type") == all[name]["type"]) {
			rows = append(rows, all[name])
		}
	}
	return rows, nil
}

func readStorageConfig(c *Cluster, r *call) (any, error) {
	name := r.values.Get("storage")
	if row, ok := c.storageConfig()[name]; ok {
		return row, nil
	}
	return nil, &wire.Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf("storage '%s' does not exist\n", name)}
}
