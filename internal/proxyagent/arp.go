package proxyagent

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Fields of an ARP packet for IPv4 over Ethernet.
const (
	etherTypeARP  = 0x0806
	etherTypeIPv4 = 0x0800
	hardwareEther = 1
	opRequest     = 1
	opReply       = 2
	macLen        = 6
)

// announcement is an Ethernet frame that tells everyone on the segment who has
// the address: sender and target are the same. Of the two operations, some
// systems update their tables on the one and some on the other.
func announcement(op uint16, mac net.HardwareAddr, address netip.Addr) []byte {
	broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	target := make(net.HardwareAddr, macLen)
	if op == opReply {
		target = mac
	}
	ip := address.As4()
	frame := make([]byte, 0, 42)
	frame = append(frame, broadcast...)
	frame = append(frame, mac...)
	frame = binary.BigEndian.AppendUint16(frame, etherTypeARP)
	frame = binary.BigEndian.AppendUint16(frame, hardwareEther)
	frame = binary.BigEndian.AppendUint16(frame, etherTypeIPv4)
	frame = append(frame, macLen, byte(len(ip)))
	frame = binary.BigEndian.AppendUint16(frame, op)
	frame = append(frame, mac...)
	frame = append(frame, ip[:]...)
	frame = append(frame, target...)
	return append(frame, ip[:]...)
}

// announce sends both forms out of a card.
func announce(index int, mac net.HardwareAddr, address netip.Addr) error {
	// The protocol is 0, so that nothing is received and queued here.
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("announce %s: open packet socket: %w", address, err)
	}
	defer func() { _ = unix.Close(socket) }()
	to := &unix.SockaddrLinklayer{Protocol: bigEndian(etherTypeARP), Ifindex: index, Halen: macLen}
	copy(to.Addr[:], []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	for _, op := range []uint16{opRequest, opReply} {
		if err := unix.Sendto(socket, announcement(op, mac, address), 0, to); err != nil {
			return fmt.Errorf("announce %s: %w", address, err)
		}
	}
	return nil
}

// bigEndian puts a number into network order for a field that the kernel takes
// as it is in memory.
func bigEndian(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}
