package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"aether.internal/aether/lab/network"
)

// answerTime is how long an address may take to answer at all.
const answerTime = time.Second

// answers tells whether a host answers at the address, be it that nothing
// listens on the port.
func answers(ctx context.Context, from *network.Namespace, address string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := from.DialContext(ctx, "tcp", address)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", address, err)
	}
	return conn.Close()
}

// hostNet is the network stack of a Proxmox host.
func (t *T) hostNet(name string) (*network.Namespace, error) {
	host, ok := t.World.Fabric.Host(name)
	if !ok {
		return nil, unexpected("host %s is not in the lab", name)
	}
	return host.Namespace(), nil
}

// neighbour is the MAC that a machine has in its ARP cache for an address.
func neighbour(of *network.Namespace, ip string) (net.HardwareAddr, error) {
	entries, err := of.Neighbours()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.IP == netip.MustParseAddr(ip) && len(e.MAC) > 0 {
			return e.MAC, nil
		}
	}
	return nil, unexpected("%s is not in the ARP cache of %s", ip, of.Name())
}

// guestInterface is an interface as the guest agent reports it.
type guestInterface struct {
	Name      string `json:"name"`
	MAC       string `json:"hardware-address"`
	Addresses []struct {
		Address string `json:"ip-address"`
	} `json:"ip-addresses"`
}

// has tells whether the interface has the address.
func (i guestInterface) has(address string) bool {
	for _, a := range i.Addresses {
		if a.Address == address {
			return true
		}
	}
	return false
}

// guestInterfaces waits for the guest agent of a VM and asks it for the
// interfaces, by name.
func guestInterfaces(ctx context.Context, p *pvesh, node string, vmid int) (map[string]guestInterface, error) {
	var report struct {
		Result []guestInterface `json:"result"`
	}
	path := fmt.Sprintf("/nodes/%s/qemu/%d/agent/network-get-interfaces", node, vmid)
	err := eventually(ctx, fmt.Sprintf("the guest agent of VM %d", vmid), func(ctx context.Context) error {
		return p.get(ctx, path, &report)
	})
	if err != nil {
		return nil, err
	}
	interfaces := map[string]guestInterface{}
	for _, i := range report.Result {
		interfaces[i.Name] = i
	}
	return interfaces, nil
}

// sameMAC compares a MAC with one in text.
func sameMAC(mac net.HardwareAddr, text string) bool { return strings.EqualFold(mac.String(), text) }

// console waits until a VM's console has a text that many times.
func (t *T) console(ctx context.Context, host string, vmid int, text string, times int) error {
	return eventually(ctx, fmt.Sprintf("%q on the console of VM %d", text, vmid), func(context.Context) error {
		files, err := filepath.Glob(filepath.Join(t.dir, "run", "machines", "*", fmt.Sprintf("%s-%d-*.log", host, vmid)))
		if err != nil {
			return fmt.Errorf("look for the console: %w", err)
		}
		seen := 0
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("read console: %w", err)
			}
			seen += bytes.Count(data, []byte(text))
		}
		if seen < times {
			return unexpected("seen %d of %d times in %v", seen, times, files)
		}
		return nil
	})
}
