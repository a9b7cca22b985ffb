package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// frontKey is an open port.
type frontKey struct {
	address netip.Addr
	port    int32
}

func ofService(name string) labels.Selector {
	return labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: name})
}

// reconcile opens what Services want, closes what none wants any more, and
// tells load balancers' addresses only after their ports are open.
func (b *Balancer) reconcile(ctx context.Context) error {
	list, err := b.services.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(x, y *corev1.Service) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), strings.Compare(x.Namespace+"/"+x.Name, y.Namespace+"/"+y.Name))
	})
	given, errs := b.allocate(list)
	wanted, places := b.wanted(list, given)
	for key, open := range b.fronts {
		if to, ok := wanted[key]; !ok || !open.serves(to) {
			open.close()
			delete(b.fronts, key)
		}
	}
	for address := range b.addresses {
		if _, ok := places[address]; !ok {
			errs = append(errs, b.release(address))
		}
	}
	for address, at := range places {
		errs = append(errs, b.take(address, at))
	}
	for key, to := range wanted {
		errs = append(errs, b.open(ctx, key, to))
	}
	for _, service := range list {
		errs = append(errs, b.tell(ctx, service, given))
	}
	return errors.Join(errs...)
}

// wanted lists the ports to open and the addresses they are at.
func (b *Balancer) wanted(list []*corev1.Service, given map[string]netip.Addr) (map[frontKey]target, map[netip.Addr]place) {
	wanted, places := map[frontKey]target{}, map[netip.Addr]place{}
	want := func(service *corev1.Service, address netip.Addr, at place, ranges []string) {
		places[address] = at
		for _, port := range service.Spec.Ports {
			if cmp.Or(port.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP {
				wanted[frontKey{address, port.Port}] = target{service.Namespace, service.Name, port.Name, strings.Join(ranges, ",")}
			}
		}
	}
	for _, service := range list {
		if address, ok := given[key(service)]; ok {
			want(service, address, place{b.cfg.Link, b.cfg.PrefixBits}, service.Spec.LoadBalancerSourceRanges)
		}
		if b.cfg.ClusterLink == "" {
			continue
		}
		if address, err := netip.ParseAddr(service.Spec.ClusterIP); err == nil {
			want(service, address, place{b.cfg.ClusterLink, address.BitLen()}, nil)
		}
	}
	return wanted, places
}

func key(service *corev1.Service) string { return service.Namespace + "/" + service.Name }

func (b *Balancer) ours(service *corev1.Service) bool {
	class := valueOr(service.Spec.LoadBalancerClass, b.cfg.Class)
	return service.Spec.Type == corev1.ServiceTypeLoadBalancer && class == b.cfg.Class && service.DeletionTimestamp.IsZero()
}

// allocate gives each load balancer its address: the one it has, the one it
// asks for, or the lowest that is free.
func (b *Balancer) allocate(list []*corev1.Service) (map[string]netip.Addr, []error) {
	given, taken := map[string]netip.Addr{}, map[netip.Addr]string{}
	var errs []error
	give := func(service *corev1.Service, address netip.Addr) {
		given[key(service)], taken[address] = address, key(service)
	}
	for _, service := range list {
		if address, ok := b.has(service); ok && b.ours(service) && taken[address] == "" {
			give(service, address)
		}
	}
	for _, service := range list {
		if _, ok := given[key(service)]; ok || !b.ours(service) {
			continue
		}
		asked := cmp.Or(service.Annotations[b.cfg.AddressAnnotation], service.Spec.LoadBalancerIP)
		address, err := b.choose(asked, taken)
		if err != nil {
			errs = append(errs, fmt.Errorf("service %s: %w", key(service), err))
			continue
		}
		give(service, address)
	}
	return given, errs
}

// has returns the address that the status tells, if it is (still) right.
func (b *Balancer) has(service *corev1.Service) (netip.Addr, bool) {
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		address, err := netip.ParseAddr(ingress.IP)
		if err != nil || !b.inPool(address) {
			continue
		}
		asked := cmp.Or(service.Annotations[b.cfg.AddressAnnotation], service.Spec.LoadBalancerIP)
		return address, asked == "" || asked == address.String()
	}
	return netip.Addr{}, false
}

func (b *Balancer) inPool(address netip.Addr) bool {
	return !address.Less(b.cfg.First) && !b.cfg.Last.Less(address)
}

func (b *Balancer) choose(asked string, taken map[netip.Addr]string) (netip.Addr, error) {
	if asked != "" {
		address, err := netip.ParseAddr(asked)
		switch {
		case err != nil || !b.inPool(address):
			return netip.Addr{}, fmt.Errorf("address %q is not in the pool %s-%s; ask for one that is, or for none", asked, b.cfg.First, b.cfg.Last)
		case taken[address] != "":
			return netip.Addr{}, fmt.Errorf("address %s is taken by service %s; ask for another, or for none", asked, taken[address])
		}
		return address, nil
	}
	for address := b.cfg.First; b.inPool(address); address = address.Next() {
		if taken[address] == "" {
			return address, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("pool %s-%s is used up by %d services; delete one or widen the pool", b.cfg.First, b.cfg.Last, len(taken))
}

// take puts an address on its link and tells the neighbours.
func (b *Balancer) take(address netip.Addr, at place) error {
	if b.addresses[address] == at {
		return nil
	}
	if err := b.cfg.Net.AddAddress(at.link, netip.PrefixFrom(address, at.bits)); err != nil {
		return fmt.Errorf("add address %s: %w", address, err)
	}
	b.addresses[address] = at
	if at.link != b.cfg.Link {
		return nil
	}
	if err := b.cfg.Net.AnnounceARP(at.link, address); err != nil {
		return fmt.Errorf("announce address %s: %w", address, err)
	}
	return nil
}

func (b *Balancer) release(address netip.Addr) error {
	at := b.addresses[address]
	delete(b.addresses, address)
	if err := b.cfg.Net.DelAddress(at.link, netip.PrefixFrom(address, at.bits)); err != nil {
		return fmt.Errorf("remove address %s: %w", address, err)
	}
	return nil
}

// tell writes the address into the Service's status, or takes it out of a
// Service that is no load balancer any more.
func (b *Balancer) tell(ctx context.Context, service *corev1.Service, given map[string]netip.Addr) error {
	address, ok := given[key(service)]
	if ok && !b.isOpen(service, address) {
		return nil // told when its ports are open
	}
	var wanted []corev1.LoadBalancerIngress
	mode := corev1.LoadBalancerIPModeVIP
	if ok {
		wanted = []corev1.LoadBalancerIngress{{IP: address.String(), IPMode: &mode}}
	}
	present := service.Status.LoadBalancer.Ingress
	same := len(present) == len(wanted) && (len(wanted) == 0 || present[0].IP == wanted[0].IP)
	if same || (!ok && !b.oursToClear(service)) {
		return nil
	}
	updated := service.DeepCopy()
	updated.Status.LoadBalancer.Ingress = wanted
	_, err := b.cfg.Client.CoreV1().Services(service.Namespace).UpdateStatus(ctx, updated, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("tell address of service %s: %w", key(service), err)
	}
	return nil
}

// oursToClear tells that the status has an address of the pool.
func (b *Balancer) oursToClear(service *corev1.Service) bool {
	return service.Spec.Type != corev1.ServiceTypeLoadBalancer && slices.ContainsFunc(service.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool {
		address, err := netip.ParseAddr(i.IP)
		return err == nil && b.inPool(address)
	})
}

func (b *Balancer) isOpen(service *corev1.Service, address netip.Addr) bool {
	for _, port := range service.Spec.Ports {
		if cmp.Or(port.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP && b.fronts[frontKey{address, port.Port}] == nil {
			return false
		}
	}
	return true
}

func (b *Balancer) closeAll() {
	for key, open := range b.fronts {
		open.close()
		delete(b.fronts, key)
	}
	for address := range b.addresses {
		if err := b.release(address); err != nil {
			b.cfg.Log.Debug("leave an address behind", "error", err)
		}
	}
}
