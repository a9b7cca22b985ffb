package services

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

// Network is the node's network; lab/network's Namespace is one.
type Network interface {
	AddAddress(link string, p netip.Prefix) error
	DelAddress(link string, p netip.Prefix) error
	AnnounceARP(link string, ip netip.Addr) error
	Listen(network, address string) (net.Listener, error)
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Config is what the stand-in needs.
type Config struct {
	Client kubernetes.Interface
	Net    Network
	Log    *slog.Logger

	// Link gets the load balancers' addresses, with PrefixBits.
	Link       string
	PrefixBits int
	// First and Last bound the pool.
	First, Last netip.Addr
	// Class is the load balancer class served besides Services that name none.
	Class string
	// AddressAnnotation names the annotation with a wanted address, which
	// counts before spec.loadBalancerIP; empty is DefaultAddressAnnotation.
	AddressAnnotation string
	// ClusterLink gets the cluster addresses; empty serves none.
	ClusterLink string
}

// DefaultAddressAnnotation is how a Service asks for an address of the pool.
const DefaultAddressAnnotation = "metallb.io/loadBalancerIPs"

const (
	resync      = 0
	retryAfter  = time.Second
	settleDelay = 20 * time.Millisecond
)

// Balancer is the stand-in.
type Balancer struct {
	cfg       Config
	services  corelisters.ServiceLister
	endpoints discoverylisters.EndpointSliceLister
	factory   informers.SharedInformerFactory
	nudge     chan struct{}
	fronts    map[frontKey]*front  // open relays
	addresses map[netip.Addr]place // addresses that are on a link
}

// place is where an address is.
type place struct {
	link string
	bits int
}

// New checks the configuration.
func New(cfg Config) (*Balancer, error) {
	switch {
	case cfg.Client == nil || cfg.Net == nil || cfg.Log == nil:
		return nil, errors.New("services: Client, Net and Log must be set")
	case cfg.Link == "":
		return nil, errors.New("services: Link is empty; name the interface of the load balancers' addresses")
	case !cfg.First.IsValid() || !cfg.Last.IsValid() || cfg.Last.Less(cfg.First):
		return nil, fmt.Errorf("services: pool %s-%s is not a range; give its first and last address", cfg.First, cfg.Last)
	}
	if cfg.AddressAnnotation == "" {
		cfg.AddressAnnotation = DefaultAddressAnnotation
	}
	factory := informers.NewSharedInformerFactory(cfg.Client, resync)
	return &Balancer{
		cfg: cfg, factory: factory, nudge: make(chan struct{}, 1),
		services:  factory.Core().V1().Services().Lister(),
		endpoints: factory.Discovery().V1().EndpointSlices().Lister(),
		fronts:    map[frontKey]*front{}, addresses: map[netip.Addr]place{},
	}, nil
}

// Run serves until the context ends, then takes its addresses back.
func (b *Balancer) Run(ctx context.Context) error {
	wake := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { b.wake() },
		UpdateFunc: func(any, any) { b.wake() },
		DeleteFunc: func(any) { b.wake() },
	}
	// Endpoints are looked up when a connection comes; only Services change
	// what is open.
	informer := b.factory.Core().V1().Services().Informer()
	if _, err := informer.AddEventHandler(wake); err != nil {
		return fmt.Errorf("services: watch: %w", err)
	}
	slices := b.factory.Discovery().V1().EndpointSlices().Informer()
	b.factory.Start(ctx.Done())
	defer b.factory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced, slices.HasSynced) {
		return nil // the context ended
	}
	defer b.closeAll()
	for {
		if err := b.reconcile(ctx); err != nil && ctx.Err() == nil {
			b.cfg.Log.Warn("services are not all served", "error", err)
			time.AfterFunc(retryAfter, b.wake)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-b.nudge:
		}
		time.Sleep(settleDelay) // several changes at once are one
	}
}

func (b *Balancer) wake() {
	select {
	case b.nudge <- struct{}{}:
	default:
	}
}

// backends returns the ready pods behind a port of a Service.
func (b *Balancer) backends(namespace, service, port string) []string {
	list, err := b.endpoints.EndpointSlices(namespace).List(ofService(service))
	if err != nil {
		return nil // a lister of a cache does not fail
	}
	var ready []string
	for _, slice := range list {
		for _, p := range slice.Ports {
			if valueOr(p.Name, "") != port || p.Port == nil || valueOr(p.Protocol, corev1.ProtocolTCP) != corev1.ProtocolTCP {
				continue
			}
			ready = append(ready, readyAddresses(slice, *p.Port)...)
		}
	}
	return ready
}

func readyAddresses(slice *discoveryv1.EndpointSlice, port int32) []string {
	var ready []string
	for _, endpoint := range slice.Endpoints {
		if !valueOr(endpoint.Conditions.Ready, true) {
			continue
		}
		for _, address := range endpoint.Addresses {
			ready = append(ready, net.JoinHostPort(address, fmt.Sprint(port)))
		}
	}
	return ready
}

func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
