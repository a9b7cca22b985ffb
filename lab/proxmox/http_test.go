package proxmox_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"aether.internal/aether/lab/proxmox"
	"aether.internal/aether/lab/proxmox/access"
)

func TestStatusLines(t *testing.T) {
	l := start(t)
	nobody := l.user("nobody@pve", nil)
	long := strings.Repeat("x", 70000)
	for name, c := range map[string]struct {
		token, verb, path string
		form              map[string]string
		status            string
		errors            map[string]string
	}{
		"ok":              {l.secret, "GET", "/version", nil, "200 OK", nil},
		"empty segments":  {l.secret, "GET", "//nodes//pv1-1/status", nil, "200 OK", nil},
		"cache buster":    {l.secret, "GET", "/version?_dc=1", nil, "200 OK", nil},
		"no ticket":       {"", "GET", "/version", nil, "401 No ticket", nil},
		"bad token":       {"PVEAPIToken=aether@pve!lab=x", "GET", "/version", nil, "401 Authentication failed!", nil},
		"unknown token":   {"PVEAPIToken=x@pve!lab=x", "GET", "/version", nil, "401 Authentication failed!", nil},
		"stranger's 501":  {"", "GET", "/foo", nil, "401 No ticket", nil},
		"unknown path":    {l.secret, "GET", "/foo", nil, "501 Method 'GET /foo' not implemented", nil},
		"unserved path":   {l.secret, "GET", "/nodes/pv1-1/ceph/status", nil, "501 Method 'GET /nodes/pv1-1/ceph/status' not implemented", nil},
		"wrong method":    {l.secret, "DELETE", "/version", nil, "501 Method 'DELETE /version' not implemented", nil},
		"unknown param":   {l.secret, "GET", "/version?x=1", nil, "400 Parameter verification failed.", map[string]string{"x": "property is not defined in schema and the schema does not allow additional properties"}},
		"missing vm":      {l.secret, "GET", "/nodes/pv1-1/qemu/555/status/current", nil, "500 Configuration file 'nodes/pv1-1/qemu-server/555.conf' does not exist", nil},
		"other node's vm": {l.secret, "GET", "/nodes/pv1-2/qemu/101/config", nil, "500 Configuration file 'nodes/pv1-2/qemu-server/101.conf' does not exist", nil},
		"unknown node":    {l.secret, "GET", "/nodes/pv9/status", nil, "500 hostname lookup 'pv9' failed - failed to get address info for: pv9: Name or service not known", nil},
		"localhost":       {l.secret, "GET", "/nodes/localhost/status", nil, "200 OK", nil},
		"403 before 400":  {nobody, "POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "abc"}, "403 Permission check failed (/vms/101, VM.Clone)", nil},
		"403 before node": {nobody, "GET", "/nodes/pv9/status", nil, "403 Permission check failed (/nodes/pv9, Sys.Audit)", nil},
		"any joins":       {nobody, "GET", "/nodes/pv1-1/storage/local/content", nil, "403 Permission check failed (/storage/local, Datastore.Audit|Datastore.AllocateSpace)", nil},
		"node before 400": {l.secret, "POST", "/nodes/pv9/qemu/101/clone", map[string]string{"newid": "abc"}, "500 hostname lookup 'pv9' failed - failed to get address info for: pv9: Name or service not known", nil},
		"400":             {l.secret, "POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "abc"}, "400 Parameter verification failed.", map[string]string{"newid": "type check ('integer') failed - got 'abc'"}},
		"two problems":    {l.secret, "POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"name": "-", "foo": "1"}, "400 Parameter verification failed.", map[string]string{"name": "invalid format - value does not look like a valid DNS name\n", "foo": "property is not defined in schema and the schema does not allow additional properties", "newid": "property is missing and it is not optional"}},
		"conflicting uri": {l.secret, "POST", "/nodes/pv1-1/qemu/101/status/start", map[string]string{"vmid": "102"}, "400 Parameter verification failed.", map[string]string{"vmid": "duplicate parameter (already defined in URI) with conflicting values!"}},
		"too large":       {l.secret, "POST", "/nodes/pv1-1/qemu/101/config", map[string]string{"description": long}, "501 for data too large", nil},
		"ticket only":     {l.secret, "POST", "/access/ticket", map[string]string{"username": "a@pve", "password": "x"}, "403 Permission check failed (URI '/access/ticket' not available with API token, need proper ticket.", nil},
		"bad login":       {"", "POST", "/access/ticket", map[string]string{"username": "a@pve", "password": "x"}, "401 authentication failure", nil},
		"root only":       {l.secret, "POST", "/nodes/pv1-1/qemu/101/status/start", map[string]string{"skiplock": "1"}, "400 Parameter verification failed.", map[string]string{"skiplock": "Only root may use this option."}},
		"bad upid":        {l.secret, "GET", "/nodes/pv1-1/tasks/UPID:x/status", nil, "400 Parameter verification failed.", map[string]string{"upid": "unable to parse worker upid"}},
		"no such task":    {l.secret, "GET", "/nodes/pv1-1/tasks/UPID:pv1-1:00000001:00000001:00000001:qmstart:1:aether@pve!lab:/status", nil, "400 Parameter verification failed.", map[string]string{"upid": "no such task"}},
		"foreign task":    {nobody, "GET", "/nodes/pv1-1/tasks/UPID:pv1-1:00000001:00000001:00000001:qmstart:1:aether@pve!lab:/status", nil, "403 Permission check failed (/nodes/pv1-1, Sys.Audit)", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := l.as(c.token, "pv1-1", c.verb, c.path, c.form)
			if got.status != c.status {
				t.Errorf("status %q, want %q", got.status, c.status)
			}
			if diff := cmp.Diff(c.errors, got.errors); diff != "" {
				t.Error(diff)
			}
			if got.proto != "HTTP/1.1" {
				t.Errorf("protocol %s", got.proto)
			}
			if got.closed == (got.status == "200 OK") {
				t.Errorf("connection closed: %v after %s", got.closed, got.status)
			}
			if strings.HasPrefix(got.status, "401") && got.status != "401 authentication failure" && got.body != "" {
				t.Errorf("a 401 has a body: %q", got.body)
			}
			if strings.HasPrefix(got.status, "500") && !strings.HasPrefix(got.text, got.status[4:]) {
				t.Errorf("message %q", got.text)
			}
		})
	}
}

// TestRawRequests sends what Go's client would not.
func TestRawRequests(t *testing.T) {
	l := start(t)
	head := " HTTP/1.1\r\nHost: x\r\nAuthorization: " + l.secret + "\r\n"
	for name, c := range map[string]struct{ request, status string }{
		"chunked": {
			"POST /api2/json/nodes/pv1-1/qemu/101/config" + head + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
			"HTTP/1.1 501 chunked transfer encoding not supported",
		},
		"body on DELETE": {
			"DELETE /api2/json/nodes/pv1-1/qemu/101" + head + "Content-Length: 7\r\n\r\npurge=1",
			"HTTP/1.1 501 Unexpected content for method 'DELETE'",
		},
		"body on GET": {
			"GET /api2/json/version" + head + "Content-Length: 1\r\n\r\nx", "HTTP/1.1 501 Unexpected content for method 'GET'",
		},
		"content type": {
			"POST /api2/json/nodes/pv1-1/qemu/101/config" + head + "Content-Type: text/xml\r\nContent-Length: 1\r\n\r\nx",
			"HTTP/1.1 506 upload 'Content-Type 'text/xml' not implemented",
		},
		"broken json": {
			"POST /api2/json/nodes/pv1-1/qemu/101/config" + head + "Content-Type: application/json\r\nContent-Length: 1\r\n\r\nx",
			"HTTP/1.1 500 malformed JSON string: invalid character 'x' looking for beginning of value",
		},
		"no api":       {"GET /pve2/x" + head + "\r\n", "HTTP/1.1 501 no such file '/pve2/x'"},
		"extjs":        {"GET /api2/extjs/nodes/pv1-1/qemu/5555/config" + head + "\r\n", "HTTP/1.1 200 OK"},
		"query on PUT": {"PUT /api2/json/nodes/pv1-1/qemu/101/config?foo=1" + head + "\r\n", "HTTP/1.1 400 Parameter verification failed."},
	} {
		t.Run(name, func(t *testing.T) {
			if got := l.rawRequest(c.request); got != c.status {
				t.Errorf("got %q, want %q", got, c.status)
			}
		})
	}
}

func TestTransport(t *testing.T) {
	l := start(t)
	address := strings.TrimSuffix(strings.TrimPrefix(l.cluster.Endpoint("pv1-1"), "https://"), "/api2/json")

	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: l.pool(), NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	if p := conn.ConnectionState().NegotiatedProtocol; p != "" {
		t.Errorf("negotiated %q", p)
	}
	_ = conn.Close()

	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for verb, status := range map[string]int{"GET": 301, "POST": 308} {
		req, err := http.NewRequestWithContext(t.Context(), verb, "http://"+address+"/api2/json/version", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != status || res.Header.Get("Location") != "https://"+address+"/api2/json/version" {
			t.Errorf("%s: %s to %s", verb, res.Status, res.Header.Get("Location"))
		}
	}

	a := l.do("GET", "/version", nil)
	for key, want := range map[string]string{
		"Server": "pve-api-daemon/3.0", "Cache-Control": "max-age=0", "Pragma": "no-cache", "Content-Type": "application/json;charset=UTF-8",
	} {
		if got := a.header.Get(key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}

// TestKeepAlive sends three requests on one connection.
func TestKeepAlive(t *testing.T) {
	l := start(t)
	client := l.client()
	var dialed atomic.Int32
	transport, _ := client.Transport.(*http.Transport)
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialed.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	for range 3 {
		req, err := http.NewRequestWithContext(t.Context(), "GET", l.cluster.Endpoint("pv1-1")+"/version", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", l.secret)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var body map[string]any
		if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	if n := dialed.Load(); n != 1 {
		t.Errorf("%d connections for three requests", n)
	}
}

func TestParameterForms(t *testing.T) {
	l := start(t)
	post := func(kind, body string) answer {
		req, err := http.NewRequestWithContext(t.Context(), "PUT", l.cluster.Endpoint("pv1-1")+"/nodes/pv1-1/qemu/101/config", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", l.secret)
		req.Header.Set("Content-Type", kind)
		a, err := l.send(req)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for name, c := range map[string]struct{ kind, body, status, onboot, tags string }{
		"form":         {"application/x-www-form-urlencoded", "onboot=1&tags=b%3Ba", "200 OK", "1", "a;b"},
		"json number":  {"application/json", `{"onboot":0,"tags":"x"}`, "200 OK", "0", "x"},
		"json boolean": {"application/json", `{"onboot":true,"tags":"y"}`, "200 OK", "1", "y"},
		"json array":   {"application/json", `{"onboot":1,"tags":["d","c","d"]}`, "200 OK", "1", "c;d"},
		"json null":    {"application/json", `{"onboot":0,"tags":"z","name":null}`, "200 OK", "0", "z"},
		"word":         {"application/json", `{"onboot":"true"}`, "400 Parameter verification failed.", "", ""},
		"twice":        {"application/x-www-form-urlencoded", "onboot=1&onboot=0", "400 Parameter verification failed.", "", ""},
		"object":       {"application/json", `{"onboot":{"a":1}}`, "400 Parameter verification failed.", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if a := post(c.kind, c.body); a.status != c.status {
				t.Fatalf("%s %v", a.status, a.errors)
			}
			v, _ := l.find(101)
			if c.tags != "" && (v.Config["onboot"] != c.onboot || v.Config["tags"] != c.tags) {
				t.Errorf("onboot %q tags %q", v.Config["onboot"], v.Config["tags"])
			}
		})
	}
}

func TestTickets(t *testing.T) {
	l := start(t, func(c *proxmox.Config) {
		c.Users = append(c.Users, access.User{ID: "op@pve", Password: "correct horse"})
		c.ACL = append(c.ACL, access.ACL{Path: "/", Who: "op@pve", Role: "PVEVMAdmin", Propagate: true})
	})
	login := func(form map[string]string) (ticket, csrf string) {
		a := l.as("", "pv1-1", "POST", "/access/ticket", form)
		var out struct {
			Ticket string `json:"ticket"`
			CSRF   string `json:"CSRFPreventionToken"`
		}
		if err := json.Unmarshal(a.data, &out); err != nil {
			t.Fatalf("%s: %v", a.status, err)
		}
		return out.Ticket, out.CSRF
	}
	ticket, csrf := login(map[string]string{"username": "op", "realm": "pve", "password": "correct horse"})
	if !strings.HasPrefix(ticket, "PVE:op@pve:") {
		t.Errorf("ticket %q", ticket)
	}
	call := func(verb, ticket, csrf string) string {
		req, err := http.NewRequestWithContext(t.Context(), verb, l.cluster.Endpoint("pv1-1")+"/nodes/pv1-1/qemu/101/config", strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		if verb == "PUT" {
			req.URL.RawQuery = "onboot=1"
		}
		req.AddCookie(&http.Cookie{Name: "PVEAuthCookie", Value: ticket})
		req.Header.Set("CSRFPreventionToken", csrf)
		a, err := l.send(req)
		if err != nil {
			t.Fatal(err)
		}
		return a.status
	}
	again, csrf2 := login(map[string]string{"username": "op@pve", "password": ticket})
	for name, c := range map[string]struct{ verb, ticket, csrf, want string }{
		"read":        {"GET", ticket, "", "200 OK"},
		"write":       {"PUT", ticket, csrf, "200 OK"},
		"no csrf":     {"PUT", ticket, "", "401 Permission denied - invalid csrf token"},
		"wrong csrf":  {"PUT", ticket, "00000000:x", "401 Permission denied - invalid csrf token"},
		"renewed":     {"PUT", again, csrf2, "200 OK"},
		"made up":     {"GET", "PVE:root@pam:00000000::x", "", "401 Authentication failed!"},
		"cookie wins": {"GET", "nonsense", "", "401 Authentication failed!"},
	} {
		if got := call(c.verb, c.ticket, c.csrf); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	secrets := strings.Join(l.cluster.Secrets(), "\n")
	for _, secret := range []string{ticket, csrf, again, "correct horse", strings.Split(l.secret, "lab=")[1]} {
		if !strings.Contains(secrets, secret) {
			t.Errorf("a secret is not on record")
		}
	}
}

func TestTicketExpires(t *testing.T) {
	store := access.NewStore(time.Hour)
	store.AddUser(access.User{ID: "op@pve", Password: "x"})
	now := time.Now()
	ticket, ok := store.Login("op@pve", "x", now)
	if !ok {
		t.Fatal("no login")
	}
	if _, ok := store.ByTicket(ticket.Value, now.Add(59*time.Minute)); !ok {
		t.Error("expired too early")
	}
	if _, ok := store.ByTicket(ticket.Value, now.Add(61*time.Minute)); ok {
		t.Error("does not expire")
	}
	if store.CSRFMatches("op@pve", ticket.CSRF, now.Add(61*time.Minute)) {
		t.Error("its CSRF token does not expire")
	}
	if _, ok := store.Login("op@pve", ticket.Value, now.Add(61*time.Minute)); ok {
		t.Error("an expired ticket renews itself")
	}
}

// TestDelayOf401 measures the three seconds, here a hundredth of them.
func TestDelayOf401(t *testing.T) {
	l := start(t)
	for status, token := range map[string]string{"401 No ticket": "", "200 OK": l.secret} {
		begin := time.Now()
		if a := l.as(token, "pv1-1", "GET", "/version", nil); a.status != status {
			t.Errorf("%s, want %s", a.status, status)
		}
		if token == "" && time.Since(begin) < 30*time.Millisecond {
			t.Errorf("%s took %s", status, time.Since(begin))
		}
	}
}

func TestAccessLog(t *testing.T) {
	l := start(t)
	l.do("GET", "/version?_dc=secret", nil)
	l.as("", "pv1-1", "GET", "/version", nil)
	l.records.mu.Lock()
	defer l.records.mu.Unlock()
	var got []string
	for _, r := range l.records.list {
		got = append(got, fmt.Sprint(r.Node, " ", r.Verb, " ", r.Path, " ", r.User, " ", r.Status, " ", r.Reason))
	}
	want := []string{"pv1-1 GET /version aether@pve!lab 200 OK", "pv1-1 GET /version  401 No ticket"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
