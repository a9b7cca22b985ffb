package coredns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
)

const (
	timeToLive     = 30
	forwardTimeout = 3 * time.Second
	largestPacket  = 64 << 10
)

// server answers queries.
type server struct {
	zone     string // with its final dot
	upstream string
	log      *slog.Logger
	factory  informers.SharedInformerFactory
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
}

func (s *server) run(ctx context.Context, synced *atomic.Bool) error {
	s.factory.Start(ctx.Done())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		s.factory.WaitForCacheSync(ctx.Done())
		synced.Store(ctx.Err() == nil)
		return nil
	})
	packets, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", dnsAddress)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	streams, err := (&net.ListenConfig{}).Listen(ctx, "tcp", dnsAddress)
	if err != nil {
		return errors.Join(fmt.Errorf("listen: %w", err), packets.Close())
	}
	stop := context.AfterFunc(ctx, func() {
		_ = packets.Close() // ends the loops below
		_ = streams.Close()
	})
	defer stop()
	group.Go(func() error { return s.serveUDP(ctx, packets) })
	group.Go(func() error { return s.serveTCP(ctx, streams) })
	return group.Wait()
}

func (s *server) serveUDP(ctx context.Context, conn net.PacketConn) error {
	buffer := make([]byte, largestPacket)
	for {
		n, client, err := conn.ReadFrom(buffer)
		if err != nil {
			return ctx.Err()
		}
		query := append([]byte(nil), buffer[:n]...)
		go func() {
			if answer := s.handle(ctx, query); answer != nil {
				_, _ = conn.WriteTo(answer, client) // the client asks again
			}
		}()
	}
}

func (s *server) serveTCP(ctx context.Context, listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return ctx.Err()
		}
		go s.serveStream(ctx, conn)
	}
}

// serveStream answers queries that carry their length in front.
func (s *server) serveStream(ctx context.Context, conn net.Conn) {
	defer conn.Close() //nolint:errcheck // nothing is buffered
	for {
		var length uint16
		if binary.Read(conn, binary.BigEndian, &length) != nil {
			return
		}
		query := make([]byte, length)
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		answer := s.handle(ctx, query)
		framed := binary.BigEndian.AppendUint16(nil, uint16(len(answer)))
		if _, err := conn.Write(append(framed, answer...)); err != nil {
			return
		}
	}
}

// handle answers one query; nil for what is not one.
func (s *server) handle(ctx context.Context, query []byte) []byte {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil || header.Response {
		return nil
	}
	question, err := parser.Question()
	if err != nil {
		return nil
	}
	name := strings.ToLower(question.Name.String())
	if name != s.zone && !strings.HasSuffix(name, "."+s.zone) {
		return s.forward(ctx, query, header, question)
	}
	addresses, exists := s.lookUp(strings.TrimSuffix(name, s.zone))
	code := dnsmessage.RCodeSuccess
	if !exists {
		code = dnsmessage.RCodeNameError
	}
	if question.Type != dnsmessage.TypeA {
		addresses = nil
	}
	return s.reply(header, question, code, addresses)
}

// lookUp resolves a name relative to the zone, as kubernetes.default.svc.
// Names above a Service exist but have no address.
func (s *server) lookUp(relative string) ([]netip.Addr, bool) {
	labels := strings.Split(strings.TrimSuffix(relative, "."), ".")
	n := len(labels)
	if relative == "" || n == 1 && labels[0] == "svc" {
		return nil, true
	}
	if labels[n-1] != "svc" || n < 3 {
		return nil, false
	}
	service, err := s.services.Services(labels[n-2]).Get(labels[n-3])
	if err != nil {
		if !apierrors.IsNotFound(err) {
			s.log.Warn("cannot look up service", "error", err)
		}
		return nil, false
	}
	host := strings.Join(labels[:n-3], ".")
	if service.Spec.ClusterIP != corev1.ClusterIPNone {
		ip, err := netip.ParseAddr(service.Spec.ClusterIP)
		if err != nil || host != "" {
			return nil, host == ""
		}
		return []netip.Addr{ip}, true
	}
	return s.endpoints(service, host)
}

// endpoints resolves a headless Service, or one of its hosts.
func (s *server) endpoints(service *corev1.Service, host string) ([]netip.Addr, bool) {
	own, err := s.slices.EndpointSlices(service.Namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name}))
	if err != nil {
		s.log.Warn("cannot look up endpoints", "error", err)
		return nil, false
	}
	var addresses []netip.Addr
	for _, slice := range own {
		for i := range slice.Endpoints {
			endpoint := &slice.Endpoints[i]
			ready := endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
			named := host == "" || endpoint.Hostname != nil && *endpoint.Hostname == host
			if !named || !ready && !service.Spec.PublishNotReadyAddresses {
				continue
			}
			for _, text := range endpoint.Addresses {
				if ip, err := netip.ParseAddr(text); err == nil && ip.Is4() {
					addresses = append(addresses, ip)
				}
			}
		}
	}
	return addresses, host == "" || len(addresses) > 0
}

// reply builds an answer of our own.
func (s *server) reply(header dnsmessage.Header, question dnsmessage.Question, code dnsmessage.RCode, addresses []netip.Addr) []byte {
	message := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired,
			RecursionAvailable: true, RCode: code,
		},
		Questions: []dnsmessage.Question{question},
	}
	for _, ip := range addresses {
		message.Answers = append(message.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: question.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: timeToLive},
			Body:   &dnsmessage.AResource{A: ip.As4()},
		})
	}
	answer, err := message.Pack()
	if err != nil {
		s.log.Warn("cannot pack answer", "name", question.Name, "error", err)
		return nil
	}
	return answer
}

// forward asks the node's resolver.
func (s *server) forward(ctx context.Context, query []byte, header dnsmessage.Header, question dnsmessage.Question) []byte {
	if s.upstream == "" {
		return s.reply(header, question, dnsmessage.RCodeServerFailure, nil)
	}
	answer, err := s.ask(ctx, query)
	if err != nil {
		s.log.Debug("cannot forward", "name", question.Name, "error", err)
		return s.reply(header, question, dnsmessage.RCodeServerFailure, nil)
	}
	return answer
}

func (s *server) ask(ctx context.Context, query []byte) ([]byte, error) {
	conn, err := (&net.Dialer{Timeout: forwardTimeout}).DialContext(ctx, "udp", s.upstream)
	if err != nil {
		return nil, fmt.Errorf("forward: %w", err)
	}
	defer conn.Close() //nolint:errcheck // a datagram socket
	if err := conn.SetDeadline(time.Now().Add(forwardTimeout)); err != nil {
		return nil, fmt.Errorf("forward: %w", err)
	}
	if _, err := conn.Write(query); err != nil {
		return nil, fmt.Errorf("forward: %w", err)
	}
	buffer := make([]byte, largestPacket)
	n, err := conn.Read(buffer)
	if err != nil {
		return nil, fmt.Errorf("forward: %w", err)
	}
	return buffer[:n], nil
}
