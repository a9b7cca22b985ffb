package world

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// startResolver serves the names of the lab's Internet at the gateway, where
// the site file says a resolver is.
func (w *World) startResolver(_ context.Context, names map[string]string) error {
	table := map[string]netip.Addr{}
	for name, address := range names {
		ip, err := netip.ParseAddr(address)
		if err != nil {
			return fmt.Errorf("resolver: %w", err)
		}
		table[strings.ToLower(name)+"."] = ip
	}
	address := net.JoinHostPort(gatewayAddress, "53")
	conn, err := w.Fabric.Router().ListenPacket("udp", address)
	if err != nil {
		return fmt.Errorf("resolver: %w", err)
	}
	w.run("resolver", address, func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends the read below
		defer stop()
		return serveNames(ctx, conn, table)
	})
	return nil
}

// maxQuestion is the size of a question without extensions.
const maxQuestion = 512

func serveNames(ctx context.Context, conn net.PacketConn, table map[string]netip.Addr) error {
	buffer := make([]byte, maxQuestion)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read question: %w", err)
		}
		answer, err := answerName(buffer[:n], table)
		if err != nil {
			continue // not a question; a resolver stays silent
		}
		if _, err := conn.WriteTo(answer, from); err != nil && ctx.Err() == nil {
			continue // the one who asked is gone
		}
	}
}

var errNoQuestion = errors.New("message asks nothing")

// answerName answers one question: the address, no data, or no such name.
func answerName(question []byte, table map[string]netip.Addr) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil {
		return nil, fmt.Errorf("unpack question: %w", err)
	}
	if m.Response || len(m.Questions) != 1 {
		return nil, errNoQuestion
	}
	q := m.Questions[0]
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: m.ID, Response: true, Authoritative: true, RecursionDesired: m.RecursionDesired, RecursionAvailable: true,
		},
		Questions: m.Questions,
	}
	ip, known := table[strings.ToLower(q.Name.String())]
	switch {
	case !known:
		reply.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeA:
		reply.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: 60},
			Body:   &dnsmessage.AResource{A: ip.As4()},
		}}
	}
	return reply.Pack()
}
