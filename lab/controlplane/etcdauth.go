package controlplane

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// EnableAuth makes etcd ask who is asking, as a store that tenants share must:
// from then on a client is the user its certificate's common name says, and
// may do what that user's roles allow. The user root may do everything, by
// certificate or, over etcd's HTTP gateway, by the returned password (the
// gateway then wants a certificate that names nobody: IssueClient("")). It may
// be called again.
func (e *Etcd) EnableAuth(ctx context.Context) (password string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.password != "" {
		return e.password, nil
	}
	password = rand.Text()
	for _, step := range []struct {
		path string
		body map[string]any
	}{
		{"/v3/auth/user/add", map[string]any{"name": "root", "password": password}},
		{"/v3/auth/role/add", map[string]any{"name": "root"}},
		{"/v3/auth/user/grant", map[string]any{"user": "root", "role": "root"}},
		{"/v3/auth/enable", map[string]any{}},
	} {
		if err := e.post(ctx, step.path, step.body); err != nil {
			return "", fmt.Errorf("enable etcd's authentication: %w", err)
		}
	}
	e.password = password
	return password, nil
}

// post calls etcd's HTTP gateway.
func (e *Etcd) post(ctx context.Context, path string, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.Endpoint()+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("POST %s: %s: %s", path, resp.Status, answer)
	}
	return nil
}
