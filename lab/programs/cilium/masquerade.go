package cilium

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"aether.internal/aether/lab/network"
)

// tableName is the packet filter table that the agent owns.
const tableName = "cilium"

// Offsets of the addresses in an IPv4 header.
const (
	sourceOffset      = 12
	destinationOffset = 16
	addressLength     = 4
)

// masquerade gives packets of this node's pods the node's own address, unless
// they go to other pods. The whole table is replaced at once.
func masquerade(host *network.Namespace, own netip.Prefix, others []node) error {
	err := host.Do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName}
		conn.AddTable(table) // so that the next line always finds it
		conn.DelTable(table)
		conn.AddTable(table)
		chain := conn.AddChain(&nftables.Chain{
			Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
		})
		pods := []netip.Prefix{own}
		for i := range others {
			if cidr := others[i].podCIDR(); cidr.IsValid() {
				pods = append(pods, cidr)
			}
		}
		for _, cidr := range pods {
			rule := append(matches(cidr, destinationOffset), &expr.Verdict{Kind: expr.VerdictAccept})
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule})
		}
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(matches(own, sourceOffset), &expr.Masq{})})
		return conn.Flush()
	})
	if err != nil {
		return fmt.Errorf("masquerade %s: %w; the kernel needs nf_tables with NAT", own, err)
	}
	return nil
}

// matches compares one address of a packet with a prefix.
func matches(prefix netip.Prefix, offset uint32) []expr.Any {
	mask := make([]byte, addressLength)
	for i := range prefix.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: addressLength},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: addressLength, Mask: mask, Xor: make([]byte, addressLength)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: prefix.Masked().Addr().AsSlice()},
	}
}
