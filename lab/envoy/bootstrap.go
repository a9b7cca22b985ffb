package envoy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

const httpOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// boot is what the bootstrap says.
type boot struct {
	node        *core.Node
	admin       string
	server      string // of the discovery service
	context     *tlsv3.UpstreamTlsContext
	credentials *credentialFile
	digest      *bootstrap.Bootstrap
}

// loadBootstrap reads the file the way the real program does: fields that it
// does not know are errors.
func loadBootstrap(path string) (*boot, error) {
	var config bootstrap.Bootstrap
	if err := readProto(path, &config); err != nil {
		return nil, err
	}
	if err := config.ValidateAll(); err != nil {
		return nil, fmt.Errorf("proto constraint validation failed: %w", err)
	}
	b := &boot{node: config.GetNode(), digest: &config}
	if b.node.GetId() == "" || b.node.GetCluster() == "" {
		return nil, errors.New("node: 'id' and 'cluster' are required to use discovery")
	}
	var err error
	if b.admin, err = socketAddress(config.GetAdmin().GetAddress()); err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	ads := config.GetDynamicResources().GetAdsConfig()
	if config.GetDynamicResources().GetCdsConfig().GetAds() == nil || config.GetDynamicResources().GetLdsConfig().GetAds() == nil {
		return nil, errors.New("dynamic_resources: only clusters and listeners from ads are supported by this stand-in")
	}
	if ads.GetApiType() != core.ApiConfigSource_GRPC || ads.GetTransportApiVersion() != core.ApiVersion_V3 || len(ads.GetGrpcServices()) != 1 {
		return nil, errors.New("ads_config: only one service of api_type GRPC, transport_api_version V3 is supported by this stand-in")
	}
	name := ads.GetGrpcServices()[0].GetEnvoyGrpc().GetClusterName()
	for _, c := range config.GetStaticResources().GetClusters() {
		if c.GetName() == name {
			return b, b.useCluster(c)
		}
	}
	return nil, fmt.Errorf("ads_config: unknown gRPC cluster '%s'; it must be static", name)
}

// useCluster takes address, protocol and TLS of the discovery service.
func (b *boot) useCluster(c *clusterv3.Cluster) error {
	var http httpv3.HttpProtocolOptions
	if err := c.GetTypedExtensionProtocolOptions()[httpOptions].UnmarshalTo(&http); err != nil || http.GetExplicitHttpConfig().GetHttp2ProtocolOptions() == nil {
		return fmt.Errorf("cluster %s: gRPC needs http2_protocol_options", c.GetName())
	}
	addresses, err := endpoints(c)
	if err != nil {
		return err
	}
	if len(addresses) == 0 {
		return fmt.Errorf("cluster %s: no endpoint", c.GetName())
	}
	b.server = addresses[0]
	b.context = &tlsv3.UpstreamTlsContext{}
	if err := c.GetTransportSocket().GetTypedConfig().UnmarshalTo(b.context); err != nil {
		return fmt.Errorf("cluster %s: transport socket: %w", c.GetName(), err)
	}
	if err := b.context.ValidateAll(); err != nil {
		return fmt.Errorf("cluster %s: transport socket: %w", c.GetName(), err)
	}
	sources := b.context.GetCommonTlsContext().GetTlsCertificateSdsSecretConfigs()
	if len(sources) != 1 || sources[0].GetSdsConfig().GetPathConfigSource() == nil {
		return fmt.Errorf("cluster %s: one certificate from a path_config_source is supported by this stand-in", c.GetName())
	}
	b.credentials = &credentialFile{path: sources[0].GetSdsConfig().GetPathConfigSource().GetPath(), secret: sources[0].GetName()}
	return b.credentials.load()
}

// tlsConfig is the client side of the discovery connection.
func (b *boot) tlsConfig() (*tls.Config, error) {
	common := b.context.GetCommonTlsContext()
	roots := x509.NewCertPool()
	trusted := common.GetValidationContext().GetTrustedCa()
	pem := []byte(trusted.GetInlineString())
	if trusted.GetFilename() != "" {
		var err error
		if pem, err = os.ReadFile(trusted.GetFilename()); err != nil {
			return nil, fmt.Errorf("trusted_ca: %w", err)
		}
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("trusted_ca: no certificate in it")
	}
	// The real client's ceiling is TLS 1.2 unless it is raised.
	limit := uint16(tls.VersionTLS12)
	if common.GetTlsParams().GetTlsMaximumProtocolVersion() == tlsv3.TlsParameters_TLSv1_3 {
		limit = tls.VersionTLS13
	}
	config := &tls.Config{
		RootCAs: roots, ServerName: b.context.GetSni(), MinVersion: tls.VersionTLS12, MaxVersion: limit,
		NextProtos: []string{"h2"}, GetClientCertificate: b.credentials.certificate,
	}
	for _, san := range common.GetValidationContext().GetMatchTypedSubjectAltNames() {
		// crypto/tls checks the name that it was given; the chain as well.
		if exact := san.GetMatcher().GetExact(); san.GetSanType() == tlsv3.SubjectAltNameMatcher_DNS && exact != "" {
			config.ServerName = exact
		}
	}
	return config, nil
}

func readProto(path string, into proto.Message) error {
	data, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return err
	}
	if data, err = yaml.YAMLToJSONStrict(data); err != nil {
		return fmt.Errorf("unable to parse %s: %w", path, err)
	}
	if err := protojson.Unmarshal(data, into); err != nil {
		return fmt.Errorf("unable to parse %s: %w", path, err)
	}
	return nil
}

// endpoints lists the addresses of a static cluster.
func endpoints(c *clusterv3.Cluster) ([]string, error) {
	var addresses []string
	for _, locality := range c.GetLoadAssignment().GetEndpoints() {
		for _, e := range locality.GetLbEndpoints() {
			address, err := socketAddress(e.GetEndpoint().GetAddress())
			if err != nil {
				return nil, fmt.Errorf("cluster %s: %w", c.GetName(), err)
			}
			addresses = append(addresses, address)
		}
	}
	return addresses, nil
}

func socketAddress(a *core.Address) (string, error) {
	socket := a.GetSocketAddress()
	if socket == nil || socket.GetProtocol() != core.SocketAddress_TCP {
		return "", errors.New("address: only TCP socket addresses are supported by this stand-in")
	}
	if net.ParseIP(socket.GetAddress()) == nil {
		return "", fmt.Errorf("malformed IP address: %s. Consider setting resolver_name or setting cluster type to 'STRICT_DNS' or 'LOGICAL_DNS'", socket.GetAddress())
	}
	return net.JoinHostPort(socket.GetAddress(), strconv.FormatUint(uint64(socket.GetPortValue()), 10)), nil
}
