package scenario

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// pvesh is what an operator's script does to Proxmox: one call after the other,
// over plain HTTP, with nothing of the product's client.
type pvesh struct {
	http  *http.Client
	base  string
	token string
}

// pveError is a call or task that Proxmox refused.
type pveError struct {
	call string
	text string
}

// Error implements error.
func (e *pveError) Error() string { return e.call + ": " + e.text }

// pvesh returns a client of the first host with the operator's token.
func (t *T) pvesh() (*pvesh, error) {
	token, err := t.operator()
	if err != nil {
		return nil, err
	}
	return t.pveshAs(token), nil
}

func (t *T) pveshAs(token string) *pvesh {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(t.World.Proxmox.CAPEM())
	return &pvesh{
		base: "https://192.168.0.8:8006/api2/json", token: token,
		http: &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			DialContext:     t.World.Fabric.Platform().DialContext,
		}},
	}
}

// script runs a file of the scenario: a call a line, as one types it for pvesh,
// and waits for the task that a call starts.
func (t *T) script(ctx context.Context, p *pvesh, name string) error {
	data, err := os.ReadFile(t.Testdata(name))
	if err != nil {
		return fmt.Errorf("read script: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		t.Logf("pvesh %s", line)
		call, err := parseCall(line)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if _, err := p.do(ctx, call); err != nil {
			return err
		}
	}
	return nil
}

// call is one line for pvesh.
type call struct {
	text   string
	verb   string
	path   string
	values url.Values
}

// parseCall reads "create /nodes/x/qemu/901/clone --newid 3001 --name y".
func parseCall(line string) (call, error) {
	fields := strings.Fields(line)
	verbs := map[string]string{"get": http.MethodGet, "create": http.MethodPost, "set": http.MethodPut, "delete": http.MethodDelete}
	if len(fields) < 2 || verbs[fields[0]] == "" || len(fields)%2 != 0 {
		return call{}, fmt.Errorf("%q: want get, create, set or delete, a path, and --option value pairs", line)
	}
	c := call{text: strings.Join(fields[:2], " "), verb: verbs[fields[0]], path: fields[1], values: url.Values{}}
	for i := 2; i < len(fields); i += 2 {
		option, ok := strings.CutPrefix(fields[i], "--")
		if !ok {
			return call{}, fmt.Errorf("%q: %s is not an option", line, fields[i])
		}
		c.values.Set(option, fields[i+1])
	}
	return c, nil
}

// do makes the call, waits for its task, and returns the answer's data.
func (p *pvesh) do(ctx context.Context, c call) (json.RawMessage, error) {
	data, err := p.send(ctx, c)
	if err != nil {
		return nil, err
	}
	var upid string
	if json.Unmarshal(data, &upid) != nil || !strings.HasPrefix(upid, "UPID:") {
		return data, nil
	}
	return data, p.wait(ctx, c, upid)
}

// get reads one thing into out.
func (p *pvesh) get(ctx context.Context, path string, out any) error {
	data, err := p.send(ctx, call{text: "get " + path, verb: http.MethodGet, path: path})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("get %s: %w", path, err)
	}
	return nil
}

func (p *pvesh) send(ctx context.Context, c call) (json.RawMessage, error) {
	address, body := p.base+c.path, io.Reader(nil)
	if encoded := c.values.Encode(); c.verb == http.MethodPost || c.verb == http.MethodPut {
		body = strings.NewReader(encoded)
	} else if encoded != "" {
		address += "?" + encoded
	}
	request, err := http.NewRequestWithContext(ctx, c.verb, address, body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.text, err)
	}
	request.Header.Set("Authorization", "PVEAPIToken="+p.token)
	if body != nil {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	response, err := p.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.text, err)
	}
	defer func() { _ = response.Body.Close() }() // it is read to its end
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.text, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, &pveError{c.text, refusal(response.Status, answer)}
	}
	var decoded struct {
		Data json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(answer, &decoded); err != nil {
		return nil, fmt.Errorf("%s: %w", c.text, err)
	}
	return decoded.Data, nil
}

// refusal is the status line, which carries PVE's message, and what is wrong
// with which parameter.
func refusal(status string, answer []byte) string {
	var decoded struct {
		Errors map[string]string `json:"errors"`
	}
	if json.Unmarshal(answer, &decoded) != nil || len(decoded.Errors) == 0 {
		return status
	}
	return fmt.Sprintf("%s %v", status, decoded.Errors)
}

// wait waits for a task and tells how it failed.
func (p *pvesh) wait(ctx context.Context, c call, upid string) error {
	node := strings.Split(upid, ":")[1]
	path := "/nodes/" + node + "/tasks/" + url.PathEscape(upid) + "/status"
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		var status struct {
			Status     string `json:"status"`
			ExitStatus string `json:"exitstatus"`
		}
		if err := p.get(ctx, path, &status); err != nil {
			return err
		}
		switch {
		case status.Status != "stopped":
		case status.ExitStatus == "OK" || strings.HasPrefix(status.ExitStatus, "WARNINGS"):
			return nil
		default:
			return &pveError{c.text, status.ExitStatus}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: waiting for the task: %w", c.text, ctx.Err())
		case <-ticker.C:
		}
	}
}

// removeVMs destroys VMs that a script made, whatever state they are in.
func (t *T) removeVMs(p *pvesh, node string, vmids ...int) {
	t.Cleanup(func(ctx context.Context) error {
		for _, vmid := range vmids {
			for _, vm := range t.World.Proxmox.VMs() {
				if vm.VMID != vmid {
					continue
				}
				path := fmt.Sprintf("/nodes/%s/qemu/%d", node, vmid)
				if vm.Running {
					if _, err := p.do(ctx, call{text: "stop " + path, verb: http.MethodPost, path: path + "/status/stop"}); err != nil {
						return err
					}
				}
				if _, err := p.do(ctx, call{text: "delete " + path, verb: http.MethodDelete, path: path}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
