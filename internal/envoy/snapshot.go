package envoy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	accesslog "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	accessstream "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	tcpproxy "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"aether.internal/aether/internal/envoy/wire"
)

// Keep-alive probes start after keepaliveTime without traffic: middle boxes
// were seen to forget idle flows after 900 s without a word, so both sides of
// the proxy stay well below that, and a dead peer is noticed in
// keepaliveTime + keepaliveProbes × keepaliveInterval = 100 s.
const (
	keepaliveTime     = 60
	keepaliveInterval = 10
	keepaliveProbes   = 4
)

// Connections allowed through one door: some for people and controllers, and
// per node its kubelet, CNI agent, konnectivity agent, kube-proxy and pods that
// talk to the API, with what lingers of them after a reconnect. Envoy's own
// default of 1024 in all looked like an API outage to those who met it.
const (
	baseConnections    = 1024
	connectionsPerNode = 16
)

// Values of Linux socket options; the resources are made where they do not run.
const (
	solSocket    = 1
	soKeepalive  = 9
	solTCP       = 6
	tcpKeepIdle  = 4
	tcpKeepIntvl = 5
	tcpKeepCnt   = 6
)

// accessLogLine says who talked to which server, how long and how much, and
// why it ended. It has no payload: all of it is TLS that the proxy cannot read.
const accessLogLine = "%START_TIME% %DOWNSTREAM_REMOTE_ADDRESS% -> %DOWNSTREAM_LOCAL_ADDRESS% -> %UPSTREAM_HOST% " +
	"duration_ms=%DURATION% received=%BYTES_RECEIVED% sent=%BYTES_SENT% flags=%RESPONSE_FLAGS%\n"

// Resources is the configuration of one proxy, in Envoy's own types.
type Resources struct {
	Clusters  []*cluster.Cluster
	Listeners []*listener.Listener
}

// door is one port of a proxy and what is behind it.
type door struct {
	name      string
	port      uint32
	upstreams []netip.AddrPort
}

// Snapshot renders the proxy's configuration: for each port a listener on the
// tenant-side address that passes TCP through to a cluster of health-checked
// servers. It is pure: the same tenant gives the same resources.
func Snapshot(t Tenant) (Resources, error) {
	if err := t.Validate(); err != nil {
		return Resources{}, err
	}
	var resources Resources
	for _, d := range []door{
		{"api", wire.PortAPI, t.Upstreams},
		{"konnectivity", wire.PortKonnectivity, t.KonnectivityUpstreams},
	} {
		front, err := newListener(t, d)
		if err != nil {
			return Resources{}, err
		}
		resources.Clusters = append(resources.Clusters, newCluster(t, d))
		resources.Listeners = append(resources.Listeners, front)
	}
	return resources, resources.Validate()
}

// Validate runs the checks that Envoy itself runs on each resource.
func (r Resources) Validate() error {
	var errs []error
	for _, c := range r.Clusters {
		if err := c.ValidateAll(); err != nil {
			errs = append(errs, fmt.Errorf("%w: cluster %s: %w", ErrInvalid, c.GetName(), err))
		}
	}
	for _, l := range r.Listeners {
		if err := l.ValidateAll(); err != nil {
			errs = append(errs, fmt.Errorf("%w: listener %s: %w", ErrInvalid, l.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

// byType is the form that the snapshot cache takes.
func (r Resources) byType() map[resource.Type][]types.Resource {
	clusters := make([]types.Resource, 0, len(r.Clusters))
	for _, c := range r.Clusters {
		clusters = append(clusters, c)
	}
	listeners := make([]types.Resource, 0, len(r.Listeners))
	for _, l := range r.Listeners {
		listeners = append(listeners, l)
	}
	return map[resource.Type][]types.Resource{resource.ClusterType: clusters, resource.ListenerType: listeners}
}

// Hash is a digest of the content: equal for equal configurations, whichever
// replica rendered them.
func (r Resources) Hash() (string, error) {
	digest := sha256.New()
	byType := r.byType()
	for _, kind := range []resource.Type{resource.ClusterType, resource.ListenerType} {
		for _, item := range byType[kind] {
			data, err := proto.MarshalOptions{Deterministic: true}.Marshal(item)
			if err != nil {
				return "", fmt.Errorf("hash configuration: %w", err)
			}
			fmt.Fprintf(digest, "%s %d\n", kind, len(data))
			digest.Write(data)
		}
	}
	return hex.EncodeToString(digest.Sum(nil)), nil
}

func newListener(t Tenant, d door) (*listener.Listener, error) {
	logTo, err := anypb.New(&accessstream.StdoutAccessLog{
		AccessLogFormat: &accessstream.StdoutAccessLog_LogFormat{LogFormat: &core.SubstitutionFormatString{
			Format: &core.SubstitutionFormatString_TextFormatSource{TextFormatSource: &core.DataSource{
				Specifier: &core.DataSource_InlineString{InlineString: accessLogLine},
			}},
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("listener %s: access log: %w", d.name, err)
	}
	pass, err := anypb.New(&tcpproxy.TcpProxy{
		StatPrefix:       d.name,
		ClusterSpecifier: &tcpproxy.TcpProxy_Cluster{Cluster: d.name},
		// Zero switches the time-out off. A watch or an exec may say nothing for
		// hours; dead peers are found by keep-alive.
		IdleTimeout:        durationpb.New(0),
		MaxConnectAttempts: wrapperspb.UInt32(3),
		AccessLog:          []*accesslog.AccessLog{{Name: "envoy.access_loggers.stdout", ConfigType: &accesslog.AccessLog_TypedConfig{TypedConfig: logTo}}},
	})
	if err != nil {
		return nil, fmt.Errorf("listener %s: TCP proxy: %w", d.name, err)
	}
	return &listener.Listener{
		Name:          d.name,
		StatPrefix:    d.name,
		Address:       socketAddress(netip.AddrPortFrom(t.Address, uint16(d.port))),
		SocketOptions: keepaliveOptions(),
		// One chain without a match: clients that dial an address send no server name.
		FilterChains: []*listener.FilterChain{{
			Name:    d.name,
			Filters: []*listener.Filter{{Name: "envoy.filters.network.tcp_proxy", ConfigType: &listener.Filter_TypedConfig{TypedConfig: pass}}},
		}},
	}, nil
}

// keepaliveOptions are set on the listening socket and inherited by what it
// accepts; the listener's newer tcp_keepalive field is unknown to Envoy 1.33.
func keepaliveOptions() []*core.SocketOption {
	option := func(description string, level, name, value int64) *core.SocketOption {
		return &core.SocketOption{
			Description: description, Level: level, Name: name,
			Value: &core.SocketOption_IntValue{IntValue: value}, State: core.SocketOption_STATE_PREBIND,
		}
	}
	return []*core.SocketOption{
		option("SO_KEEPALIVE", solSocket, soKeepalive, 1),
		option("TCP_KEEPIDLE", solTCP, tcpKeepIdle, keepaliveTime),
		option("TCP_KEEPINTVL", solTCP, tcpKeepIntvl, keepaliveInterval),
		option("TCP_KEEPCNT", solTCP, tcpKeepCnt, keepaliveProbes),
	}
}

func newCluster(t Tenant, d door) *cluster.Cluster {
	ceiling := wrapperspb.UInt32(uint32(baseConnections + connectionsPerNode*t.MaxNodes))
	return &cluster.Cluster{
		Name:                 d.name,
		ClusterDiscoveryType: &cluster.Cluster_Type{Type: cluster.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(2 * time.Second),
		LoadAssignment:       &endpoint.ClusterLoadAssignment{ClusterName: d.name, Endpoints: localities(d.upstreams)},
		HealthChecks:         []*core.HealthCheck{tcpHealthCheck()},
		CircuitBreakers: &cluster.CircuitBreakers{Thresholds: []*cluster.CircuitBreakers_Thresholds{{
			Priority:           core.RoutingPriority_DEFAULT,
			MaxConnections:     ceiling,
			MaxPendingRequests: ceiling,
			MaxRequests:        ceiling,
			TrackRemaining:     true,
		}}},
		UpstreamConnectionOptions: &cluster.UpstreamConnectionOptions{TcpKeepalive: &core.TcpKeepalive{
			KeepaliveTime:     wrapperspb.UInt32(keepaliveTime),
			KeepaliveInterval: wrapperspb.UInt32(keepaliveInterval),
			KeepaliveProbes:   wrapperspb.UInt32(keepaliveProbes),
		}},
		// A health check that fails must not cut watches that still flow. The
		// panic threshold stays at its default: with all servers called
		// unhealthy, trying one is better than refusing every client.
		CloseConnectionsOnHostHealthFailure: false,
	}
}

// localities sorts the servers, so that their order in an object's status does
// not make a new version.
func localities(upstreams []netip.AddrPort) []*endpoint.LocalityLbEndpoints {
	if len(upstreams) == 0 {
		return nil
	}
	sorted := slices.Clone(upstreams)
	slices.SortFunc(sorted, netip.AddrPort.Compare)
	servers := make([]*endpoint.LbEndpoint, 0, len(sorted))
	for _, upstream := range sorted {
		servers = append(servers, &endpoint.LbEndpoint{
			HostIdentifier: &endpoint.LbEndpoint_Endpoint{Endpoint: &endpoint.Endpoint{Address: socketAddress(upstream)}},
		})
	}
	return []*endpoint.LocalityLbEndpoints{{LbEndpoints: servers}}
}

// tcpHealthCheck asks whether the server accepts connections, as often without
// traffic as with it: a quiet tenant's first call must not meet a stale answer.
func tcpHealthCheck() *core.HealthCheck {
	interval := durationpb.New(5 * time.Second)
	return &core.HealthCheck{
		Timeout:            durationpb.New(2 * time.Second),
		Interval:           interval,
		NoTrafficInterval:  interval,
		UnhealthyInterval:  durationpb.New(time.Second),
		UnhealthyThreshold: wrapperspb.UInt32(2),
		HealthyThreshold:   wrapperspb.UInt32(1),
		HealthChecker:      &core.HealthCheck_TcpHealthCheck_{TcpHealthCheck: &core.HealthCheck_TcpHealthCheck{}},
	}
}

func socketAddress(address netip.AddrPort) *core.Address {
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Protocol:      core.SocketAddress_TCP,
		Address:       address.Addr().Unmap().String(),
		PortSpecifier: &core.SocketAddress_PortValue{PortValue: uint32(address.Port())},
	}}}
}
