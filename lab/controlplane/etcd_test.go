package controlplane_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"aether.internal/aether/lab/controlplane"
	"aether.internal/aether/lab/controlplane/pki"
)

// raw sends and receives messages that the test encodes itself, which saves
// etcd's client library.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (raw) Name() string                       { return "raw" }

func tlsConfig(t *testing.T, e *controlplane.Etcd, client *pki.Pair) *tls.Config {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(e.CA().Certificate)
	config := &tls.Config{RootCAs: pool}
	if client != nil {
		certificate, err := client.TLS()
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config
}

// get reads key k over gRPC as the user of the certificate.
func get(t *testing.T, e *controlplane.Etcd, client *pki.Pair) error {
	t.Helper()
	conn, err := grpc.NewClient(strings.TrimPrefix(e.Endpoint(), "https://"), grpc.WithTransportCredentials(credentials.NewTLS(tlsConfig(t, e, client))))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	request, answer := []byte{0x0a, 1, 'k'}, []byte(nil) // RangeRequest{key: "k"}
	return conn.Invoke(t.Context(), "/etcdserverpb.KV/Range", &request, &answer, grpc.ForceCodec(raw{}))
}

// post calls etcd's HTTP gateway as root.
func post(ctx context.Context, client *http.Client, url, token string, body, answer any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(data))
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		message, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("POST %s: %s: %s", url, resp.Status, message)
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

func TestEtcdAuth(t *testing.T) {
	p := freePorts(t, 2)
	e, err := controlplane.StartEtcd(t.Context(), controlplane.EtcdConfig{
		Name: "store", Dir: t.TempDir(), Address: loopback, Port: p[0], PeerPort: p[1],
		Kubernetes: kubernetesProgram(t), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Kill() })
	tenant, err := e.IssueClient("t1")
	if err != nil {
		t.Fatal(err)
	}
	root := e.Root()
	if err := get(t, e, &tenant); err != nil {
		t.Errorf("before authentication is on: %v", err)
	}
	if err := get(t, e, nil); status.Code(err) != codes.Unavailable {
		t.Errorf("without a certificate: %v, want no connection", err)
	}

	password, err := e.EnableAuth(t.Context())
	if err != nil || password == "" {
		t.Fatalf("password of %d characters, error %v", len(password), err)
	}
	if again, err := e.EnableAuth(t.Context()); err != nil || again != password {
		t.Errorf("second time: another password (%v), error %v", again != password, err)
	}
	expect := func(when string) {
		t.Helper()
		if err := get(t, e, &root); err != nil {
			t.Errorf("root %s: %v", when, err)
		}
		if err := get(t, e, &tenant); status.Code(err) != codes.PermissionDenied && status.Code(err) != codes.InvalidArgument {
			t.Errorf("a user that does not exist, %s: %v, want a refusal", when, err)
		}
	}
	expect("after authentication is on")

	// The password opens the HTTP gateway to a certificate that names nobody.
	nobody, err := e.IssueClient("")
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig(t, e, &nobody), DisableKeepAlives: true}}
	var login struct{ Token string }
	if err := post(t.Context(), client, e.Endpoint()+"/v3/auth/authenticate", "", map[string]string{"name": "root", "password": password}, &login); err != nil {
		t.Fatal(err)
	}
	var users struct{ Users []string }
	if err := post(t.Context(), client, e.Endpoint()+"/v3/auth/user/list", login.Token, struct{}{}, &users); err != nil || len(users.Users) != 1 {
		t.Errorf("users %v, error %v; want root alone", users.Users, err)
	}

	if err := e.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := e.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("after a crash")
}
