package schema

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func load(t *testing.T) *Schema {
	t.Helper()
	s, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestFind(t *testing.T) {
	s := load(t)
	for name, c := range map[string]struct {
		verb, path, want string
		values           map[string]string
	}{
		"plain":     {"GET", "/cluster/status", "/cluster/status", map[string]string{}},
		"names":     {"GET", "/nodes/n/qemu/1/config", "/nodes/{node}/qemu/{vmid}/config", map[string]string{"node": "n", "vmid": "1"}},
		"slashes":   {"GET", "//nodes///n//status/", "/nodes/{node}/status", map[string]string{"node": "n"}},
		"escaped":   {"GET", "/nodes/n/tasks/UPID%3An%3A/log", "/nodes/{node}/tasks/{upid}/log", map[string]string{"node": "n", "upid": "UPID:n:"}},
		"volume":    {"DELETE", "/nodes/n/storage/s/content/s:iso/x.iso", "/nodes/{node}/storage/{storage}/content/{volume}", map[string]string{"node": "n", "storage": "s", "volume": "s:iso/x.iso"}},
		"volume %":  {"DELETE", "/nodes/n/storage/s/content/s%3Aiso%2Fx.iso", "/nodes/{node}/storage/{storage}/content/{volume}", map[string]string{"node": "n", "storage": "s", "volume": "s:iso/x.iso"}},
		"too long":  {"GET", "/version/x", "", nil},
		"too short": {"GET", "/nodes/n/qemu/1/snapshot/x/config", "", nil},
		"verb":      {"PATCH", "/version", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			call, values := s.Find(c.verb, c.path)
			got := ""
			if call != nil {
				got = call.Path
			}
			if got != c.want {
				t.Errorf("found %q, want %q", got, c.want)
			}
			if diff := cmp.Diff(c.values, values); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	s := load(t)
	create, _ := s.Find("POST", "/nodes/n/qemu")
	base := func(more map[string]any) map[string]any {
		raw := map[string]any{"node": "n", "vmid": json.Number("100")}
		for k, v := range more {
			raw[k] = v
		}
		return raw
	}
	for name, c := range map[string]struct {
		raw  map[string]any
		want map[string]string
	}{
		"good":            {base(map[string]any{"name": "a.b-c", "memory": "512", "net31": "virtio", "onboot": true, "cpulimit": json.Number("1.5")}), nil},
		"missing":         {map[string]any{"node": "n"}, map[string]string{"vmid": errMissing}},
		"null is missing": {base(map[string]any{"vmid": nil}), map[string]string{"vmid": errMissing}},
		"vmid":            {base(map[string]any{"vmid": "50"}), map[string]string{"vmid": "invalid format - value does not look like a valid VM ID\n"}},
		"vmid text":       {base(map[string]any{"vmid": "x"}), map[string]string{"vmid": "type check ('integer') failed - got 'x'"}},
		"boolean":         {base(map[string]any{"onboot": "on"}), map[string]string{"onboot": "type check ('boolean') failed - got 'on'"}},
		"number":          {base(map[string]any{"cpulimit": "1e"}), map[string]string{"cpulimit": "type check ('number') failed - got '1e'"}},
		"maximum":         {base(map[string]any{"cpulimit": "129"}), map[string]string{"cpulimit": "value must have a maximum value of 128"}},
		"minimum":         {base(map[string]any{"cores": "0"}), map[string]string{"cores": "value must have a minimum value of 1"}},
		"memory":          {base(map[string]any{"memory": "8"}), map[string]string{"memory": "invalid format - format error\nmemory.current: value must have a minimum value of 16\n"}},
		"enum":            {base(map[string]any{"bios": "uefi"}), map[string]string{"bios": "value 'uefi' does not have a value in the enumeration 'seabios, ovmf'"}},
		"pattern":         {base(map[string]any{"serial0": "x"}), map[string]string{"serial0": "value does not match the regex pattern"}},
		"array":           {base(map[string]any{"name": []any{"a", "b"}}), map[string]string{"name": "type check ('string') failed - got ARRAY"}},
		"object":          {base(map[string]any{"name": map[string]any{}}), map[string]string{"name": "type check ('string') failed - got HASH"}},
		"leading zero":    {base(map[string]any{"net01": "virtio"}), map[string]string{"net01": errUnknown}},
		"ide4":            {base(map[string]any{"ide4": "none"}), map[string]string{"ide4": errUnknown}},
		"template name":   {base(map[string]any{"net[n]": "virtio"}), map[string]string{"net[n]": errUnknown}},
		"duplicate":       {base(map[string]any{"net0": "virtio,tag=1,tag=2"}), map[string]string{"net0": "invalid format - format error\nduplicate key in comma-separated list property: tag\n"}},
		"no model":        {base(map[string]any{"net0": "bridge=vmbr0"}), map[string]string{"net0": "invalid format - format error\nnet0.model: property is missing and it is not optional\n"}},
		"volume":          {base(map[string]any{"scsi0": "x"}), map[string]string{"scsi0": "invalid format - format error\nscsi0.file: invalid format - unable to parse volume ID 'x'\n"}},
		"nameserver":      {base(map[string]any{"nameserver": "1.1.1.1 bad_name"}), map[string]string{"nameserver": "invalid format - value is not a valid address: bad_name\n"}},
		"pool":            {base(map[string]any{"pool": "a b"}), map[string]string{"pool": "invalid format - value 'a b' does not look like a valid pool name\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, got := create.Validate(c.raw)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestValues(t *testing.T) {
	s := load(t)
	exec, _ := s.Find("POST", "/nodes/n/qemu/100/agent/exec")
	v, problems := exec.Validate(map[string]any{"node": "n", "vmid": "100", "command": []any{"a", "b"}})
	if problems != nil || len(v.List("command")) != 2 || v.Int("vmid", 0) != 100 || v.Has("input-data") {
		t.Errorf("%v %v", v, problems)
	}
	v, problems = exec.Validate(map[string]any{"node": "n", "vmid": "100", "command": "a"})
	if problems != nil || len(v.List("command")) != 1 {
		t.Errorf("%v %v", v, problems)
	}
}

func TestProperties(t *testing.T) {
	s := load(t)
	create, _ := s.Find("POST", "/nodes/n/qemu")
	for text, want := range map[string]map[string]string{
		"virtio=BC:24:11:00:00:01,bridge=vmbr0": {"model": "virtio", "macaddr": "BC:24:11:00:00:01", "bridge": "vmbr0"},
		"virtio,bridge=vmbr0,tag=4":             {"model": "virtio", "bridge": "vmbr0", "tag": "4"},
		"model=e1000,macaddr=BC:24:11:00:00:01": {"model": "e1000", "macaddr": "BC:24:11:00:00:01"},
		"bad":                                   nil,
	} {
		if diff := cmp.Diff(want, create.Properties("net0", text)); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
	if got := create.Properties("ide2", "local-lvm:cloudinit,media=cdrom")["file"]; got != "local-lvm:cloudinit" {
		t.Error(got)
	}
	if create.Properties("name", "x") != nil {
		t.Error("a plain option was taken apart")
	}
}
