package envoy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Envoy's defaults where a cluster says nothing.
const (
	defaultConnectTimeout = 5 * time.Second
	defaultCeiling        = 1024
	defaultPanicPercent   = 50
)

// errOverflow tells that a circuit breaker is open, and errNoHealthy that a
// cluster has no server at all.
var (
	errOverflow  = errors.New("circuit breaker is open")
	errNoHealthy = errors.New("no healthy upstream")
)

// host is one server of a cluster.
type host struct {
	address string
	checked atomic.Bool
	healthy atomic.Bool
}

// cluster is a set of servers with their health.
type cluster struct {
	config  *clusterv3.Cluster
	hosts   []*host
	dialer  net.Dialer
	ceiling int64
	check   *core.HealthCheck
	stats   *stats
	prefix  string

	active atomic.Int64
	next   atomic.Uint64
	cancel context.CancelFunc
	checks sync.WaitGroup
}

// newCluster refuses what the real one refuses, and says so where this
// stand-in cannot do what is asked for.
func newCluster(config *clusterv3.Cluster, s *stats) (*cluster, error) {
	if err := config.ValidateAll(); err != nil {
		return nil, fmt.Errorf("Proto constraint validation failed (%w)", err) //nolint:staticcheck // the real one's text
	}
	if config.GetType() != clusterv3.Cluster_STATIC || config.GetLbPolicy() != clusterv3.Cluster_ROUND_ROBIN || config.GetTransportSocket() != nil {
		return nil, errors.New("only STATIC clusters with ROUND_ROBIN and no transport socket are supported by this stand-in")
	}
	addresses, err := endpoints(config)
	if err != nil {
		return nil, err
	}
	c := &cluster{config: config, stats: s, prefix: "cluster." + config.GetName() + ".", ceiling: defaultCeiling, cancel: func() {}}
	for _, address := range addresses {
		c.hosts = append(c.hosts, &host{address: address})
	}
	switch checks := config.GetHealthChecks(); {
	case len(checks) > 1 || (len(checks) == 1 && !isConnectCheck(checks[0])):
		return nil, errors.New("only one TCP health check that connects is supported by this stand-in")
	case len(checks) == 1:
		c.check = checks[0]
	}
	for _, threshold := range config.GetCircuitBreakers().GetThresholds() {
		if threshold.GetPriority() == core.RoutingPriority_DEFAULT && threshold.GetMaxConnections() != nil {
			c.ceiling = int64(threshold.GetMaxConnections().GetValue())
		}
	}
	c.dialer = net.Dialer{Timeout: defaultConnectTimeout, KeepAlive: -1}
	if config.GetConnectTimeout() != nil {
		c.dialer.Timeout = config.GetConnectTimeout().AsDuration()
	}
	if keep := config.GetUpstreamConnectionOptions().GetTcpKeepalive(); keep != nil {
		c.dialer.KeepAliveConfig = net.KeepAliveConfig{
			Enable:   true,
			Idle:     time.Duration(keep.GetKeepaliveTime().GetValue()) * time.Second,
			Interval: time.Duration(keep.GetKeepaliveInterval().GetValue()) * time.Second,
			Count:    int(keep.GetKeepaliveProbes().GetValue()),
		}
	}
	return c, nil
}

func isConnectCheck(check *core.HealthCheck) bool {
	tcp := check.GetTcpHealthCheck()
	return tcp != nil && tcp.GetSend() == nil && len(tcp.GetReceive()) == 0
}

// start begins the health checks.
func (c *cluster) start(ctx context.Context) {
	ctx, c.cancel = context.WithCancel(ctx)
	for _, h := range c.hosts {
		if c.check == nil {
			h.checked.Store(true)
			h.healthy.Store(true)
			continue
		}
		c.checks.Add(1)
		go func() {
			defer c.checks.Done()
			c.watch(ctx, h)
		}()
	}
	c.count()
}

// stop ends the health checks and leaves connections alone.
func (c *cluster) stop() {
	c.cancel()
	c.checks.Wait()
}

// warm tells whether every server was checked once.
func (c *cluster) warm() bool {
	for _, h := range c.hosts {
		if !h.checked.Load() {
			return false
		}
	}
	return true
}

// watch checks one server until the context ends. As in the real one, the very
// first answer decides at once, and later ones by the thresholds.
func (c *cluster) watch(ctx context.Context, h *host) {
	var good, bad uint32
	for ctx.Err() == nil {
		if c.probe(ctx, h) {
			good, bad = good+1, 0
			c.stats.add(c.prefix+"health_check.success", 1)
		} else if ctx.Err() == nil {
			good, bad = 0, bad+1
			c.stats.add(c.prefix+"health_check.failure", 1)
		}
		c.stats.add(c.prefix+"health_check.attempt", 1)
		first := !h.checked.Load()
		switch {
		case good >= c.check.GetHealthyThreshold().GetValue() || (first && good > 0):
			h.healthy.Store(true)
		case bad >= c.check.GetUnhealthyThreshold().GetValue() || (first && bad > 0):
			h.healthy.Store(false)
		}
		h.checked.Store(true)
		c.count()
		interval := c.check.GetInterval().AsDuration()
		if slow := c.check.GetUnhealthyInterval(); slow != nil && !h.healthy.Load() {
			interval = slow.AsDuration()
		}
		sleep(ctx, interval)
	}
}

func (c *cluster) probe(ctx context.Context, h *host) bool {
	dialer := net.Dialer{Timeout: c.check.GetTimeout().AsDuration(), KeepAlive: -1}
	connection, err := dialer.DialContext(ctx, "tcp", h.address)
	if err != nil {
		return false
	}
	return connection.Close() == nil
}

func (c *cluster) healthyHosts() []*host {
	var healthy []*host
	for _, h := range c.hosts {
		if h.healthy.Load() {
			healthy = append(healthy, h)
		}
	}
	return healthy
}

func (c *cluster) count() {
	c.stats.set(c.prefix+"membership_total", int64(len(c.hosts)))
	c.stats.set(c.prefix+"membership_healthy", int64(len(c.healthyHosts())))
	c.stats.set(c.prefix+"circuit_breakers.default.remaining_cx", max(0, c.ceiling-c.active.Load()))
}

// pick chooses the next server. With too few healthy ones all are tried, as
// the panic threshold has it.
func (c *cluster) pick() (*host, error) {
	percent := float64(defaultPanicPercent)
	if threshold := c.config.GetCommonLbConfig().GetHealthyPanicThreshold(); threshold != nil {
		percent = threshold.GetValue()
	}
	candidates := c.healthyHosts()
	if len(c.hosts) > 0 && 100*float64(len(candidates)) < percent*float64(len(c.hosts)) {
		c.stats.add(c.prefix+"lb_healthy_panic", 1)
		candidates = c.hosts
	}
	if len(candidates) == 0 {
		c.stats.add(c.prefix+"upstream_cx_none_healthy", 1)
		return nil, errNoHealthy
	}
	return candidates[(c.next.Add(1)-1)%uint64(len(candidates))], nil
}

// dial opens a connection to a server, on up to attempts servers. The caller
// calls release when it is closed.
func (c *cluster) dial(ctx context.Context, attempts uint32) (*net.TCPConn, error) {
	if c.active.Add(1) > c.ceiling {
		c.active.Add(-1)
		c.stats.add(c.prefix+"upstream_cx_overflow", 1)
		return nil, errOverflow
	}
	var last error
	for range max(1, attempts) {
		h, err := c.pick()
		if err != nil {
			last = err
			break
		}
		connection, err := c.dialer.DialContext(ctx, "tcp", h.address)
		if err != nil {
			c.stats.add(c.prefix+"upstream_cx_connect_fail", 1)
			last = err
			continue
		}
		if tcp, isTCP := connection.(*net.TCPConn); isTCP {
			c.stats.add(c.prefix+"upstream_cx_total", 1)
			c.stats.add(c.prefix+"upstream_cx_active", 1)
			c.count()
			return tcp, nil
		}
	}
	c.active.Add(-1)
	return nil, last
}

func (c *cluster) release() {
	c.active.Add(-1)
	c.stats.add(c.prefix+"upstream_cx_active", -1)
	c.count()
}
