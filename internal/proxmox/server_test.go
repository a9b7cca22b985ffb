package proxmox

import (
	"bufio"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	testToken   = Token("aether@pve!test=11111111-2222-3333-4444-555555555555")
	testMachine = "6f1c2a34-0000-4000-8000-000000000001"
)

// answer is what the test server says to one request.
type answer struct {
	status int    // 0: 200
	reason string // in the status line, as Proxmox puts its errors there
	data   any
	errors map[string]string
	hangUp bool // close the connection without an answer
}

// server is a raw HTTP/1.1 server that answers with Proxmox's status lines.
type server struct {
	*httptest.Server
	mu       sync.Mutex
	routes   map[string][]answer // "METHOD path" → answers in turn, the last for ever
	requests []string            // "METHOD path?query body"
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{routes: map[string][]answer{}}
	s.Server = httptest.NewTLSServer(s)
	t.Cleanup(s.Close)
	return s
}

// on sets the answers for a call.
func (s *server) on(method, path string, answers ...answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.routes[method+" /api2/json"+path] = answers
}

func (s *server) seen(prefix string) (matching []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, request := range s.requests {
		if strings.HasPrefix(request, prefix) {
			matching = append(matching, request)
		}
	}
	return matching
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.requests = append(s.requests, fmt.Sprintf("%s %s %s", r.Method, strings.TrimPrefix(r.URL.RequestURI(), "/api2/json"), body))
	key := r.Method + " " + r.URL.Path
	answers, ok := s.routes[key]
	if len(answers) > 1 {
		s.routes[key] = answers[1:]
	}
	s.mu.Unlock()
	a := answer{status: 501, reason: fmt.Sprintf("Method '%s %s' not implemented", r.Method, r.URL.Path)}
	if ok {
		a = answers[0]
	}
	if r.Header.Get("Authorization") != "PVEAPIToken="+string(testToken) {
		a = answer{status: 401, reason: "No ticket"}
	}
	connection, buffer, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = connection.Close() }()
	if a.hangUp {
		return
	}
	reply(buffer.Writer, a)
}

func reply(w *bufio.Writer, a answer) {
	status, reason := a.status, a.reason
	if status == 0 {
		status, reason = 200, "OK"
	}
	object := map[string]any{"data": a.data}
	if status != 200 {
		object["message"] = reason + "\n"
	}
	if a.errors != nil {
		object["errors"] = a.errors
	}
	body, _ := json.Marshal(object)
	if status == 401 || status > 590 {
		body = nil
	}
	fmt.Fprintf(w, "HTTP/1.1 %d %s\r\nContent-Type: application/json;charset=UTF-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", status, reason, len(body), body)
	_ = w.Flush()
}

func (s *server) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

func (s *server) client(t *testing.T, endpoints ...string) *Client {
	t.Helper()
	c, err := New(Config{Cluster: "lab", Endpoints: append(endpoints, s.URL), Token: testToken, CA: s.ca()})
	if err != nil {
		t.Fatal(err)
	}
	c.poll = time.Millisecond
	return c
}

// vm sets a VM's two read calls.
func (s *server) vm(vmid int, running bool, config map[string]any) {
	status := "stopped"
	if running {
		status = "running"
	}
	current := map[string]any{"vmid": vmid, "name": config["name"], "status": status, "maxmem": 2 << 30, "cpus": 2, "ha": map[string]any{"managed": 0}}
	if lock, ok := config["lock"]; ok {
		current["lock"] = lock
	}
	s.on("GET", fmt.Sprintf("/nodes/pv1-1/qemu/%d/status/current", vmid), answer{data: current})
	s.on("GET", fmt.Sprintf("/nodes/pv1-1/qemu/%d/config", vmid), answer{data: config})
}

// noVM makes a VM absent.
func (s *server) noVM(vmid int) {
	gone := answer{status: 500, reason: fmt.Sprintf("Configuration file 'nodes/pv1-1/qemu-server/%d.conf' does not exist", vmid)}
	s.on("GET", fmt.Sprintf("/nodes/pv1-1/qemu/%d/status/current", vmid), gone)
	s.on("GET", fmt.Sprintf("/nodes/pv1-1/qemu/%d/config", vmid), gone)
}

func upid(kind, id string) string {
	return "UPID:pv1-1:00001234:0000ABCD:6913A000:" + kind + ":" + id + ":aether@pve!test:"
}

// task sets how a task ends.
func (s *server) task(id, exit string, log ...string) {
	s.on("GET", "/nodes/pv1-1/tasks/"+id+"/status", answer{data: map[string]any{"status": "running"}}, answer{data: map[string]any{"status": "stopped", "exitstatus": exit}})
	lines := make([]map[string]any, 0, len(log))
	for i, line := range log {
		lines = append(lines, map[string]any{"n": i + 1, "t": line})
	}
	s.on("GET", "/nodes/pv1-1/tasks/"+id+"/log", answer{data: lines})
}

func ours() map[string]any {
	return map[string]any{
		"name": "demo-w1", "digest": "d1", "description": Mark{Machine: testMachine, Tenant: "demo", Role: RoleWorker}.Description(),
		"memory": "2048", "cores": 2, "scsi0": "local-lvm:vm-1000-disk-0,size=20G",
		"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr1,firewall=1", "tags": "aether;aether-worker;tenant-demo",
	}
}

func ref() Ref { return Ref{Node: "pv1-1", VMID: 1000, Machine: testMachine} }
