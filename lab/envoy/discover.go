package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// The pauses between connection attempts, as the real one has them by default.
const (
	firstPause = 500 * time.Millisecond
	lastPause  = 30 * time.Second
)

// discover keeps a stream to the discovery service. Losing it changes nothing
// of what is served.
func (p *proxy) discover(ctx context.Context) error {
	config, err := p.boot.tlsConfig()
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient("passthrough:///"+p.boot.server,
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}),
		grpc.WithUserAgent("envoy/"+Version))
	if err != nil {
		return fmt.Errorf("discovery: %w", err)
	}
	defer func() { _ = connection.Close() }()
	pause := firstPause
	for ctx.Err() == nil {
		began := time.Now()
		err := p.follow(ctx, discovery.NewAggregatedDiscoveryServiceClient(connection))
		p.stats.set("control_plane.connected_state", 0)
		if ctx.Err() != nil {
			return nil
		}
		p.log.Warn("gRPC config stream closed", "error", err, "retry_in", pause)
		if time.Since(began) > lastPause {
			pause = firstPause
		}
		sleep(ctx, pause)
		pause = min(2*pause, lastPause)
		connection.ResetConnectBackoff()
	}
	return nil
}

// follow runs one stream: ask for both types, take what comes, answer.
func (p *proxy) follow(ctx context.Context, client discovery.AggregatedDiscoveryServiceClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.StreamAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for i, kind := range []string{resource.ClusterType, resource.ListenerType} {
		request := &discovery.DiscoveryRequest{TypeUrl: kind, VersionInfo: p.version(kind)}
		if i == 0 { // set_node_on_first_message_only
			request.Node = p.boot.node
		}
		if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		p.stats.set("control_plane.connected_state", 1)
		answer := &discovery.DiscoveryRequest{TypeUrl: response.GetTypeUrl(), ResponseNonce: response.GetNonce()}
		if err := p.take(ctx, response); err != nil {
			p.log.Warn("config rejected", "type", response.GetTypeUrl(), "version", response.GetVersionInfo(), "error", err)
			answer.ErrorDetail = &rpcstatus.Status{Code: int32(codes.Internal), Message: err.Error()}
		}
		answer.VersionInfo = p.version(response.GetTypeUrl())
		if err := stream.Send(answer); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
}

// take applies a response. The version is kept only if all of it was accepted.
func (p *proxy) take(ctx context.Context, response *discovery.DiscoveryResponse) error {
	var err error
	var prefix string
	switch response.GetTypeUrl() {
	case resource.ClusterType:
		prefix, err = "cluster_manager.cds", p.takeClusters(ctx, response.GetResources())
	case resource.ListenerType:
		prefix, err = "listener_manager.lds", p.takeListeners(ctx, response.GetResources())
	default:
		return fmt.Errorf("unexpected type URL %s", response.GetTypeUrl())
	}
	p.stats.add(prefix+".update_attempt", 1)
	if err != nil {
		p.stats.add(prefix+".update_rejected", 1)
		return err
	}
	p.stats.add(prefix+".update_success", 1)
	p.setVersion(response.GetTypeUrl(), response.GetVersionInfo())
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
