package envoy

import (
	"context"
	"errors"
	"slices"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"aether.internal/aether/internal/envoy/wire"
)

// Why a stream ends before the proxy ends it.
var (
	errRevoked  = errors.New("this generation of the tenant's proxy is no longer served")
	errExpired  = errors.New("the proxy's certificate has expired; the agent must renew it")
	errReplaced = errors.New("the proxy opened a newer stream")
)

// discoveryService adapts Server to the generated interface. Delta discovery
// stays unimplemented: a proxy has four resources.
type discoveryService struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	server *Server
}

// Register adds the discovery service to a gRPC server, which must verify
// client certificates against the platform's authority.
func (s *Server) Register(registrar grpc.ServiceRegistrar) {
	discovery.RegisterAggregatedDiscoveryServiceServer(registrar, &discoveryService{server: s})
}

// StreamAggregatedResources serves one proxy until either side ends it.
func (d *discoveryService) StreamAggregatedResources(wire discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	id, notAfter, err := identify(wire.Context())
	if err != nil {
		d.server.log.Warn("stream refused", "error", err)
		return err
	}
	// The handler is made per stream, because its context is the only way to
	// end a stream from this side.
	ctx, end := context.WithCancelCause(wire.Context())
	defer end(nil)
	expiry, stop := context.WithDeadlineCause(ctx, notAfter, errExpired)
	defer stop()
	st := &stream{server: d.server, id: id, end: end, sent: map[string]sent{}}
	if err := d.server.join(st); err != nil {
		d.server.log.Warn("stream refused", "tenant", id.Tenant, "generation", id.Generation, "error", err)
		return err
	}
	defer d.server.leave(st)
	err = sotw.NewServer(expiry, d.server.cache, st, sotw.WithOrderedADS()).StreamHandler(wire, resource.AnyType)
	switch cause := context.Cause(expiry); {
	case errors.Is(cause, errRevoked), errors.Is(cause, errExpired):
		return status.Error(codes.PermissionDenied, cause.Error())
	case errors.Is(cause, errReplaced):
		return status.Error(codes.Aborted, cause.Error())
	}
	return err
}

// identify reads the proxy's name from its verified certificate.
func identify(ctx context.Context) (ID, time.Time, error) {
	remote, _ := peer.FromContext(ctx)
	if remote == nil {
		return ID{}, time.Time{}, status.Error(codes.Unauthenticated, "no peer")
	}
	info, isTLS := remote.AuthInfo.(credentials.TLSInfo)
	if !isTLS || len(info.State.VerifiedChains) == 0 {
		return ID{}, time.Time{}, status.Error(codes.Unauthenticated, "no verified client certificate; enrol first")
	}
	leaf := info.State.VerifiedChains[0][0]
	if len(leaf.URIs) != 1 {
		return ID{}, time.Time{}, status.Error(codes.PermissionDenied, "the client certificate names no proxy")
	}
	id, err := wire.ParseURI(leaf.URIs[0])
	if err != nil {
		return ID{}, time.Time{}, status.Error(codes.PermissionDenied, err.Error())
	}
	return id, leaf.NotAfter, nil
}

// join admits a stream.
func (s *Server) join(st *stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, known := s.proxies[st.id]
	switch {
	case known:
	case !s.synced:
		return status.Error(codes.Unavailable, "the server does not know its tenants yet; try again")
	default:
		return status.Errorf(codes.PermissionDenied, "%s: %s", st.id, errRevoked)
	}
	// A proxy that reconnects may have left a stream that looks alive. What it
	// acknowledged there says nothing of what it runs now.
	for older := range p.streams {
		older.end(errReplaced)
		delete(p.streams, older)
	}
	p.streams[st] = struct{}{}
	p.acked = map[string]string{}
	p.everOnline = true
	s.log.Info("proxy connected", "tenant", st.id.Tenant, "generation", st.id.Generation)
	s.poke()
	return nil
}

func (s *Server) leave(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, known := s.proxies[st.id]; known {
		delete(p.streams, st)
	}
	s.log.Info("proxy disconnected", "tenant", st.id.Tenant, "generation", st.id.Generation)
	s.poke()
}

// sent is the last response of a type on a stream.
type sent struct{ nonce, version string }

// stream is one proxy's connection, and the callbacks of its handler. Only the
// handler's goroutine touches sent.
type stream struct {
	server *Server
	id     ID
	end    context.CancelCauseFunc
	sent   map[string]sent
}

var _ sotw.Callbacks = (*stream)(nil)

// OnStreamOpen implements sotw.Callbacks.
func (st *stream) OnStreamOpen(context.Context, int64, string) error { return nil }

// OnStreamClosed implements sotw.Callbacks.
func (st *stream) OnStreamClosed(int64, *core.Node) {}

// OnStreamRequest checks who asks and books ACKs and NACKs.
func (st *stream) OnStreamRequest(_ int64, request *discovery.DiscoveryRequest) error {
	// The handler fills in the first node for requests that have none, and a
	// later node may not differ: it decides which snapshot is read.
	if node := request.GetNode().GetId(); node != st.id.NodeID() {
		return status.Errorf(codes.PermissionDenied, "node %q may not be served with the certificate of %s", node, st.id)
	}
	kind := request.GetTypeUrl()
	if !slices.Contains(servedTypes(), kind) {
		return status.Errorf(codes.InvalidArgument, "type %s is not served here", kind)
	}
	if len(request.GetResourceNames()) > 0 && !slices.Contains(request.GetResourceNames(), "*") {
		return status.Errorf(codes.InvalidArgument, "type %s: ask for all resources, not by name", kind)
	}
	st.book(request)
	return nil
}

func (st *stream) book(request *discovery.DiscoveryRequest) {
	kind, last := request.GetTypeUrl(), st.sent[request.GetTypeUrl()]
	s := st.server
	s.mu.Lock()
	defer s.mu.Unlock()
	p, known := s.proxies[st.id]
	if !known {
		return
	}
	if _, current := p.streams[st]; !current {
		return
	}
	switch {
	case request.GetResponseNonce() == "":
		// First request of the type. After a reconnect it names the version
		// that the proxy runs; versions are never given twice.
		p.accept(kind, request.GetVersionInfo())
	case request.GetResponseNonce() != last.nonce:
		return // answer to an older response
	case request.GetErrorDetail() != nil:
		reason := request.GetErrorDetail().GetMessage()
		s.log.Warn("proxy refused a configuration", "tenant", st.id.Tenant, "generation", st.id.Generation,
			"version", last.version, "type", kind, "reason", reason)
		p.accept(kind, request.GetVersionInfo())
		p.reject(Rejection{Version: last.version, Type: kind, Reason: reason, At: s.now()})
		// The cache compares this with what it serves and would send the
		// refused version again at once, for ever. With its own version here
		// it waits for the next one.
		request.VersionInfo = last.version
	default:
		p.accept(kind, last.version)
	}
	s.poke()
}

// OnStreamResponse remembers what was sent, to know what is being answered.
func (st *stream) OnStreamResponse(_ context.Context, _ int64, _ *discovery.DiscoveryRequest, response *discovery.DiscoveryResponse) {
	st.sent[response.GetTypeUrl()] = sent{nonce: response.GetNonce(), version: response.GetVersionInfo()}
}
