package timeserver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"
)

// Port is where time is served.
const Port = 123

const (
	packetSize   = 48
	modeClient   = 3
	modeServer   = 4
	version      = 4
	stratum      = 2
	unsynced     = 3 << 6 // leap indicator of a clock that is not set
	transmitAt   = 40     // offset of the transmit timestamp
	originAt     = 24     // offset of the originate timestamp
	ntpEpochDiff = 2208988800
)

// Serve answers on conn until ctx ends, and closes it.
func Serve(ctx context.Context, conn net.PacketConn) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	packet := make([]byte, 512)
	for {
		n, from, err := conn.ReadFrom(packet)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("read time query: %w", err)
		}
		if n < packetSize || packet[0]&7 != modeClient {
			continue
		}
		if _, err := conn.WriteTo(answer(packet[:packetSize], time.Now()), from); err != nil && ctx.Err() == nil && !unreachable(err) {
			return fmt.Errorf("answer time query of %s: %w", from, err)
		}
	}
}

func unreachable(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) // the asker may be gone; the server goes on
}

func answer(query []byte, now time.Time) []byte {
	out := make([]byte, packetSize)
	out[0] = version<<3 | modeServer
	out[1], out[2], out[3] = stratum, query[2], 0xec // poll as asked, precision 2^-20
	copy(out[12:16], "LAB\x00")
	putTime(out[16:], now)                               // reference
	copy(out[originAt:], query[transmitAt:transmitAt+8]) // originate
	putTime(out[32:], now)                               // receive
	putTime(out[transmitAt:], now)
	return out
}

// Query asks over conn, which must be connected to a server, and returns the
// server's time.
func Query(ctx context.Context, conn net.Conn) (time.Time, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(5 * time.Second)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return time.Time{}, fmt.Errorf("set deadline of time query: %w", err)
	}
	query := make([]byte, packetSize)
	query[0] = version<<3 | modeClient
	putTime(query[transmitAt:], time.Now())
	if _, err := conn.Write(query); err != nil {
		return time.Time{}, fmt.Errorf("send time query: %w", err)
	}
	reply := make([]byte, packetSize)
	for {
		n, err := conn.Read(reply)
		if err != nil {
			return time.Time{}, fmt.Errorf("read time answer: %w", err)
		}
		if n < packetSize || reply[0]&7 != modeServer || string(reply[originAt:originAt+8]) != string(query[transmitAt:transmitAt+8]) {
			continue // not an answer to this query
		}
		if reply[0]&unsynced == unsynced || reply[1] == 0 || reply[1] > 15 {
			return time.Time{}, errors.New("time server is not synchronized itself")
		}
		return getTime(reply[transmitAt:]), nil
	}
}

func putTime(to []byte, t time.Time) {
	binary.BigEndian.PutUint32(to, uint32(t.Unix()+ntpEpochDiff)) //nolint:gosec // era 0 ends in 2036 by definition
	binary.BigEndian.PutUint32(to[4:], uint32(uint64(t.Nanosecond())<<32/1e9))
}

func getTime(from []byte) time.Time {
	seconds := int64(binary.BigEndian.Uint32(from)) - ntpEpochDiff
	nanos := int64(uint64(binary.BigEndian.Uint32(from[4:])) * 1e9 >> 32) //nolint:gosec // below 1e9
	return time.Unix(seconds, nanos)
}
