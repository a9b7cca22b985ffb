package proxmox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	goproxmox "github.com/luthermonson/go-proxmox"
)

// LowestVMID is the lowest VMID this package ever writes.
const LowestVMID = 1000

// Token is an API token, USER@REALM!TOKENID=SECRET. It shows itself without
// its secret.
type Token string

// String shows who the token is for.
func (t Token) String() string {
	id, _, _ := strings.Cut(string(t), "=")
	return id + "=***"
}

// GoString shows the same under %#v.
func (t Token) GoString() string { return t.String() }

// LogValue shows the same in logs.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText keeps the secret out of encodings.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

func (t Token) parts() (id, secret string, err error) {
	id, secret, ok := strings.Cut(strings.TrimSpace(string(t)), "=")
	if !ok || !strings.Contains(id, "@") || !strings.Contains(id, "!") || secret == "" {
		return "", "", errors.New("the token is not of the form USER@REALM!TOKENID=SECRET")
	}
	return id, secret, nil
}

// Config says how to reach a cluster.
type Config struct {
	Cluster   string   // name, for messages
	Endpoints []string // https://<host>:8006, at least one
	Token     Token
	// CA in PEM form, or SHA-256 fingerprints, or both.
	CA           []byte
	Fingerprints []string
	Log          *slog.Logger
	// Dial replaces the dialer. Nil: the usual one.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Client speaks to one Proxmox cluster. It is safe for concurrent use.
type Client struct {
	cluster string
	api     *goproxmox.Client
	http    *http.Client
	base    string
	auth    string
	log     *slog.Logger
	poll    time.Duration // least pause between looks at a task
}

// New returns a client. It does not connect.
func New(config Config) (*Client, error) {
	id, secret, err := config.Token.parts()
	if err != nil {
		return nil, fmt.Errorf("proxmox cluster %s: %w", config.Cluster, err)
	}
	trust, err := pinned(config.CA, config.Fingerprints)
	if err != nil {
		return nil, fmt.Errorf("proxmox cluster %s: %w", config.Cluster, err)
	}
	transport, err := newFailover(config.Endpoints, trust, config.Dial)
	if err != nil {
		return nil, fmt.Errorf("proxmox cluster %s: %w", config.Cluster, err)
	}
	log := config.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	base := strings.TrimRight(config.Endpoints[0], "/") + "/api2/json"
	client := &http.Client{Transport: transport}
	return &Client{
		cluster: config.Cluster,
		api: goproxmox.NewClient(base, goproxmox.WithHTTPClient(client), goproxmox.WithAPIToken(id, secret),
			goproxmox.WithUserAgent("aether"), goproxmox.WithLogger(quiet{})),
		http: client,
		base: base,
		auth: "PVEAPIToken=" + id + "=" + secret,
		log:  log.With("cluster", config.Cluster),
		poll: 200 * time.Millisecond,
	}, nil
}

// Cluster is the cluster's name.
func (c *Client) Cluster() string { return c.cluster }

// quiet drops what go-proxmox logs: it would write bodies to the output.
type quiet struct{}

func (quiet) Debugf(string, ...any) {}
func (quiet) Infof(string, ...any)  {}
func (quiet) Warnf(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}

// call does one request and returns errors of this package's kinds. For GET
// and DELETE the parameters travel in the query, otherwise in the body.
func (c *Client) call(ctx context.Context, op, method, path string, parameters map[string]any, result any) error {
	var sent atomic.Bool
	ctx = context.WithValue(ctx, sentKey{}, &sent)
	started := time.Now()
	var err error
	switch method {
	case http.MethodGet:
		err = c.api.GetWithParams(ctx, path, orNil(parameters), result)
	case http.MethodDelete:
		err = c.api.DeleteWithParams(ctx, path, orNil(parameters), result)
	case http.MethodPut:
		err = c.api.Put(ctx, path, orNil(parameters), result)
	default:
		err = c.api.Post(ctx, path, orNil(parameters), result)
	}
	err = classify(op, err, sent.Load())
	if method != http.MethodGet || err != nil {
		c.log.DebugContext(ctx, "proxmox call", "method", method, "path", path, "took", time.Since(started), "error", err)
	}
	return err
}

// orNil keeps an empty map from becoming an empty query or body.
func orNil(parameters map[string]any) any {
	if len(parameters) == 0 {
		return nil
	}
	return parameters
}

func (c *Client) get(ctx context.Context, op, path string, result any) error {
	return c.call(ctx, op, http.MethodGet, path, nil, result)
}

// writable refuses VMIDs Aether never writes.
func writable(op string, vmid int) error {
	if vmid < LowestVMID {
		return &Error{Op: op, Kind: ErrNotOurs, Message: fmt.Sprintf("VMID %d is below %d: those are for templates and for the operator", vmid, LowestVMID)}
	}
	return nil
}
