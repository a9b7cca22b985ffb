package access

import (
	"testing"
	"time"

	"aether.internal/aether/lab/proxmox/schema"
)

func store(t *testing.T, grants ...ACL) *Store {
	t.Helper()
	s := NewStore(time.Hour)
	s.AddUser(User{ID: "u@pve", Groups: []string{"ops"}})
	for _, id := range []string{"u@pve!full", "u@pve!sep"} {
		if _, err := s.AddToken(Token{ID: id, PrivSep: id == "u@pve!sep"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range grants {
		if err := s.Grant(g); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestTree(t *testing.T) {
	user, full, sep := Identity{User: "u@pve"}, Identity{User: "u@pve", Token: "full"}, Identity{User: "u@pve", Token: "sep"}
	grant := func(path, who, role string) ACL { return ACL{Path: path, Who: who, Role: role, Propagate: true} }
	for name, c := range map[string]struct {
		grants []ACL
		id     Identity
		path   string
		priv   string
		want   bool
	}{
		"nothing":                {nil, user, "/vms/1", "VM.Audit", false},
		"root":                   {nil, Identity{User: Root}, "/vms/1", "VM.Audit", true},
		"root's token":           {nil, Identity{User: Root, Token: "x"}, "/vms/1", "Sys.Modify", true},
		"inherited":              {[]ACL{grant("/", "u@pve", "PVEVMAdmin")}, user, "/vms/1", "VM.Audit", true},
		"several roles":          {[]ACL{grant("/", "u@pve", "PVEVMAdmin"), grant("/", "u@pve", "PVEAuditor")}, user, "/", "Sys.Audit", true},
		"deeper replaces":        {[]ACL{grant("/", "u@pve", "PVEVMAdmin"), grant("/vms/1", "u@pve", "PVEAuditor")}, user, "/vms/1", "VM.Clone", false},
		"deeper is elsewhere":    {[]ACL{grant("/", "u@pve", "PVEVMAdmin"), grant("/vms/1", "u@pve", "PVEAuditor")}, user, "/vms/10", "VM.Clone", true},
		"no access":              {[]ACL{grant("/", "u@pve", "PVEVMAdmin"), grant("/vms", "u@pve", "NoAccess")}, user, "/vms/1", "VM.Audit", false},
		"not propagated":         {[]ACL{{Path: "/vms", Who: "u@pve", Role: "PVEVMAdmin"}}, user, "/vms/1", "VM.Audit", false},
		"not propagated, itself": {[]ACL{{Path: "/vms", Who: "u@pve", Role: "PVEVMAdmin"}}, user, "/vms", "VM.Audit", true},
		"group":                  {[]ACL{grant("/", "@ops", "PVEVMAdmin")}, user, "/vms/1", "VM.Audit", true},
		"user before group":      {[]ACL{grant("/", "@ops", "PVEVMAdmin"), grant("/", "u@pve", "PVEPoolUser")}, user, "/vms/1", "VM.Audit", false},
		"other group":            {[]ACL{grant("/", "@x", "PVEVMAdmin")}, user, "/vms/1", "VM.Audit", false},
		"token of the user":      {[]ACL{grant("/", "u@pve", "PVEVMAdmin")}, full, "/vms/1", "VM.Audit", true},
		"separated token":        {[]ACL{grant("/", "u@pve", "PVEVMAdmin")}, sep, "/vms/1", "VM.Audit", false},
		"separated, granted":     {[]ACL{grant("/", "u@pve", "PVEVMAdmin"), grant("/vms/1", "u@pve!sep", "PVEAuditor")}, sep, "/vms/1", "VM.Audit", true},
		"separated, both needed": {[]ACL{grant("/", "u@pve!sep", "Administrator")}, sep, "/vms/1", "VM.Audit", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, got := store(t, c.grants...).Permissions(c.id, c.path)[c.priv]
			if got != c.want {
				t.Errorf("%s on %s: %v, want %v", c.priv, c.path, got, c.want)
			}
		})
	}
}

func TestPoolCounts(t *testing.T) {
	s := store(t, ACL{Path: "/pool/p", Who: "u@pve", Role: "PVEVMAdmin", Propagate: true})
	s.SetPoolOf(func(path string) string {
		if path == "/vms/1" {
			return "p"
		}
		return ""
	})
	if err := s.Check(Identity{User: "u@pve"}, "/vms/1", "VM.Clone"); err != nil {
		t.Error(err)
	}
	if err := s.Check(Identity{User: "u@pve"}, "/vms/2", "VM.Clone"); err == nil {
		t.Error("a VM outside the pool is allowed")
	}
}

func TestEvaluate(t *testing.T) {
	perm := func(path string, more ...any) []any {
		return append([]any{"perm", path, []any{"VM.Clone", "VM.Audit"}}, more...)
	}
	s := store(t, ACL{Path: "/vms/1", Who: "u@pve", Role: "PVETemplateUser"}, ACL{Path: "/vms/2", Who: "u@pve", Role: "PVEAuditor"})
	for name, c := range map[string]struct {
		e    schema.Expression
		id   string
		want string
	}{
		"all":           {perm("/vms/{vmid}"), "1", ""},
		"one missing":   {perm("/vms/{vmid}"), "2", "Permission check failed (/vms/2, VM.Clone)"},
		"any":           {perm("/vms/{vmid}", "any", 1.0), "2", ""},
		"none of any":   {perm("/vms/{vmid}", "any", 1.0), "3", "Permission check failed (/vms/3, VM.Clone|VM.Audit)"},
		"and":           {schema.Expression{"and", perm("/vms/1"), perm("/vms/{vmid}")}, "3", "Permission check failed (/vms/3, VM.Clone)"},
		"or":            {schema.Expression{"or", perm("/vms/{vmid}"), perm("/vms/1")}, "3", ""},
		"failed or":     {schema.Expression{"or", perm("/vms/{vmid}"), perm("/vms/2")}, "3", "Permission check failed"},
		"param needed":  {perm("/vms/1", "require_param", "pool"), "1", "Permission check failed"},
		"unknown":       {schema.Expression{"magic"}, "1", "Permission check failed"},
		"root only":     {nil, "1", "Permission check failed"},
		"self":          {schema.Expression{"userid-param", "self"}, "1", ""},
		"modify grants": {schema.Expression{"perm-modify", "/vms/{vmid}"}, "1", "Permission check failed (/vms/1, Permissions.Modify)"},
	} {
		t.Run(name, func(t *testing.T) {
			err := s.Evaluate(Identity{User: "u@pve"}, c.e, map[string]string{"vmid": c.id, "userid": "u@pve"})
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	if err := s.Evaluate(Identity{User: Root}, nil, nil); err != nil {
		t.Error(err)
	}
	if err := s.Evaluate(Identity{User: Root, Token: "x"}, nil, nil); err == nil {
		t.Error("root's token passes as root")
	}
}

func TestTokenEnds(t *testing.T) {
	s := NewStore(time.Hour)
	s.AddUser(User{ID: "u@pve"})
	now := time.Now()
	token, err := s.AddToken(Token{ID: "u@pve!t", Expire: now.Add(time.Hour).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	value := token.ID + "=" + token.Secret
	if _, ok := s.ByToken(value, now); !ok {
		t.Error("refused")
	}
	if _, ok := s.ByToken(value, now.Add(2*time.Hour)); ok {
		t.Error("does not expire")
	}
	s.AddUser(User{ID: "u@pve", Disabled: true})
	if _, ok := s.ByToken(value, now); ok {
		t.Error("works for a disabled user")
	}
	for _, bad := range []Token{{ID: "u@pve"}, {ID: "x@pve!t"}, {ID: "u@pve!t"}} {
		if _, err := s.AddToken(bad); err == nil {
			t.Errorf("%s was taken", bad.ID)
		}
	}
}
