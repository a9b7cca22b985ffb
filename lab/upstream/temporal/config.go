package main

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/membership/static"
	"go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	"go.temporal.io/server/common/primitives"
)

const (
	loopback    = "127.0.0.1"
	clusterName = "active"
)

// serverConfig describes one process that holds all four services. Only the
// frontend listens on an address of ours; the other three are found on
// loopback at the given ports.
func serverConfig(o options, internal []int) *config.Config {
	frontend := config.Service{RPC: config.RPC{GRPCPort: o.port, BindOnIP: o.ip}}
	inner := func(port int) config.Service {
		return config.Service{RPC: config.RPC{GRPCPort: port, BindOnLocalHost: true}}
	}
	const disabled = "disabled"
	return &config.Config{
		Global: config.Global{
			Membership: config.Membership{MaxJoinDuration: 30 * time.Second, BroadcastAddress: loopback},
		},
		Persistence: config.Persistence{
			DefaultStore:     sqlite.PluginName,
			VisibilityStore:  sqlite.PluginName,
			NumHistoryShards: 1,
			DataStores:       map[string]config.DataStore{sqlite.PluginName: {SQL: sqlConfig(o)}},
		},
		ClusterMetadata: &cluster.Config{
			FailoverVersionIncrement: 10,
			MasterClusterName:        clusterName,
			CurrentClusterName:       clusterName,
			ClusterInformation: map[string]cluster.ClusterInformation{
				clusterName: {Enabled: true, InitialFailoverVersion: 1, RPCAddress: o.frontend()},
			},
		},
		DCRedirectionPolicy: config.DCRedirectionPolicy{Policy: "noop"},
		Services: map[string]config.Service{
			string(primitives.FrontendService): frontend,
			string(primitives.HistoryService):  inner(internal[0]),
			string(primitives.MatchingService): inner(internal[1]),
			string(primitives.WorkerService):   inner(internal[2]),
		},
		Archival: config.Archival{
			History:    config.HistoryArchival{State: disabled},
			Visibility: config.VisibilityArchival{State: disabled},
		},
		NamespaceDefaults: config.NamespaceDefaults{
			Archival: config.ArchivalNamespaceDefaults{
				History:    config.HistoryArchivalNamespaceDefaults{State: disabled},
				Visibility: config.VisibilityArchivalNamespaceDefaults{State: disabled},
			},
		},
		PublicClient: config.PublicClient{HostPort: o.frontend()},
	}
}

// sqlConfig opens the file with a write-ahead log: a killed server loses no
// committed transaction, and a commit costs no disk flush of its own.
func sqlConfig(o options) *config.SQL {
	return &config.SQL{
		PluginName:   sqlite.PluginName,
		DatabaseName: filepath.Clean(o.db),
		ConnectAttributes: map[string]string{
			"mode":         "rwc",
			"journal_mode": "wal",
			"synchronous":  "normal",
		},
	}
}

// staticHosts says where each service is, so that no gossip is needed.
func staticHosts(cfg *config.Config, o options) map[primitives.ServiceName]static.Hosts {
	hosts := map[primitives.ServiceName]static.Hosts{
		primitives.FrontendService: static.SingleLocalHost(o.frontend()),
	}
	for _, name := range []primitives.ServiceName{primitives.HistoryService, primitives.MatchingService, primitives.WorkerService} {
		port := cfg.Services[string(name)].RPC.GRPCPort
		hosts[name] = static.SingleLocalHost(net.JoinHostPort(loopback, strconv.Itoa(port)))
	}
	return hosts
}

// dynamicConfig is what differs from the server's defaults.
func dynamicConfig() dynamicconfig.StaticClient {
	return dynamicconfig.StaticClient{
		// One tenant's burst must not hold back another's: the fairness key
		// that the workflows set is honoured only with this.
		dynamicconfig.MatchingEnableFairness.Key(): true,
		// One process and one database: more partitions are only more pollers.
		dynamicconfig.MatchingNumTaskqueueReadPartitions.Key():  1,
		dynamicconfig.MatchingNumTaskqueueWritePartitions.Key(): 1,
		// A search attribute can be used the moment it exists.
		dynamicconfig.ForceSearchAttributesCacheRefreshOnRead.Key(): true,
	}
}

// freePorts asks the kernel for n ports that nothing listens on.
func freePorts(ip string, n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
		if err != nil {
			return nil, fmt.Errorf("listen on %s: %w", ip, err)
		}
		defer func() { _ = l.Close() }() // all are held until all are known
		addr, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			return nil, fmt.Errorf("listen on %s: address %v is not TCP", ip, l.Addr())
		}
		ports = append(ports, addr.Port)
	}
	return ports, nil
}
