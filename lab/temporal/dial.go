package temporal

import (
	"context"
	"net"

	"aether.internal/aether/lab/upstream/process"
)

// dialer is a namespace's way to connect, as gRPC wants it.
func dialer(network process.Network) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		return network.DialContext(ctx, "tcp", address)
	}
}
