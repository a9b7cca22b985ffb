package maintenance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	cosiv1alpha1 "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/state/protobuf/server"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	storageapi "github.com/siderolabs/talos/pkg/machinery/api/storage"
	"github.com/siderolabs/talos/pkg/machinery/config/validation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"aether.internal/aether/lab/faults"
)

// Port is where maintenance mode listens.
const Port = 50000

// Machine is what maintenance mode tells about the hardware.
type Machine struct {
	UUID     string // SMBIOS
	Name     string // SMBIOS product
	Hostname string
	Disks    []Disk
	Links    []Link
}

// Disk is a block device.
type Disk struct {
	Device   string // sda
	Bytes    uint64
	Model    string
	ReadOnly bool
	System   bool // Talos is on it
}

// Link is a network card with its addresses.
type Link struct {
	Name      string
	MAC       net.HardwareAddr
	MTU       int
	Up        bool
	Addresses []string // with prefix length
}

// Config is what a Server needs to know.
type Config struct {
	Machine Machine
	// Mode is the platform's: it decides what validation asks for.
	Mode validation.RuntimeMode
	// Faults may lose answers, hold or delay calls at Place followed by the
	// call's name, as <Place>/ApplyConfiguration.
	Faults *faults.Set
	Place  string
	// Logf writes a line to the machine's console; it never gets a secret.
	Logf func(format string, args ...any)
}

// Server waits for a configuration.
type Server struct {
	cfg      Config
	accepted chan []byte
}

// New returns a server.
func New(cfg Config) *Server {
	if cfg.Logf == nil {
		cfg.Logf = func(string, ...any) {}
	}
	return &Server{cfg: cfg, accepted: make(chan []byte)}
}

// Wait serves on the listener until somebody applies a configuration, then
// closes the port and returns the configuration.
func (s *Server) Wait(ctx context.Context, listener net.Listener) ([]byte, error) {
	tlsConfig, err := selfSigned(s.cfg.Machine)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	resources, err := newResources(ctx, s.cfg.Machine)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	tracked := &connections{Listener: listener, open: map[string]net.Conn{}}
	grpcServer := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(tlsConfig)),
		grpc.ChainUnaryInterceptor(s.interfere(tracked)),
		grpc.WaitForHandlers(true),
	)
	machineapi.RegisterMachineServiceServer(grpcServer, &machineService{server: s})
	storageapi.RegisterStorageServiceServer(grpcServer, &storageService{disks: s.cfg.Machine.Disks})
	cosiv1alpha1.RegisterStateServer(grpcServer, server.NewState(readOnly(resources)))

	served := make(chan error, 1)
	go func() { served <- grpcServer.Serve(tracked) }()
	s.cfg.Logf("this machine is reachable at: %s", addressesOf(s.cfg.Machine))
	s.cfg.Logf("upload configuration using talosctl")
	select {
	case <-ctx.Done():
		grpcServer.Stop()
		return nil, errors.Join(ctx.Err(), <-served)
	case err := <-served:
		return nil, fmt.Errorf("serve maintenance API: %w", err)
	case config := <-s.accepted:
		stop(grpcServer)
		return config, <-served
	}
}

// stop lets the answer go out, then closes.
func stop(s *grpc.Server) {
	hard := time.AfterFunc(time.Second, s.Stop)
	s.GracefulStop()
	hard.Stop()
}

// interfere applies the faults that were asked for.
func (s *Server) interfere(tracked *connections) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		place := s.cfg.Place + "/" + methodName(info.FullMethod, req)
		if f := s.cfg.Faults.Take(place, faults.Delay); f != nil {
			if err := wait(ctx, f.Delay); err != nil {
				return nil, err
			}
		}
		answer, err := handler(ctx, req)
		if f := s.cfg.Faults.Take(place, faults.LostAnswer); f != nil {
			tracked.cut(ctx)
		}
		if f := s.cfg.Faults.Take(place, faults.Hold); f != nil {
			select {
			case <-ctx.Done():
			case <-f.Released():
			}
		}
		return answer, err
	}
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// connections remembers the open ones, so that a fault can break the one that
// a call came in on.
type connections struct {
	net.Listener

	mu   sync.Mutex
	open map[string]net.Conn
}

// Accept implements net.Listener.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[conn.RemoteAddr().String()] = conn
	return conn, nil
}
