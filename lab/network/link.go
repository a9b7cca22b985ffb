package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrNoLink says that a namespace has no network interface of that name.
var ErrNoLink = errors.New("no such network interface")

// VethOptions are the choices of a veth pair.
type VethOptions struct {
	MAC net.HardwareAddr // of the second end; nil lets the kernel choose
	MTU int              // of both ends; 0 is the kernel's 1500
}

// Veth lays a cable between two namespaces: aName in a, bName in b, both up.
func Veth(a *Namespace, aName string, b *Namespace, bName string, opts VethOptions) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = aName
	attrs.MTU = opts.MTU
	pair := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         bName,
		PeerHardwareAddr: opts.MAC,
		PeerNamespace:    netlink.NsFd(int(b.handle)),
	}
	if err := a.nl.LinkAdd(pair); err != nil {
		return fmt.Errorf("lay veth from %s in %s to %s in %s: %w", aName, a.name, bName, b.name, err)
	}
	err := a.setUp(aName)
	if err == nil {
		err = b.setUp(bName)
	}
	if err != nil {
		return errors.Join(err, a.DelLink(aName))
	}
	return nil
}

// link finds an interface by its name.
func (n *Namespace) link(name string) (netlink.Link, error) {
	link, err := n.nl.LinkByName(name)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		return nil, fmt.Errorf("link %s in %s: %w; it has %v", name, n.name, ErrNoLink, n.linkNames())
	case err != nil:
		return nil, fmt.Errorf("find link %s in %s: %w", name, n.name, err)
	}
	return link, nil
}

// linkNames lists the interfaces for an error text; none if they cannot be read.
func (n *Namespace) linkNames() []string {
	links, err := n.nl.LinkList()
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(links))
	for _, link := range links {
		names = append(names, link.Attrs().Name)
	}
	return names
}

func (n *Namespace) setUp(name string) error {
	link, err := n.link(name)
	if err != nil {
		return err
	}
	if err := n.nl.LinkSetUp(link); err != nil {
		return fmt.Errorf("set link %s in %s up: %w", name, n.name, err)
	}
	return nil
}

// SetLinkUp sets an interface administratively up or down.
func (n *Namespace) SetLinkUp(name string, up bool) error {
	if up {
		return n.setUp(name)
	}
	link, err := n.link(name)
	if err != nil {
		return err
	}
	if err := n.nl.LinkSetDown(link); err != nil {
		return fmt.Errorf("set link %s in %s down: %w", name, n.name, err)
	}
	return nil
}

// DelLink removes an interface, and with it the other end of a veth pair. One
// that is already gone is no error.
func (n *Namespace) DelLink(name string) error {
	link, err := n.link(name)
	if errors.Is(err, ErrNoLink) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := n.nl.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s in %s: %w", name, n.name, err)
	}
	return nil
}

// LinkUp tells whether an interface is up and has carrier.
func (n *Namespace) LinkUp(name string) (bool, error) {
	link, err := n.link(name)
	if err != nil {
		return false, err
	}
	return hasCarrier(link), nil
}

func hasCarrier(link netlink.Link) bool {
	const ready = unix.IFF_UP | unix.IFF_LOWER_UP
	return link.Attrs().RawFlags&ready == ready
}

// SetMAC gives an interface another hardware address, as a new virtual machine
// at an old address has.
func (n *Namespace) SetMAC(name string, mac net.HardwareAddr) error {
	link, err := n.link(name)
	if err != nil {
		return err
	}
	if err := n.nl.LinkSetHardwareAddr(link, mac); err != nil {
		return fmt.Errorf("set MAC of link %s in %s to %s: %w", name, n.name, mac, err)
	}
	return nil
}

// MAC returns the hardware address of an interface.
func (n *Namespace) MAC(name string) (net.HardwareAddr, error) {
	link, err := n.link(name)
	if err != nil {
		return nil, err
	}
	return link.Attrs().HardwareAddr, nil
}

// AddAddress puts an address on an interface and sets it up. One that is
// already there is no error.
func (n *Namespace) AddAddress(link string, p netip.Prefix) error {
	found, err := n.link(link)
	if err != nil {
		return err
	}
	if err := n.nl.AddrReplace(found, &netlink.Addr{IPNet: ipNet(p)}); err != nil {
		return fmt.Errorf("add address %s to %s in %s: %w", p, link, n.name, err)
	}
	if err := n.nl.LinkSetUp(found); err != nil {
		return fmt.Errorf("set link %s in %s up: %w", link, n.name, err)
	}
	return nil
}

// DelAddress takes an address off an interface. One that is not there is no
// error.
func (n *Namespace) DelAddress(link string, p netip.Prefix) error {
	found, err := n.link(link)
	if err != nil {
		return err
	}
	err = n.nl.AddrDel(found, &netlink.Addr{IPNet: ipNet(p)})
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("remove address %s from %s in %s: %w", p, link, n.name, err)
	}
	return nil
}

// Addresses lists the IPv4 addresses of an interface.
func (n *Namespace) Addresses(link string) ([]netip.Prefix, error) {
	found, err := n.link(link)
	if err != nil {
		return nil, err
	}
	list, err := n.nl.AddrList(found, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s in %s: %w", link, n.name, err)
	}
	prefixes := make([]netip.Prefix, 0, len(list))
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		bits, _ := a.Mask.Size()
		prefixes = append(prefixes, netip.PrefixFrom(ip.Unmap(), bits))
	}
	return prefixes, nil
}

// AddRoute sends dst by way of a gateway; 0.0.0.0/0 is the default route. A
// route to dst that exists is replaced.
func (n *Namespace) AddRoute(dst netip.Prefix, via netip.Addr) error {
	route := &netlink.Route{Dst: ipNet(dst.Masked()), Gw: via.AsSlice()}
	if err := n.nl.RouteReplace(route); err != nil {
		return fmt.Errorf("add route to %s via %s in %s: %w; is the gateway in the subnet of an interface that is up?", dst, via, n.name, err)
	}
	return nil
}

// AddLinkRoute sends dst out of an interface without a gateway, as to a pod
// behind its veth.
func (n *Namespace) AddLinkRoute(dst netip.Prefix, link string) error {
	found, err := n.link(link)
	if err != nil {
		return err
	}
	route := &netlink.Route{Dst: ipNet(dst.Masked()), LinkIndex: found.Attrs().Index, Scope: netlink.SCOPE_LINK}
	if err := n.nl.RouteReplace(route); err != nil {
		return fmt.Errorf("add route to %s by %s in %s: %w", dst, link, n.name, err)
	}
	return nil
}

// DelRoute removes the routes to dst. One that is not there is no error.
func (n *Namespace) DelRoute(dst netip.Prefix) error {
	err := n.nl.RouteDel(&netlink.Route{Dst: ipNet(dst.Masked())})
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove route to %s in %s: %w", dst, n.name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
