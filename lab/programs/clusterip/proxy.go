package clusterip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"aether.internal/aether/lab/network"
)

// loopback is the device that the addresses are put on.
const loopback = "lo"

// Proxy serves the ClusterIPs of one node.
type Proxy struct {
	Client kubernetes.Interface
	Net    *network.Namespace // the node's
	Log    *slog.Logger

	services  corelisters.ServiceLister
	slices    discoverylisters.EndpointSliceLister
	mu        sync.Mutex
	frontends map[frontend]*forwarder
	addresses map[netip.Addr]bool // put on the loopback by this proxy
}

// frontend is one port of one Service.
type frontend struct {
	protocol corev1.Protocol
	address  netip.AddrPort
}

// Run watches Services and their endpoints until the context ends; then it
// takes the addresses away again.
func (p *Proxy) Run(ctx context.Context) error {
	p.frontends, p.addresses = map[frontend]*forwarder{}, map[netip.Addr]bool{}
	factory := informers.NewSharedInformerFactory(p.Client, 0)
	p.services = factory.Core().V1().Services().Lister()
	p.slices = factory.Discovery().V1().EndpointSlices().Lister()
	changed := make(chan struct{}, 1)
	poke := func() {
		select {
		case changed <- struct{}{}:
		default: // a pass is due already
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { poke() }, UpdateFunc: func(any, any) { poke() }, DeleteFunc: func(any) { poke() },
	}
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().Services().Informer(), factory.Discovery().V1().EndpointSlices().Informer(),
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watch services: %w", err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	defer p.closeAll()
	return p.loop(ctx, changed)
}

const retryAfter = time.Second

func (p *Proxy) loop(ctx context.Context, changed <-chan struct{}) error {
	for {
		var again <-chan time.Time
		if err := p.reconcile(); err != nil {
			p.Log.Warn("cannot serve all services", "error", err)
			again = time.After(retryAfter)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
		}
	}
}

// reconcile opens what should be served and closes what should not.
func (p *Proxy) reconcile() error {
	wanted, err := p.wanted()
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for front, running := range p.frontends {
		if _, still := wanted[front]; !still {
			running.close()
			delete(p.frontends, front)
		}
	}
	errs = append(errs, p.dropAddresses(wanted))
	for front, backends := range wanted {
		running, ok := p.frontends[front]
		if !ok {
			running, err = p.open(front)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			p.frontends[front] = running
		}
		running.setBackends(backends)
	}
	return errors.Join(errs...)
}

// open puts the address on the loopback and listens.
func (p *Proxy) open(front frontend) (*forwarder, error) {
	if err := p.Net.AddAddress(loopback, hostPrefix(front.address.Addr())); err != nil {
		return nil, err
	}
	p.addresses[front.address.Addr()] = true
	return newForwarder(p.Net, front, p.Log)
}

// dropAddresses removes addresses that no Service has any more.
func (p *Proxy) dropAddresses(wanted map[frontend][]string) error {
	used := map[netip.Addr]bool{}
	for front := range wanted {
		used[front.address.Addr()] = true
	}
	var errs []error
	for ip := range p.addresses {
		if used[ip] {
			continue
		}
		if err := p.Net.DelAddress(loopback, hostPrefix(ip)); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(p.addresses, ip)
	}
	return errors.Join(errs...)
}

func (p *Proxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, running := range p.frontends {
		running.close()
	}
	if err := p.dropAddresses(nil); err != nil {
		p.Log.Warn("cannot remove service addresses", "error", err)
	}
}

// wanted lists every port with its ready backends.
func (p *Proxy) wanted() (map[frontend][]string, error) {
	services, err := p.services.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list services: %w", err)
	}
	wanted := map[frontend][]string{}
	for _, service := range services {
		ip, err := netip.ParseAddr(service.Spec.ClusterIP)
		if err != nil || !ip.Is4() {
			continue // headless, external, or not assigned yet
		}
		own, err := p.slices.EndpointSlices(service.Namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name}))
		if err != nil {
			return nil, fmt.Errorf("list endpoints of %s/%s: %w", service.Namespace, service.Name, err)
		}
		for i := range service.Spec.Ports {
			port := &service.Spec.Ports[i]
			if port.Protocol != corev1.ProtocolTCP && port.Protocol != corev1.ProtocolUDP {
				continue
			}
			front := frontend{port.Protocol, netip.AddrPortFrom(ip, uint16(port.Port))}
			wanted[front] = backendsOf(own, port.Name)
		}
	}
	return wanted, nil
}

func backendsOf(own []*discoveryv1.EndpointSlice, portName string) []string {
	var backends []string
	for _, slice := range own {
		for i := range slice.Ports {
			port := &slice.Ports[i]
			if port.Port == nil || port.Name != nil && *port.Name != portName {
				continue
			}
			for j := range slice.Endpoints {
				if ready := slice.Endpoints[j].Conditions.Ready; ready != nil && !*ready {
					continue
				}
				for _, address := range slice.Endpoints[j].Addresses {
					backends = append(backends, netip.AddrPortFrom(addressOf(address), uint16(*port.Port)).String())
				}
			}
		}
	}
	slices.Sort(backends)
	return slices.Compact(backends)
}

func addressOf(text string) netip.Addr {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return netip.IPv4Unspecified() // the API server validates addresses
	}
	return ip
}

func hostPrefix(ip netip.Addr) netip.Prefix { return netip.PrefixFrom(ip, ip.BitLen()) }

// String names a frontend for logs.
func (f frontend) String() string {
	return string(f.protocol) + " " + f.address.Addr().String() + ":" + strconv.Itoa(int(f.address.Port()))
}
