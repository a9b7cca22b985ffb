package access

import (
	"slices"
	"strings"

	"aether.internal/aether/lab/proxmox/schema"
)

// Denied is a failed permission check. Detail is "(/vms/101, VM.Clone)", or
// empty where PVE does not say.
type Denied struct{ Detail string }

// Error implements error with PVE's words.
func (d *Denied) Error() string {
	if d.Detail == "" {
		return "Permission check failed"
	}
	return "Permission check failed " + d.Detail
}

// Permissions returns the privileges on a path, with whether they propagate.
func (s *Store) Permissions(id Identity, path string) map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.permissions(id, path)
	pool := s.poolOf(path)
	if pool == "" {
		return got
	}
	for privilege, propagate := range s.permissions(id, "/pool/"+pool) {
		got[privilege] = got[privilege] || propagate
	}
	return got
}

func (s *Store) permissions(id Identity, path string) map[string]bool {
	privileges := map[string]bool{}
	if id.User == Root {
		for _, p := range Privileges() {
			privileges[p] = true
		}
	} else {
		s.expand(s.rolesOn(id.User, s.users[id.User].Groups, path), privileges)
	}
	if id.Token == "" || !s.tokens[id.AuthID()].PrivSep {
		return privileges
	}
	own := map[string]bool{}
	s.expand(s.rolesOn(id.AuthID(), nil, path), own)
	for p := range privileges {
		if _, ok := own[p]; !ok {
			delete(privileges, p)
		} else {
			privileges[p] = privileges[p] && own[p]
		}
	}
	return privileges
}

func (s *Store) expand(roles map[string]bool, into map[string]bool) {
	for role, propagate := range roles {
		for _, p := range s.roles[role] {
			into[p] = into[p] || propagate
		}
	}
}

// rolesOn walks from the root to the path; entries further down replace those
// above, and a user's own entries those of its groups.
func (s *Store) rolesOn(who string, groups []string, path string) map[string]bool {
	var current map[string]bool
	for _, prefix := range prefixes(path) {
		own := s.entries(prefix, path, func(w string) bool { return w == who })
		if own == nil {
			own = s.entries(prefix, path, func(w string) bool {
				return strings.HasPrefix(w, "@") && slices.Contains(groups, w[1:])
			})
		}
		if own != nil {
			current = own
		}
	}
	return current
}

func (s *Store) entries(prefix, path string, match func(string) bool) map[string]bool {
	var roles map[string]bool
	for _, a := range s.acl {
		if a.Path != prefix || !match(a.Who) || (!a.Propagate && prefix != path) {
			continue
		}
		if a.Role == noAccess {
			return map[string]bool{noAccess: a.Propagate}
		}
		if roles == nil {
			roles = map[string]bool{}
		}
		roles[a.Role] = a.Propagate
	}
	return roles
}

func prefixes(path string) []string {
	list := []string{"/"}
	if path == "/" {
		return list
	}
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			list = append(list, path[:i])
		}
	}
	return append(list, path)
}

// Check fails unless all privileges are held on the path.
func (s *Store) Check(id Identity, path string, privileges ...string) error {
	held := s.Permissions(id, path)
	for _, p := range privileges {
		if _, ok := held[p]; !ok {
			return &Denied{Detail: "(" + path + ", " + p + ")"}
		}
	}
	return nil
}

// CheckAny fails unless one of the privileges is held on the path.
func (s *Store) CheckAny(id Identity, path string, privileges ...string) error {
	held := s.Permissions(id, path)
	for _, p := range privileges {
		if _, ok := held[p]; ok {
			return nil
		}
	}
	return &Denied{Detail: "(" + path + ", " + strings.Join(privileges, "|") + ")"}
}

// Evaluate checks a permission expression of the API schema. The parameters
// are those of the request, not yet validated.
func (s *Store) Evaluate(id Identity, e schema.Expression, params map[string]string) error {
	if len(e) == 0 {
		// No expression at all: root only.
		if id.IsRoot() {
			return nil
		}
		return &Denied{}
	}
	operator, _ := e[0].(string)
	switch operator {
	case "and":
		for _, arg := range e[1:] {
			if err := s.Evaluate(id, nested(arg), params); err != nil {
				return err
			}
		}
		return nil
	case "or":
		for _, arg := range e[1:] {
			if s.Evaluate(id, nested(arg), params) == nil {
				return nil
			}
		}
		return &Denied{}
	case "perm":
		return s.evaluatePerm(id, e, params)
	case "perm-modify":
		return s.Check(id, fill(e[1], params), "Permissions.Modify")
	case "userid-param":
		return s.evaluateUser(id, e, params["userid"])
	case "userid-group":
		return s.CheckAny(id, "/access/groups", texts(e[1])...)
	default:
		return &Denied{}
	}
}

func (s *Store) evaluateUser(id Identity, e schema.Expression, user string) error {
	if len(e) > 1 && e[1] == "self" && user == id.User {
		return nil
	}
	_, realm, _ := strings.Cut(user, "@")
	return s.Check(id, "/access/realm/"+realm, "Realm.AllocateUser")
}

func (s *Store) evaluatePerm(id Identity, e schema.Expression, params map[string]string) error {
	options := map[string]any{}
	for i := 3; i+1 < len(e); i += 2 {
		name, _ := e[i].(string)
		options[name] = e[i+1]
	}
	if required, ok := options["require_param"].(string); ok && params[required] == "" {
		return &Denied{}
	}
	path := fill(e[1], params)
	if options["any"] != nil {
		return s.CheckAny(id, path, texts(e[2])...)
	}
	return s.Check(id, path, texts(e[2])...)
}

func nested(arg any) schema.Expression {
	list, _ := arg.([]any)
	return list
}

func texts(arg any) []string {
	list, _ := arg.([]any)
	out := make([]string, 0, len(list))
	for _, item := range list {
		if text, ok := item.(string); ok {
			out = append(out, text)
		}
	}
	return out
}

// fill puts request parameters in place of {names}.
func fill(arg any, params map[string]string) string {
	path, _ := arg.(string)
	for name, value := range params {
		path = strings.ReplaceAll(path, "{"+name+"}", value)
	}
	return path
}
