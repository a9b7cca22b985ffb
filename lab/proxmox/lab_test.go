package proxmox_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/proxmox"
	"aether.internal/aether/lab/proxmox/access"
	"aether.internal/aether/lab/proxmox/blank"
)

// speed makes a clone take 20 ms and a lock time-out 100 ms. Tests that must
// look at something while it lasts run slow.
const (
	speed = 100
	slow  = 15
)

// lab is a homelab cluster on the loopback.
type lab struct {
	t       *testing.T
	cluster *proxmox.Cluster
	faults  *faults.Set
	guests  *guests
	secret  string // of aether@pve!lab
	root    string // of root@pam!lab
	records *records
	once    sync.Once
	http    *http.Client
}

type records struct {
	mu   sync.Mutex
	list []proxmox.AccessRecord
}

func (r *records) add(record proxmox.AccessRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, record)
}

// guests remembers what was powered on.
type guests struct {
	*blank.Hypervisor
	mu   sync.Mutex
	byID map[int]*blank.Guest
}

func (g *guests) PowerOn(h machine.Hardware) (machine.Guest, error) {
	guest, err := g.Hypervisor.PowerOn(h)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	b, ok := guest.(*blank.Guest)
	if !ok {
		return nil, fmt.Errorf("unexpected guest %T", guest)
	}
	g.byID[h.VMID] = b
	return guest, nil
}

func (g *guests) get(vmid int) *blank.Guest {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.byID[vmid]
}

// start starts a cluster; tune may change its configuration.
func start(t *testing.T, tune ...func(*proxmox.Config)) *lab {
	t.Helper()
	return startAt(t, speed, tune...)
}

func startAt(t *testing.T, speed float64, tune ...func(*proxmox.Config)) *lab {
	t.Helper()
	clock, err := latency.NewClock(speed)
	if err != nil {
		t.Fatal(err)
	}
	image := machine.Image{OS: "blank", Version: "v1", Agent: true}
	l := &lab{t: t, faults: &faults.Set{}, records: &records{}, guests: &guests{Hypervisor: blank.New(clock), byID: map[int]*blank.Guest{}}}
	cfg := proxmox.HomeLab(image, image)
	cfg.Clock, cfg.Faults, cfg.Hypervisor = clock, l.faults, l.guests
	cfg.AccessLog = l.records.add
	cfg.Listen = loopback()
	for _, f := range tune {
		f(&cfg)
	}
	l.cluster, err = proxmox.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.cluster.Close)
	l.secret = l.token("aether@pve!lab", false)
	l.root = l.token("root@pam!lab", false)
	return l
}

// loopback gives each node a port, and the same one after a power cycle.
func loopback() func(node, address string) (net.Listener, error) {
	var mu sync.Mutex
	ports := map[string]string{}
	return func(node, address string) (net.Listener, error) {
		mu.Lock()
		defer mu.Unlock()
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		key := node + port
		if ports[key] == "" {
			ports[key] = "127.0.0.1:0"
		}
		l, err := net.Listen("tcp", ports[key])
		if err == nil {
			ports[key] = l.Addr().String()
		}
		return l, err
	}
}

// token adds a token and returns the value of its header.
func (l *lab) token(id string, privsep bool) string {
	l.t.Helper()
	secret, err := l.cluster.Token(access.Token{ID: id, PrivSep: privsep})
	if err != nil {
		l.t.Fatal(err)
	}
	return "PVEAPIToken=" + id + "=" + secret
}

// user adds a user with a token and roles on paths.
func (l *lab) user(name string, grants map[string]string) string {
	l.t.Helper()
	l.cluster.Access().AddUser(access.User{ID: name})
	for path, roles := range grants {
		for role := range strings.SplitSeq(roles, ",") {
			if err := l.cluster.Access().Grant(access.ACL{Path: path, Who: name, Role: role, Propagate: true}); err != nil {
				l.t.Fatal(err)
			}
		}
	}
	return l.token(name+"!t", false)
}

func (l *lab) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(l.cluster.CAPEM())
	return pool
}

// client returns the lab's HTTP client, which keeps its connections.
func (l *lab) client() *http.Client {
	l.once.Do(l.newClient)
	return l.http
}

func (l *lab) newClient() {
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: l.pool()},
		ForceAttemptHTTP2: true, // a server that offers it would be found out
	}
	l.t.Cleanup(transport.CloseIdleConnections)
	l.http = &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

// answer is a raw answer.
type answer struct {
	status string // "200 OK"
	data   json.RawMessage
	text   string
	errors map[string]string
	total  int
	header http.Header
	closed bool
	proto  string
	body   string
}

// do sends a form, as PVE's own clients do, with aether's token on pv1-1.
func (l *lab) do(verb, path string, form map[string]string) answer {
	l.t.Helper()
	return l.as(l.secret, "pv1-1", verb, path, form)
}

// as does it with another token on another node.
func (l *lab) as(token, node, verb, path string, form map[string]string) answer {
	l.t.Helper()
	values := url.Values{}
	for k, v := range form {
		values.Set(k, v)
	}
	target := l.cluster.Endpoint(node) + path
	var body io.Reader
	if verb == http.MethodPost || verb == http.MethodPut {
		body = strings.NewReader(values.Encode())
	} else if len(form) > 0 {
		target += "?" + values.Encode()
	}
	req, err := http.NewRequestWithContext(l.t.Context(), verb, target, body)
	if err != nil {
		l.t.Fatal(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if token != "" {
		req.Header.Set("Authorization", token)
	}
	a, err := l.send(req)
	if err != nil {
		l.t.Fatalf("%s %s: %v", verb, path, err)
	}
	return a
}

func (l *lab) send(req *http.Request) (answer, error) {
	res, err := l.client().Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{status: res.Status, header: res.Header, closed: res.Close, proto: res.Proto, body: string(body)}
	var parsed struct {
		Data    json.RawMessage   `json:"data"`
		Message string            `json:"message"`
		Errors  map[string]string `json:"errors"`
		Total   int               `json:"total"`
	}
	if bytes.HasPrefix(body, []byte("{")) {
		if err := json.Unmarshal(body, &parsed); err != nil {
			return a, fmt.Errorf("body %q: %w", body, err)
		}
	}
	a.data, a.text, a.errors, a.total = parsed.Data, parsed.Message, parsed.Errors, parsed.Total
	return a, nil
}

// get reads an object.
func (l *lab) get(path string) map[string]any {
	l.t.Helper()
	a := l.do("GET", path, nil)
	if a.status != "200 OK" {
		l.t.Fatalf("GET %s: %s %v", path, a.status, a.errors)
	}
	var out map[string]any
	if err := json.Unmarshal(a.data, &out); err != nil {
		l.t.Fatalf("GET %s: %v in %s", path, err, a.data)
	}
	return out
}

// list reads an array.
func (l *lab) list(path string) []map[string]any {
	l.t.Helper()
	a := l.do("GET", path, nil)
	var out []map[string]any
	if err := json.Unmarshal(a.data, &out); err != nil {
		l.t.Fatalf("GET %s: %s: %v in %s", path, a.status, err, a.body)
	}
	return out
}

// task sends a call that begins a task and returns its exit status.
func (l *lab) task(verb, path string, form map[string]string) string {
	l.t.Helper()
	return l.wait(l.upid(l.do(verb, path, form)))
}

func (l *lab) upid(a answer) string {
	l.t.Helper()
	var upid string
	if err := json.Unmarshal(a.data, &upid); err != nil || upid == "" {
		l.t.Fatalf("no UPID: %s %s", a.status, a.body)
	}
	return upid
}

func (l *lab) wait(upid string) string {
	l.t.Helper()
	node := strings.Split(upid, ":")[1]
	for range 2000 {
		status := l.get("/nodes/" + node + "/tasks/" + url.PathEscape(upid) + "/status")
		if status["status"] == "stopped" {
			return fmt.Sprint(status["exitstatus"])
		}
		time.Sleep(5 * time.Millisecond)
	}
	l.t.Fatalf("task %s does not end", upid)
	return ""
}

// ok fails the test unless the task ended well.
func (l *lab) ok(verb, path string, form map[string]string) {
	l.t.Helper()
	if exit := l.task(verb, path, form); exit != "OK" {
		l.t.Fatalf("%s %s: %s", verb, path, exit)
	}
}

func (l *lab) log(upid string) string {
	l.t.Helper()
	node := strings.Split(upid, ":")[1]
	var lines []string
	for _, line := range l.list("/nodes/" + node + "/tasks/" + url.PathEscape(upid) + "/log?limit=0") {
		lines = append(lines, fmt.Sprint(line["t"]))
	}
	return strings.Join(lines, "\n")
}

// eventually polls until the condition holds.
func (l *lab) eventually(what string, condition func() bool) {
	l.t.Helper()
	for range 1000 {
		if condition() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	l.t.Fatalf("never: %s", what)
}

func (l *lab) inject(f faults.Fault) string {
	l.t.Helper()
	id, err := l.faults.Inject(f)
	if err != nil {
		l.t.Fatal(err)
	}
	return id
}

// find returns a VM's snapshot.
func (l *lab) find(vmid int) (proxmox.MachineInfo, bool) {
	for _, v := range l.cluster.VMs() {
		if v.VMID == vmid {
			return v, true
		}
	}
	return proxmox.MachineInfo{}, false
}

// rawRequest sends bytes over TLS and returns the status line.
func (l *lab) rawRequest(text string) string {
	l.t.Helper()
	address := strings.TrimSuffix(strings.TrimPrefix(l.cluster.Endpoint("pv1-1"), "https://"), "/api2/json")
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: l.pool(), ServerName: "localhost"}}
	conn, err := dialer.DialContext(context.Background(), "tcp", address)
	if err != nil {
		l.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, text); err != nil {
		l.t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		l.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}
