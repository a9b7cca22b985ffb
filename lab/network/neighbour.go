package network

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Neighbour is an entry of a namespace's ARP cache.
type Neighbour struct {
	Link  string
	IP    netip.Addr
	MAC   net.HardwareAddr
	State string // as in ip neigh: REACHABLE, STALE, FAILED, …
}

// Neighbours lists the ARP cache.
func (n *Namespace) Neighbours() ([]Neighbour, error) {
	links, err := n.nl.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links in %s: %w", n.name, err)
	}
	names := map[int]string{}
	for _, link := range links {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	entries, err := n.nl.NeighList(0, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list neighbours in %s: %w", n.name, err)
	}
	list := make([]Neighbour, 0, len(entries))
	for _, e := range entries {
		ip, ok := netip.AddrFromSlice(e.IP)
		if !ok || e.State&netlink.NUD_NOARP != 0 {
			continue
		}
		list = append(list, Neighbour{Link: names[e.LinkIndex], IP: ip.Unmap(), MAC: e.HardwareAddr, State: stateName(e.State)})
	}
	return list, nil
}

func stateName(state int) string {
	switch state {
	case netlink.NUD_INCOMPLETE:
		return "INCOMPLETE"
	case netlink.NUD_REACHABLE:
		return "REACHABLE"
	case netlink.NUD_STALE:
		return "STALE"
	case netlink.NUD_DELAY:
		return "DELAY"
	case netlink.NUD_PROBE:
		return "PROBE"
	case netlink.NUD_FAILED:
		return "FAILED"
	case netlink.NUD_PERMANENT:
		return "PERMANENT"
	default:
		return "NONE"
	}
}

// FlushNeighbour forgets what MAC an address has, as "ip neigh flush" does. An
// empty device means all; an address that is not in the cache is no error.
func (n *Namespace) FlushNeighbour(device string, ip netip.Addr) error {
	index := 0
	if device != "" {
		link, err := n.link(device)
		if err != nil {
			return err
		}
		index = link.Attrs().Index
	}
	entries, err := n.nl.NeighList(index, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list neighbours in %s: %w", n.name, err)
	}
	for _, e := range entries {
		found, ok := netip.AddrFromSlice(e.IP)
		// Permanent entries stay, as with the command of that name.
		if !ok || found.Unmap() != ip || e.State&netlink.NUD_PERMANENT != 0 {
			continue
		}
		if err := n.nl.NeighDel(&e); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("flush neighbour %s in %s: %w", ip, n.name, err)
		}
	}
	return nil
}

// AnnounceARP tells the segment behind an interface who has an address, by a
// gratuitous request and a gratuitous reply: some caches heed only one of them.
func (n *Namespace) AnnounceARP(link string, ip netip.Addr) error {
	if !ip.Is4() {
		return fmt.Errorf("announce %s on %s in %s: ARP knows IPv4 addresses only", ip, link, n.name)
	}
	found, err := n.link(link)
	if err != nil {
		return err
	}
	mac := found.Attrs().HardwareAddr
	err = n.Do(func() error {
		// Protocol 0: the socket sends only and never queues what it hears.
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open packet socket: %w", err)
		}
		to := &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ARP), Ifindex: found.Attrs().Index, Halen: 6}
		for _, op := range []uint16{arpRequest, arpReply} {
			if err := unix.Sendto(fd, gratuitous(op, mac, ip), 0, to); err != nil {
				return errors.Join(fmt.Errorf("send: %w", err), unix.Close(fd))
			}
		}
		return unix.Close(fd)
	})
	if err != nil {
		return fmt.Errorf("announce %s on %s in %s: %w", ip, link, n.name, err)
	}
	return nil
}

// The operations of ARP (RFC 826).
const (
	arpRequest uint16 = 1
	arpReply   uint16 = 2
)

// gratuitous is an Ethernet frame in which the owner of an address asks for, or
// answers with, its own address.
func gratuitous(op uint16, mac net.HardwareAddr, ip netip.Addr) []byte {
	broadcast := bytes.Repeat([]byte{0xff}, 6)
	target := mac // the reply form names the sender twice
	if op == arpRequest {
		target = make([]byte, 6)
	}
	var frame bytes.Buffer
	frame.Write(broadcast)
	frame.Write(mac)
	header := binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP)
	header = binary.BigEndian.AppendUint16(header, unix.ARPHRD_ETHER)
	header = binary.BigEndian.AppendUint16(header, unix.ETH_P_IP)
	header = append(header, 6, 4) // sizes of MAC and IPv4
	header = binary.BigEndian.AppendUint16(header, op)
	frame.Write(header)
	frame.Write(mac)
	frame.Write(ip.AsSlice())
	frame.Write(target)
	frame.Write(ip.AsSlice())
	frame.Write(make([]byte, 60-frame.Len())) // shortest Ethernet frame
	return frame.Bytes()
}

func htons(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}
