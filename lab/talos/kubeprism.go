package talos

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"

	"golang.org/x/sync/errgroup"
)

// runKubePrism serves the API server on the loopback, if the configuration
// says so. With discovery off it has one upstream: the endpoint.
func (n *node) runKubePrism(ctx context.Context) error {
	prism := n.provider.Machine().Features().KubePrism()
	if !prism.Enabled() {
		return nil
	}
	listener, err := n.machine.Net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", prism.Port()))
	if err != nil {
		return fmt.Errorf("open KubePrism: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	n.console.talos("KubePrism KAS loadbalancer is enabled on 127.0.0.1:%d", prism.Port())
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return groupCtx.Err()
			}
			group.Go(func() error {
				n.forward(groupCtx, conn)
				return nil
			})
		}
	})
	return group.Wait()
}

// forward copies both ways until one side ends.
func (n *node) forward(ctx context.Context, from net.Conn) {
	defer func() { _ = from.Close() }()
	endpoint := n.provider.Cluster().Endpoint()
	port := endpoint.Port()
	if port == "" {
		port = "443"
	}
	to, err := n.names.dialContext(ctx, "tcp", net.JoinHostPort(endpoint.Hostname(), port))
	if err != nil {
		n.console.talos("KubePrism: no healthy upstream: %v", err)
		return
	}
	end := func() { _ = from.Close(); _ = to.Close() }
	defer context.AfterFunc(ctx, end)()
	var both sync.WaitGroup
	for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
		both.Go(func() {
			_, _ = io.Copy(pair[0], pair[1]) // how it ended is the other side's to tell
			end()
		})
	}
	both.Wait()
}

// apiServer is the URL that the kubelet's kubeconfig names.
func (n *node) apiServer() string {
	if prism := n.provider.Machine().Features().KubePrism(); prism.Enabled() {
		return fmt.Sprintf("https://127.0.0.1:%d", prism.Port())
	}
	return n.provider.Cluster().Endpoint().String()
}
