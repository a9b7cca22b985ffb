package kamaji

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var errNoEndpoint = errors.New("service has no ready endpoint")

// dialService connects to one of the ready pods behind the tenant's Service.
func (n *inside) dialService(ctx context.Context, network, _ string) (net.Conn, error) {
	slices := &discoveryv1.EndpointSliceList{}
	err := n.management().List(ctx, slices, client.InNamespace(n.key.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: n.key.Name})
	if err != nil {
		return nil, fmt.Errorf("resolve service %s: %w", n.key, err)
	}
	last := errNoEndpoint
	for _, slice := range slices.Items {
		port := apiServerPort(slice.Ports)
		for _, endpoint := range slice.Endpoints {
			if port == 0 || !ptr.Deref(endpoint.Conditions.Ready, true) || len(endpoint.Addresses) == 0 {
				continue
			}
			conn, err := n.cfg.Dial(ctx, network, net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(port))))
			if err == nil {
				return conn, nil
			}
			last = err
		}
	}
	return nil, fmt.Errorf("dial service %s: %w", n.key, last)
}

func apiServerPort(ports []discoveryv1.EndpointPort) int32 {
	for _, port := range ports {
		if ptr.Deref(port.Name, "") == portAPIServer {
			return ptr.Deref(port.Port, 0)
		}
	}
	return 0
}
