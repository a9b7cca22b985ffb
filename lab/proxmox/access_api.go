package proxmox

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"aether.internal/aether/lab/proxmox/access"
	"aether.internal/aether/lab/proxmox/schema"
	"aether.internal/aether/lab/proxmox/wire"
)

func createTicket(c *Cluster, r *call) (any, error) {
	user := r.values.Get("username")
	if realm := r.values.Get("realm"); realm != "" && !strings.Contains(user, "@") {
		user += "@" + realm
	}
	ticket, ok := c.access.Login(user, r.values.Get("password"), time.Now())
	if !ok {
		return nil, &wire.Error{Status: http.StatusUnauthorized, Message: "authentication failure\n"}
	}
	id := access.Identity{User: user}
	out := map[string]any{
		"username": ticket.User, "ticket": ticket.Value, "CSRFPreventionToken": ticket.CSRF, "cap": c.capabilities(id),
	}
	if c.access.Check(id, "/", "Sys.Audit") == nil {
		out["clustername"] = c.cfg.Cluster
	}
	return out, nil
}

// capabilities is what the web interface shows or hides.
func (c *Cluster) capabilities(id access.Identity) map[string]any {
	out := map[string]any{}
	for name, path := range map[string]string{"vms": "/vms", "storage": "/storage", "nodes": "/nodes", "dc": "/", "access": "/access", "sdn": "/sdn"} {
		held := map[string]any{}
		for p := range c.access.Permissions(id, path) {
			held[p] = 1
		}
		out[name] = held
	}
	return out
}

// permissionPaths are the paths that an answer without a path lists.
func (c *Cluster) permissionPaths() []string {
	paths := map[string]bool{"/": true, "/access": true, "/nodes": true, "/sdn": true, "/storage": true, "/vms": true, "/pool": true}
	for _, a := range c.access.List() {
		paths[a.Path] = true
	}
	return slices.Sorted(maps.Keys(paths))
}

func permissions(c *Cluster, r *call) (any, error) {
	id := r.id
	if other := r.values.Get("userid"); other != "" && other != r.id.AuthID() {
		if err := c.access.Check(r.id, "/access", "Sys.Audit"); err != nil {
			return nil, err
		}
		user, token, _ := strings.Cut(other, "!")
		id = access.Identity{User: user, Token: token}
	}
	paths := c.permissionPaths()
	if p := r.values.Get("path"); p != "" {
		paths = []string{p}
	}
	out := map[string]any{}
	for _, path := range paths {
		held := map[string]any{}
		for privilege, propagate := range c.access.Permissions(id, path) {
			held[privilege] = boolInt(propagate)
		}
		if len(held) > 0 {
			out[path] = held
		}
	}
	return out, nil
}

func listACL(c *Cluster, r *call) (any, error) {
	audit := c.access.Check(r.id, "/access", "Sys.Audit") == nil
	rows := []map[string]any{}
	for _, a := range c.access.List() {
		if !audit && c.access.Check(r.id, a.Path, "Permissions.Modify") != nil {
			continue
		}
		kind := "user"
		switch {
		case strings.HasPrefix(a.Who, "@"):
			kind = "group"
		case strings.Contains(a.Who, "!"):
			kind = "token"
		}
		rows = append(rows, map[string]any{
			"path": a.Path, "type": kind, "ugid": strings.TrimPrefix(a.Who, "@"), "roleid": a.Role, "propagate": boolInt(a.Propagate),
		})
	}
	return rows, nil
}

func updateACL(c *Cluster, r *call) (any, error) {
	v := r.values
	var who []string
	who = append(who, schema.SplitList(v.Get("users"))...)
	who = append(who, schema.SplitList(v.Get("tokens"))...)
	for _, group := range schema.SplitList(v.Get("groups")) {
		who = append(who, "@"+group)
	}
	for _, name := range who {
		for _, role := range schema.SplitList(v.Get("roles")) {
			entry := access.ACL{Path: v.Get("path"), Who: name, Role: role, Propagate: !v.Has("propagate") || v.Bool("propagate")}
			if v.Bool("delete") {
				c.access.Revoke(entry)
			} else if err := c.access.Grant(entry); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

func listRoles(c *Cluster, _ *call) (any, error) {
	roles := c.access.Roles()
	rows := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(roles)) {
		special := boolInt(strings.HasPrefix(name, "PVE") || name == "Administrator" || name == "NoAccess")
		rows = append(rows, map[string]any{"roleid": name, "privs": strings.Join(roles[name], ","), "special": special})
	}
	return rows, nil
}

func listUsers(c *Cluster, r *call) (any, error) {
	all := c.access.CheckAny(r.id, "/access/groups", "User.Modify", "Sys.Audit") == nil
	rows := []map[string]any{}
	for _, u := range c.access.Users() {
		if all || u.ID == r.id.User {
			_, realm, _ := strings.Cut(u.ID, "@")
			rows = append(rows, map[string]any{"userid": u.ID, "enable": boolInt(!u.Disabled), "expire": 0, "realm-type": realm})
		}
	}
	return rows, nil
}

func tokenRow(t access.Token) map[string]any {
	_, name, _ := strings.Cut(t.ID, "!")
	return map[string]any{"tokenid": name, "privsep": boolInt(t.PrivSep), "expire": t.Expire}
}

func listTokens(c *Cluster, r *call) (any, error) {
	rows := []map[string]any{}
	for _, t := range c.access.Tokens(r.values.Get("userid")) {
		rows = append(rows, tokenRow(t))
	}
	return rows, nil
}

func tokenID(r *call) string { return r.values.Get("userid") + "!" + r.values.Get("tokenid") }

func readToken(c *Cluster, r *call) (any, error) {
	for _, t := range c.access.Tokens(r.values.Get("userid")) {
		if t.ID == tokenID(r) {
			row := tokenRow(t)
			delete(row, "tokenid")
			return row, nil
		}
	}
	return nil, fail("no such token '%s' for user '%s'", r.values.Get("tokenid"), r.values.Get("userid"))
}

func createToken(c *Cluster, r *call) (any, error) {
	t, err := c.access.AddToken(access.Token{
		ID: tokenID(r), PrivSep: !r.values.Has("privsep") || r.values.Bool("privsep"), Expire: int64(r.values.Int("expire", 0)),
	})
	if err != nil {
		return nil, paramError("tokenid", err.Error())
	}
	return map[string]any{"full-tokenid": t.ID, "value": t.Secret, "info": map[string]any{"privsep": boolInt(t.PrivSep)}}, nil
}

func deleteToken(c *Cluster, r *call) (any, error) {
	if !c.access.RemoveToken(tokenID(r)) {
		return nil, fail("no such token '%s' for user '%s'", r.values.Get("tokenid"), r.values.Get("userid"))
	}
	return nil, nil
}

// loginPage is GET access/ticket, which exists only to be there.
func loginPage(*Cluster, *call) (any, error) { return nil, nil }
