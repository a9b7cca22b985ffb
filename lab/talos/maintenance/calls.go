package maintenance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"strings"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	storageapi "github.com/siderolabs/talos/pkg/machinery/api/storage"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	machinetype "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// machineService embeds the stub that answers Unimplemented.
type machineService struct {
	machineapi.UnimplementedMachineServiceServer

	server *Server
}

// dryRunAnswer is what Talos says of a configuration that it only looked at.
const dryRunAnswer = "Dry run summary:\nNode is running in maintenance mode and does not have a config yet."

// ApplyConfiguration takes a configuration, or says what is wrong with it.
func (m *machineService) ApplyConfiguration(ctx context.Context, in *machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
	switch in.GetMode() {
	case machineapi.ApplyConfigurationRequest_TRY, machineapi.ApplyConfigurationRequest_REBOOT, machineapi.ApplyConfigurationRequest_AUTO:
	default:
		mode := strings.ReplaceAll(strings.ToLower(in.GetMode().String()), "_", "-")
		return nil, status.Errorf(codes.Unimplemented, "apply configuration --mode='%s' is not supported in maintenance mode", mode)
	}
	provider, err := configloader.NewFromBytes(in.GetData())
	if err != nil {
		return nil, fmt.Errorf("failed to parse config: %w", err)
	}
	warnings, err := provider.Validate(m.server.cfg.Mode)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "configuration validation failed: %s", err)
	}
	answer := &machineapi.ApplyConfiguration{Warnings: warnings}
	reply := &machineapi.ApplyConfigurationResponse{Messages: []*machineapi.ApplyConfiguration{answer}}
	if in.GetDryRun() {
		answer.ModeDetails = dryRunAnswer
		return reply, nil
	}
	config, err := provider.Bytes()
	if err != nil {
		return nil, fmt.Errorf("encode config: %w", err)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case m.server.accepted <- config:
		m.server.cfg.Logf("configuration received")
		return reply, nil
	}
}

// GenerateConfiguration refuses workers. The simulator is for workers only, so
// it does not make control plane configurations either.
func (m *machineService) GenerateConfiguration(_ context.Context, in *machineapi.GenerateConfigurationRequest) (*machineapi.GenerateConfigurationResponse, error) { //nolint:staticcheck // deprecated, and still served
	if in.GetMachineConfig() == nil {
		return nil, errors.New("invalid generate request")
	}
	if machinetype.Type(in.GetMachineConfig().GetType()) == machinetype.TypeWorker {
		return nil, errors.New("join config can't be generated in the maintenance mode")
	}
	return nil, status.Error(codes.Unimplemented, "control plane configurations are not generated here")
}

// GenerateClientConfiguration answers as the real one.
func (m *machineService) GenerateClientConfiguration(context.Context, *machineapi.GenerateClientConfigurationRequest) (*machineapi.GenerateClientConfigurationResponse, error) {
	return nil, status.Error(codes.Unimplemented, "client configuration (talosconfig) can't be generated in the maintenance mode")
}

func closed() error {
	return status.Error(codes.Unimplemented, "API is not implemented in maintenance mode")
}

// Version is for administrators over SideroLink only.
func (m *machineService) Version(context.Context, *emptypb.Empty) (*machineapi.VersionResponse, error) {
	return nil, closed()
}

// Upgrade is for administrators over SideroLink only.
func (m *machineService) Upgrade(context.Context, *machineapi.UpgradeRequest) (*machineapi.UpgradeResponse, error) {
	return nil, closed()
}

// Reset is for administrators over SideroLink only.
func (m *machineService) Reset(context.Context, *machineapi.ResetRequest) (*machineapi.ResetResponse, error) {
	return nil, closed()
}

// MetaWrite is for administrators over SideroLink only.
func (m *machineService) MetaWrite(context.Context, *machineapi.MetaWriteRequest) (*machineapi.MetaWriteResponse, error) {
	return nil, closed()
}

// MetaDelete is for administrators over SideroLink only.
func (m *machineService) MetaDelete(context.Context, *machineapi.MetaDeleteRequest) (*machineapi.MetaDeleteResponse, error) {
	return nil, closed()
}

type storageService struct {
	storageapi.UnimplementedStorageServiceServer

	disks []Disk
}

// Disks lists the block devices.
func (s *storageService) Disks(context.Context, *emptypb.Empty) (*storageapi.DisksResponse, error) {
	list := make([]*storageapi.Disk, 0, len(s.disks))
	for _, d := range s.disks {
		kind := storageapi.Disk_HDD
		if d.ReadOnly {
			kind = storageapi.Disk_CD
		}
		list = append(list, &storageapi.Disk{
			DeviceName: "/dev/" + d.Device, Size: d.Bytes, Model: d.Model, Type: kind, Readonly: d.ReadOnly,
			SystemDisk: d.System, Subsystem: "/sys/class/block",
		})
	}
	return &storageapi.DisksResponse{Messages: []*storageapi.Disks{{Disks: list}}}, nil
}

// methodName is the last part of the call's path; a dry run has a name of its
// own, so that a fault can hit the real one only.
func methodName(fullMethod string, req any) string {
	name := path.Base(fullMethod)
	if apply, ok := req.(*machineapi.ApplyConfigurationRequest); ok && apply.GetDryRun() {
		return name + "DryRun"
	}
	return name
}

// cut breaks the connection that a call came in on.
func (c *connections) cut(ctx context.Context) {
	caller, ok := peer.FromContext(ctx)
	if !ok {
		return
	}
	c.mu.Lock()
	conn := c.open[caller.Addr.String()]
	delete(c.open, caller.Addr.String())
	c.mu.Unlock()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // a reset, not an orderly end
	}
	if conn != nil {
		_ = conn.Close()
	}
}
