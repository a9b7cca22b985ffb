package proxyagent

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"aether.internal/aether/internal/envoy/wire"
)

const (
	typePrefix     = "type.googleapis.com/"
	typeTLSContext = typePrefix + "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
	typeSecret     = typePrefix + "envoy.extensions.transport_sockets.tls.v3.Secret"
	typeHTTP       = typePrefix + "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	httpExtension  = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	xdsCluster     = "xds"
	secretName     = "identity"
)

// tree is a piece of an Envoy file. Envoy's own Go types would make the agent
// five times its size; a test holds the result against them.
type tree map[string]any

// BootstrapFile is where Envoy's bootstrap is written; Envoy starts once it exists.
func (c Config) BootstrapFile() string { return filepath.Join(c.EnvoyDir, "bootstrap.yaml") }

func (c Config) secretFile() string { return filepath.Join(c.EnvoyDir, "identity.yaml") }

// renderBootstrap tells Envoy who it is and where its configuration comes from,
// and nothing else.
func renderBootstrap(c Config) ([]byte, error) {
	admin, err := socketAddress(c.Admin)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: admin: %w", err)
	}
	cluster, err := discoveryCluster(c)
	if err != nil {
		return nil, err
	}
	fromADS := tree{"resource_api_version": "V3", "initial_fetch_timeout": "0s", "ads": tree{}}
	data, err := yaml.Marshal(tree{
		"node":  tree{"id": c.ID().NodeID(), "cluster": c.Tenant},
		"admin": tree{"address": admin},
		"dynamic_resources": tree{
			"cds_config": fromADS,
			"lds_config": fromADS,
			"ads_config": tree{
				"api_type": "GRPC", "transport_api_version": "V3",
				"grpc_services":                  []tree{{"envoy_grpc": tree{"cluster_name": xdsCluster}}},
				"set_node_on_first_message_only": true,
			},
		},
		"static_resources": tree{"clusters": []tree{cluster}},
	})
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	return data, nil
}

func discoveryCluster(c Config) (tree, error) {
	server, err := socketAddress(c.XDS)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: xds: %w", err)
	}
	return tree{
		"name": xdsCluster, "type": "STATIC", "connect_timeout": "5s",
		"load_assignment": tree{
			"cluster_name": xdsCluster,
			"endpoints":    []tree{{"lb_endpoints": []tree{{"endpoint": tree{"address": server}}}}},
		},
		"typed_extension_protocol_options": tree{httpExtension: tree{
			"@type": typeHTTP,
			"explicit_http_config": tree{"http2_protocol_options": tree{
				// A server that vanished without a word is noticed.
				"connection_keepalive": tree{"interval": "30s", "timeout": "10s"},
			}},
		}},
		"transport_socket": tree{
			"name":         "envoy.transport_sockets.tls",
			"typed_config": tlsContext(c),
		},
	}, nil
}

func tlsContext(c Config) tree {
	return tree{
		"@type": typeTLSContext,
		"sni":   wire.ServerName,
		"common_tls_context": tree{
			// Envoy's clients stop at TLS 1.2 unless told otherwise.
			"tls_params": tree{"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"},
			// A file of its own, so that a renewed certificate is taken up by a
			// rename and without a restart.
			"tls_certificate_sds_secret_configs": []tree{{
				"name": secretName,
				"sds_config": tree{
					"resource_api_version": "V3",
					"path_config_source":   tree{"path": c.secretFile()},
				},
			}},
			"validation_context": tree{
				"trusted_ca":                    tree{"inline_string": c.CA},
				"match_typed_subject_alt_names": []tree{{"san_type": "DNS", "matcher": tree{"exact": wire.ServerName}}},
			},
		},
	}
}

// renderSecret is the certificate and key in the form of a discovery response.
func renderSecret(i *identity) ([]byte, error) {
	data, err := yaml.Marshal(tree{"resources": []tree{{
		"@type": typeSecret,
		"name":  secretName,
		"tls_certificate": tree{
			"certificate_chain": tree{"inline_string": string(i.certificatePEM)},
			"private_key":       tree{"inline_string": string(i.keyPEM)},
		},
	}}})
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	return data, nil
}

func socketAddress(address string) (tree, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	return tree{"socket_address": tree{"address": at.Addr().String(), "port_value": at.Port()}}, nil
}
