package talos

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"strings"

	sideronet "github.com/siderolabs/net"
)

// stableHostname is the name Talos makes up, always the same for a machine.
func stableHostname(identity string) string {
	sum := sha256.Sum256([]byte(identity))
	text := fmt.Sprintf("%012s", new(big.Int).SetBytes(sum[:8]).Text(36))
	return fmt.Sprintf("talos-%s-%s", text[1:4], text[4:7])
}

// errNoNodeIP is a text of Talos's own.
var errNoNodeIP = errors.New("no suitable node IP found, please make sure .machine.kubelet.nodeIP filters and pod/service subnets are set up correctly")

// nodeIP picks the node's address: the first, lowest one that lies in a valid
// subnet, if there are any, and not in the cluster's own ranges.
func nodeIP(addresses []netip.Prefix, valid, clusterRanges []string) (netip.Addr, error) {
	var candidates []netip.Addr
	for _, a := range addresses {
		inCluster, err := sideronet.FilterIPs([]netip.Addr{a.Addr()}, clusterRanges)
		if err != nil {
			return netip.Addr{}, fmt.Errorf("cluster ranges: %w", err)
		}
		if len(clusterRanges) == 0 || len(inCluster) == 0 {
			candidates = append(candidates, a.Addr())
		}
	}
	if len(valid) == 0 {
		valid = []string{"0.0.0.0/0"}
	}
	found, err := sideronet.FilterIPs(candidates, valid)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("machine.kubelet.nodeIP.validSubnets: %w", err)
	}
	if len(found) == 0 {
		return netip.Addr{}, errNoNodeIP
	}
	return found[0], nil
}

// nodeName is the host's name as Kubernetes takes it.
func nodeName(hostname string) string {
	short, _, _ := strings.Cut(strings.ToLower(hostname), ".")
	return short
}
