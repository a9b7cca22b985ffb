package timeserver_test

import (
	"context"
	"net"
	"testing"
	"time"

	"aether.internal/aether/lab/talos/timeserver"
)

func TestQuery(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- timeserver.Serve(ctx, server) }()
	conn, err := net.Dial("udp", server.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, err := timeserver.Query(ctx, conn)
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(got).Abs(); d > time.Second {
		t.Errorf("server's time is off by %s", d)
	}
	cancel()
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
}

func TestQueryWithoutServer(t *testing.T) {
	conn, err := net.Dial("udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := timeserver.Query(ctx, conn); err == nil {
		t.Error("nobody answered, and there was a time")
	}
}
