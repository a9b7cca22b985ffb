package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"aether.internal/aether/lab/faults"
)

// ErrNoLab says that no lab runs with that state folder.
var ErrNoLab = errors.New("no lab is running here; start one with `make lab` or `lab up`")

// Client asks the control API.
type Client struct {
	dir  string
	http *http.Client
}

// NewClient returns a client of the lab with that state folder.
func NewClient(dir string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", Socket(dir))
	}
	return &Client{dir: dir, http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// Status tells what runs.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	return s, c.call(ctx, http.MethodGet, "/status", nil, &s)
}

// WaitReady waits until the lab is ready, and returns early when it is gone.
func (c *Client) WaitReady(ctx context.Context) (Status, error) {
	const every = 100 * time.Millisecond
	seen := false
	for {
		status, err := c.Status(ctx)
		switch {
		case err == nil && status.Ready:
			return status, nil
		case err != nil && (seen || !errors.Is(err, ErrNoLab)):
			return status, err
		}
		seen = err == nil
		select {
		case <-ctx.Done():
			return status, fmt.Errorf("wait for the lab: %w", ctx.Err())
		case <-time.After(every):
		}
	}
}

// Secrets returns every secret that was issued so far.
func (c *Client) Secrets(ctx context.Context) ([]Secret, error) {
	var s []Secret
	return s, c.call(ctx, http.MethodGet, "/secrets", nil, &s)
}

// Faults lists the faults in force.
func (c *Client) Faults(ctx context.Context) ([]faults.Fault, error) {
	var f []faults.Fault
	return f, c.call(ctx, http.MethodGet, "/faults", nil, &f)
}

// Inject puts a fault in force and returns its ID.
func (c *Client) Inject(ctx context.Context, fault faults.Fault) (string, error) {
	var answer struct {
		ID string `json:"id"`
	}
	return answer.ID, c.call(ctx, http.MethodPost, "/faults", fault, &answer)
}

// Clear lifts the fault of that ID, or all when it is empty, and returns how
// many it lifted.
func (c *Client) Clear(ctx context.Context, id string) (int, error) {
	path := "/faults"
	if id != "" {
		path += "/" + url.PathEscape(id)
	}
	var answer struct {
		Cleared int `json:"cleared"`
	}
	return answer.Cleared, c.call(ctx, http.MethodDelete, path, nil, &answer)
}

// Kill ends a component as a crash would.
func (c *Client) Kill(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodPost, "/components/"+url.PathEscape(name)+"/kill", nil, nil)
}

// Restart starts a component again and returns when it is ready.
func (c *Client) Restart(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodPost, "/components/"+url.PathEscape(name)+"/restart", nil, nil)
}

// SetHost switches a Proxmox host off or on.
func (c *Client) SetHost(ctx context.Context, name string, on bool) error {
	verb := "off"
	if on {
		verb = "on"
	}
	return c.call(ctx, http.MethodPost, "/hosts/"+url.PathEscape(name)+"/"+verb, nil, nil)
}

// Floor computes the least time that something can take in this lab.
func (c *Client) Floor(ctx context.Context, r FloorRequest) (Floor, error) {
	var f Floor
	return f, c.call(ctx, http.MethodPost, "/floor", r, &f)
}

// Stop asks the lab to end and returns at once.
func (c *Client) Stop(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/stop", nil, nil)
}

func (c *Client) call(ctx context.Context, method, path string, body, into any) error {
	var reader io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("ask the lab: %w", err)
		}
		reader = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://lab"+path, reader)
	if err != nil {
		return fmt.Errorf("ask the lab: %w", err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return c.unreachable(err)
	}
	defer func() { _ = response.Body.Close() }() // it was read whole, or the error says more
	if response.StatusCode != http.StatusOK {
		var p problem
		if err := json.NewDecoder(response.Body).Decode(&p); err != nil {
			return fmt.Errorf("ask the lab: %s", response.Status)
		}
		return errors.New(p.Error)
	}
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(response.Body).Decode(into); err != nil {
		return fmt.Errorf("read the lab's answer: %w", err)
	}
	return nil
}

// unreachable tells "nobody there" from other failures.
func (c *Client) unreachable(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s: %w", c.dir, ErrNoLab)
	}
	return fmt.Errorf("ask the lab: %w", err)
}
