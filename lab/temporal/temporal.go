package temporal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"google.golang.org/grpc"

	"aether.internal/aether/lab/upstream/process"
)

// stopGrace is how long the server may take to end before it is killed, which
// costs it nothing: its state is in the file.
const stopGrace = 3 * time.Second

// Config describes the server.
type Config struct {
	// Program is the one lab/upstream names Temporal.
	Program string
	// Dir keeps its SQLite file and its log. A file from before is used.
	Dir string
	// Net is the namespace it runs in; nil is the caller's.
	Net process.Network
	// Address is what it listens on; loopback when not set.
	Address netip.Addr
	// FrontendPort and UIPort are 7233 and 8233 when 0.
	FrontendPort, UIPort int
	// CodecEndpoint is the URL at which a browser that shows the UI finds the
	// codec server; empty for none.
	CodecEndpoint string
	// Namespace is registered; "default" when empty.
	Namespace string
	// SearchAttributes are registered in it, name to type (as Keyword); nil
	// stands for those of ProductSearchAttributes.
	SearchAttributes map[string]string
	// Log tells what is started and how long that took.
	Log *slog.Logger
}

// ProductSearchAttributes are the search attributes that Aether's workflows
// set. A workflow that sets one the namespace does not know cannot start.
func ProductSearchAttributes() map[string]string {
	const keyword = "Keyword"
	return map[string]string{
		"AetherTenant": keyword, "AetherPool": keyword, "AetherMachine": keyword, "AetherPhase": keyword,
	}
}

// Server is a running Temporal server.
type Server struct {
	cfg     Config
	process *process.Process
}

// Start starts the server and waits until it serves its namespace and its UI.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	switch {
	case cfg.Program == "":
		return nil, errors.New("temporal: Program names no program")
	case !filepath.IsAbs(cfg.Dir):
		return nil, fmt.Errorf("temporal: Dir %q is not an absolute path", cfg.Dir)
	case cfg.Log == nil:
		return nil, errors.New("temporal: Log is nil")
	}
	if !cfg.Address.IsValid() {
		cfg.Address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	cfg.FrontendPort = cmp.Or(cfg.FrontendPort, 7233)
	cfg.UIPort = cmp.Or(cfg.UIPort, 8233)
	cfg.Namespace = cmp.Or(cfg.Namespace, client.DefaultNamespace)
	if cfg.SearchAttributes == nil {
		cfg.SearchAttributes = ProductSearchAttributes()
	}
	s := &Server{cfg: cfg}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Server) arguments() []string {
	args := []string{
		"--ip=" + s.cfg.Address.String(),
		"--port=" + strconv.Itoa(s.cfg.FrontendPort),
		"--ui-port=" + strconv.Itoa(s.cfg.UIPort),
		"--db=" + filepath.Join(s.cfg.Dir, "temporal.db"),
		"--namespace=" + s.cfg.Namespace,
		"--codec-endpoint=" + s.cfg.CodecEndpoint,
	}
	for _, name := range slices.Sorted(maps.Keys(s.cfg.SearchAttributes)) {
		args = append(args, "--search-attribute="+name+"="+s.cfg.SearchAttributes[name])
	}
	return args
}

func (s *Server) start(ctx context.Context) error {
	began := time.Now()
	p, err := process.Start(process.Spec{
		Name: "temporal", Program: s.cfg.Program, Args: s.arguments(), LogFile: s.LogFile(), Net: s.cfg.Net,
	})
	if err != nil {
		return err
	}
	if err := s.waitReady(ctx, p); err != nil {
		return errors.Join(err, p.Kill())
	}
	s.process = p
	s.cfg.Log.Info("temporal is ready", "frontend", s.HostPort(), "ui", s.UIURL(), "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// waitReady asks the server's health, then for the namespace (which it knows a
// moment later), then the UI.
func (s *Server) waitReady(ctx context.Context, p *process.Process) error {
	c, err := client.NewLazyClient(s.ClientOptions())
	if err != nil {
		return fmt.Errorf("client of temporal: %w", err)
	}
	defer c.Close()
	healthy := func(ctx context.Context) error {
		if _, err := c.CheckHealth(ctx, &client.CheckHealthRequest{}); err != nil {
			return err
		}
		_, err := c.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: s.cfg.Namespace})
		return err
	}
	if err := p.WaitReady(ctx, healthy); err != nil {
		return err
	}
	return p.WaitReady(ctx, process.HTTPProbe(s.httpClient(), s.UIURL()+"/healthz"))
}

func (s *Server) httpClient() *http.Client { return process.HTTPClient(s.cfg.Net, nil) }

// HostPort is where clients and workers find the server.
func (s *Server) HostPort() string {
	return netip.AddrPortFrom(s.cfg.Address, uint16(s.cfg.FrontendPort)).String()
}

// UIURL is where a browser finds the UI.
func (s *Server) UIURL() string {
	return "http://" + netip.AddrPortFrom(s.cfg.Address, uint16(s.cfg.UIPort)).String()
}

// LogFile is where it writes to.
func (s *Server) LogFile() string { return filepath.Join(s.cfg.Dir, "temporal.log") }

// ClientOptions reach the server from everywhere in this process, whatever
// namespace it runs in.
func (s *Server) ClientOptions() client.Options {
	o := client.Options{
		HostPort:  s.HostPort(),
		Namespace: s.cfg.Namespace,
		Logger:    sdklog.NewStructuredLogger(s.cfg.Log),
	}
	if s.cfg.Net != nil {
		o.ConnectionOptions.DialOptions = []grpc.DialOption{grpc.WithContextDialer(dialer(s.cfg.Net))}
	}
	return o
}

// Process is its process, for its memory and its ID.
func (s *Server) Process() *process.Process { return s.process }

// Kill ends it as a crash would; Restart starts it again.
func (s *Server) Kill() error { return s.process.Kill() }

// Stop ends it in order.
func (s *Server) Stop() error { return s.process.Stop(stopGrace) }

// Restart starts it again on its file, stopping it first when it runs.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(); err != nil {
		return err
	}
	return s.start(ctx)
}
