package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxy "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
)

// defaultIdle is the time-out of a TCP proxy that names none: the one that cuts
// watches after an hour.
const defaultIdle = time.Hour

// passthrough is the TCP proxy filter.
type passthrough struct {
	proxy    *proxy
	cluster  string
	attempts uint32
	idle     time.Duration // 0: none
	logs     []*accessLog
	prefix   string
}

func (p *proxy) newPassthrough(filters []*listenerv3.Filter) (*passthrough, error) {
	if len(filters) == 0 {
		return nil, errors.New("filter chain has no filters")
	}
	for _, filter := range filters {
		if !filter.GetTypedConfig().MessageIs(&tcpproxy.TcpProxy{}) {
			return nil, unknownExtension(filter.GetName(), filter.GetTypedConfig().GetTypeUrl())
		}
	}
	if len(filters) > 1 {
		return nil, fmt.Errorf("Error: terminal filter named %s of type envoy.filters.network.tcp_proxy must be the last filter in a network filter chain", filters[0].GetName()) //nolint:staticcheck // the real one's text
	}
	var config tcpproxy.TcpProxy
	if err := filters[0].GetTypedConfig().UnmarshalTo(&config); err != nil {
		return nil, fmt.Errorf("filter %s: %w", filters[0].GetName(), err)
	}
	if err := config.ValidateAll(); err != nil {
		return nil, fmt.Errorf("Proto constraint validation failed (%w)", err) //nolint:staticcheck // the real one's text
	}
	if config.GetCluster() == "" || config.GetTunnelingConfig() != nil {
		return nil, fmt.Errorf("filter %s: only one cluster and no tunnel are supported by this stand-in", filters[0].GetName())
	}
	f := &passthrough{
		proxy: p, cluster: config.GetCluster(), attempts: config.GetMaxConnectAttempts().GetValue(),
		idle: defaultIdle, prefix: "tcp." + config.GetStatPrefix() + ".",
	}
	if config.GetIdleTimeout() != nil {
		f.idle = config.GetIdleTimeout().AsDuration()
	}
	for _, entry := range config.GetAccessLog() {
		log, err := newAccessLog(entry, p.stdout)
		if err != nil {
			return nil, err
		}
		f.logs = append(f.logs, log)
	}
	return f, nil
}

func unknownExtension(name, typeURL string) error {
	return fmt.Errorf("Didn't find a registered implementation for '%s' with type URL: '%s'", name, strings.TrimPrefix(typeURL, "type.googleapis.com/")) //nolint:staticcheck // the real one's text
}

// pass serves one connection to its end.
func (f *passthrough) pass(downstream *net.TCPConn) {
	s := f.proxy.stats
	s.add(f.prefix+"downstream_cx_total", 1)
	record := session{began: time.Now(), remote: downstream.RemoteAddr(), local: downstream.LocalAddr()}
	defer func() {
		_ = downstream.Close()
		record.ended = time.Now()
		s.add(f.prefix+"downstream_cx_rx_bytes_total", record.received.Load())
		s.add(f.prefix+"downstream_cx_tx_bytes_total", record.sent.Load())
		for _, log := range f.logs {
			log.write(&record)
		}
	}()
	c, found := f.proxy.cluster(f.cluster)
	if !found {
		s.add(f.prefix+"downstream_cx_no_route", 1)
		record.flags = "NC"
		return
	}
	upstream, err := c.dial(context.Background(), f.attempts)
	if err != nil {
		record.flags = failureFlag(err)
		return
	}
	defer c.release()
	defer func() { _ = upstream.Close() }()
	record.upstream = upstream.RemoteAddr()
	f.join(downstream, upstream, &record)
}

func failureFlag(err error) string {
	switch {
	case errors.Is(err, errOverflow):
		return "UO"
	case errors.Is(err, errNoHealthy):
		return "UH"
	default:
		return "UF,URX"
	}
}

// join copies both ways until both sides have ended, one breaks, or nothing
// came for the idle time. A side that ended its half may still read.
func (f *passthrough) join(downstream, upstream *net.TCPConn, record *session) {
	var last atomic.Int64
	last.Store(time.Now().UnixNano())
	if f.idle > 0 {
		stop := f.watchIdle(&last, func() {
			record.idle.Store(true)
			_ = downstream.Close()
			_ = upstream.Close()
		})
		defer stop()
	}
	var both sync.WaitGroup
	one := func(to, from *net.TCPConn, bytes *atomic.Int64) {
		defer both.Done()
		if err := transfer(to, from, bytes, &last, f.idle > 0); err != nil {
			_ = to.Close()
			_ = from.Close()
			return
		}
		_ = to.CloseWrite()
	}
	both.Add(2)
	go one(upstream, downstream, &record.received)
	one(downstream, upstream, &record.sent)
	both.Wait()
	if record.idle.Load() {
		f.proxy.stats.add(f.prefix+"idle_timeout", 1)
		record.flags = "SI"
	}
}

// transfer copies one way. Without an idle time-out the kernel may do it.
func transfer(to, from *net.TCPConn, bytes, last *atomic.Int64, watched bool) error {
	if !watched {
		n, err := io.Copy(to, from)
		bytes.Add(n)
		return err
	}
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			last.Store(time.Now().UnixNano())
			bytes.Add(int64(n))
			if _, err := to.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// watchIdle calls cut once nothing came for the idle time.
func (f *passthrough) watchIdle(last *atomic.Int64, cut func()) (stop func()) {
	var mu sync.Mutex
	var timer *time.Timer
	stopped := false
	var check func()
	check = func() {
		left := time.Until(time.Unix(0, last.Load()).Add(f.idle))
		if left <= 0 {
			cut()
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if !stopped {
			timer = time.AfterFunc(left, check)
		}
	}
	check()
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		if timer != nil {
			timer.Stop()
		}
	}
}
