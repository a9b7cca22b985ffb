package talos

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Dialer opens connections to machines.
type Dialer func(ctx context.Context, network, address string) (net.Conn, error)

// errClosed says that a host refused the connection: it is up, and nothing
// listens on the port. A time-out or a missing route is not this.
var errClosed = errors.New("port is closed")

// session is one TCP connection to one machine. It never reconnects: who
// answered the question for the UUID also gets the configuration.
type session struct {
	client      *client.Client
	conn        net.Conn
	target      Target
	asksForCert atomic.Bool
	callTimeout time.Duration
}

func openSession(ctx context.Context, dial Dialer, target Target, callTimeout time.Duration) (*session, error) {
	address := target.Address.String()
	dialCtx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := dial(dialCtx, "tcp", address)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("%w: %w at %s", ErrUnreachable, errClosed, address)
		}
		return nil, fmt.Errorf("%w at %s: %w", ErrUnreachable, address, err)
	}
	s := &session{conn: conn, target: target, callTimeout: callTimeout}
	s.client, err = client.New(ctx,
		client.WithEndpoints(address),
		client.WithTLSConfig(s.tlsConfig()),
		client.WithGRPCDialOptions(grpc.WithContextDialer(once(conn)), grpc.WithNoProxy()),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open talos client for %s: %w", address, err), conn.Close())
	}
	return s, nil
}

// tlsConfig accepts any certificate: a machine in maintenance mode has made
// its own. Who it is follows from the SMBIOS UUID. Only a configured machine
// asks for a client's certificate.
func (s *session) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, //nolint:gosec // Maintenance mode has no identity; see above.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			s.asksForCert.Store(true)
			return &tls.Certificate{}, nil
		},
	}
}

// once hands out the connection that is open already, and no second one.
func once(conn net.Conn) func(context.Context, string) (net.Conn, error) {
	var used atomic.Bool
	return func(context.Context, string) (net.Conn, error) {
		if used.Swap(true) {
			return nil, errors.New("the connection to this machine has ended")
		}
		return conn, nil
	}
}

// close ends the connection. The client closes it too, but only if it came to
// use it.
func (s *session) close() error {
	err := s.client.Close()
	if connErr := s.conn.Close(); connErr != nil && !errors.Is(connErr, net.ErrClosed) {
		err = errors.Join(err, connErr)
	}
	return err
}

// call runs one request with its own deadline and sorts the error.
func (s *session) call(ctx context.Context, what string, request func(context.Context) error) error {
	callCtx, cancel := context.WithTimeout(ctx, s.callTimeout)
	defer cancel()
	err := request(callCtx)
	if err == nil {
		return nil
	}
	if s.asksForCert.Load() {
		return fmt.Errorf("%s at %s: %w: it asks for a client certificate, so it already has a configuration", what, s.target.Address, ErrNotMaintenance)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s at %s: %w", what, s.target.Address, ctx.Err())
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unknown:
		// Unknown is what the node says of a configuration it cannot parse.
		return err
	case codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated:
		return fmt.Errorf("%s at %s: %w: %s", what, s.target.Address, ErrNotMaintenance, scrub(status.Convert(err).Message()))
	default:
		return fmt.Errorf("%s at %s: %w: %s: %s", what, s.target.Address, ErrUnreachable, status.Code(err), scrub(status.Convert(err).Message()))
	}
}

// verify reads the machine's SMBIOS UUID and compares it.
func (s *session) verify(ctx context.Context) error {
	var found string
	err := s.call(ctx, "read SMBIOS UUID", func(ctx context.Context) error {
		info, err := safe.StateGetByID[*hardware.SystemInformation](ctx, s.client.COSI, hardware.SystemInformationID)
		if err == nil {
			found = info.TypedSpec().UUID
		}
		return err
	})
	if err != nil {
		if !errors.Is(err, ErrNotMaintenance) && !errors.Is(err, ErrUnreachable) && ctx.Err() == nil {
			// Not found, mostly: early in its boot the resource is not there.
			return fmt.Errorf("%w at %s: read SMBIOS UUID: %s", ErrUnreachable, s.target.Address, scrub(err.Error()))
		}
		return err
	}
	if !strings.EqualFold(found, s.target.UUID) {
		return &WrongMachineError{Address: s.target.Address.String(), Found: found, Want: s.target.UUID}
	}
	return nil
}

// disk is a disk as the machine sees it.
type disk struct {
	device string
	bytes  uint64
}

// disks lists the disks that can be written.
func (s *session) disks(ctx context.Context) ([]disk, error) {
	var list []disk
	err := s.call(ctx, "list disks", func(ctx context.Context) error {
		answer, err := s.client.Disks(ctx)
		if err != nil {
			return err
		}
		for _, message := range answer.GetMessages() {
			for _, d := range message.GetDisks() {
				if !d.GetReadonly() && d.GetSize() > 0 {
					list = append(list, disk{device: d.GetDeviceName(), bytes: d.GetSize()})
				}
			}
		}
		return nil
	})
	return list, err
}

// apply sends the configuration. A refusal is an [InvalidConfigError].
func (s *session) apply(ctx context.Context, configuration []byte, dryRun bool) (warnings []string, err error) {
	err = s.call(ctx, "apply configuration", func(ctx context.Context) error {
		answer, err := s.client.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{
			Data: configuration, Mode: machineapi.ApplyConfigurationRequest_AUTO, DryRun: dryRun,
		})
		for _, message := range answer.GetMessages() {
			for _, w := range message.GetWarnings() {
				warnings = append(warnings, scrub(w))
			}
		}
		return err
	})
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unknown:
		if err != nil && !errors.Is(err, ErrUnreachable) && !errors.Is(err, ErrNotMaintenance) && ctx.Err() == nil {
			return nil, &InvalidConfigError{Messages: messages(status.Convert(err).Message())}
		}
	}
	return warnings, err
}

// messages splits the list that Talos's validation writes.
func messages(text string) []string {
	var out []string
	for line := range strings.Lines(scrub(text)) {
		if line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "* ")); line != "" {
			out = append(out, line)
		}
	}
	return out
}
