package kubelet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"aether.internal/aether/lab/network"
)

// ErrNoPodCIDR says that the node has not been given a range for its pods yet.
var ErrNoPodCIDR = errors.New("node has no pod CIDR yet")

// CNIConfigured returns a function that tells whether a CNI configuration lies
// in etc/cni/net.d below dir.
func CNIConfigured(dir string) func() bool {
	pattern := filepath.Join(dir, "etc/cni/net.d/*.conf*")
	return func() bool {
		found, err := filepath.Glob(pattern)
		return err == nil && len(found) > 0
	}
}

// cniSubnet returns the range that the node's CNI configuration names, invalid
// if it names none: then the Node's own range counts.
func cniSubnet(dir string) netip.Prefix {
	found, err := filepath.Glob(filepath.Join(dir, "etc/cni/net.d/*.conflist"))
	if err != nil || len(found) == 0 {
		return netip.Prefix{}
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		return netip.Prefix{} // replaced at this moment
	}
	var config struct {
		Plugins []struct {
			IPAM struct {
				Subnet netip.Prefix `json:"subnet"`
			} `json:"ipam"`
		} `json:"plugins"`
	}
	if json.Unmarshal(data, &config) != nil || len(config.Plugins) == 0 {
		return netip.Prefix{}
	}
	return config.Plugins[0].IPAM.Subnet
}

// PointToPoint is a PodNetwork that lays a veth pair from the node to each pod
// and routes the pod's address into it. The first address of the pod CIDR is
// the gateway, on every cable.
type PointToPoint struct {
	node *network.Namespace

	mu    sync.Mutex
	ports map[string]port // by pod UID
}

type port struct {
	link string
	ip   netip.Addr
}

// NewPointToPoint returns the pod network of a node.
func NewPointToPoint(node *network.Namespace) *PointToPoint {
	return &PointToPoint{node: node, ports: map[string]port{}}
}

// Attach implements PodNetwork.
func (p *PointToPoint) Attach(_ context.Context, sandbox Sandbox) (netip.Addr, error) {
	if !sandbox.PodCIDR.IsValid() {
		return netip.Addr{}, ErrNoPodCIDR
	}
	attached, err := p.reserve(sandbox)
	if err != nil {
		return netip.Addr{}, err
	}
	if err := p.cable(sandbox, attached); err != nil {
		return netip.Addr{}, errors.Join(err, p.Detach(sandbox.UID))
	}
	return attached.ip, nil
}

// reserve picks the lowest free address.
func (p *PointToPoint) reserve(sandbox Sandbox) (port, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if held, ok := p.ports[sandbox.UID]; ok {
		return held, nil
	}
	used := map[netip.Addr]bool{}
	for _, held := range p.ports {
		used[held.ip] = true
	}
	gateway := sandbox.PodCIDR.Masked().Addr().Next()
	for ip := gateway.Next(); sandbox.PodCIDR.Contains(ip.Next()); ip = ip.Next() {
		if !used[ip] {
			taken := port{link: linkName(sandbox.UID), ip: ip}
			p.ports[sandbox.UID] = taken
			return taken, nil
		}
	}
	return port{}, fmt.Errorf("no free address in pod CIDR %s: %d pods have one", sandbox.PodCIDR, len(p.ports))
}

func (p *PointToPoint) cable(sandbox Sandbox, to port) error {
	gateway := sandbox.PodCIDR.Masked().Addr().Next()
	if err := p.node.Sysctl("net/ipv4/ip_forward", "1"); err != nil {
		return err
	}
	if err := p.node.DelLink(to.link); err != nil {
		return err
	}
	if err := network.Veth(p.node, to.link, sandbox.Net, "eth0", network.VethOptions{}); err != nil {
		return err
	}
	steps := []func() error{
		func() error { return sandbox.Net.AddAddress("eth0", single(to.ip)) },
		func() error { return sandbox.Net.AddLinkRoute(single(gateway), "eth0") },
		func() error { return sandbox.Net.AddRoute(netip.PrefixFrom(netip.IPv4Unspecified(), 0), gateway) },
		func() error { return p.node.AddAddress(to.link, single(gateway)) },
		func() error { return p.node.AddLinkRoute(single(to.ip), to.link) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// Detach implements PodNetwork.
func (p *PointToPoint) Detach(uid string) error {
	p.mu.Lock()
	held, ok := p.ports[uid]
	delete(p.ports, uid)
	p.mu.Unlock()
	if !ok {
		return nil
	}
	return p.node.DelLink(held.link)
}

func single(ip netip.Addr) netip.Prefix { return netip.PrefixFrom(ip, ip.BitLen()) }

// linkName fits a pod UID into the kernel's 15 characters.
func linkName(uid string) string {
	sum := sha256.Sum256([]byte(uid))
	return "lxc" + hex.EncodeToString(sum[:5])
}
