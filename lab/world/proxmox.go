package world

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"sync"

	"golang.org/x/crypto/ssh"

	"aether.internal/aether/lab/envoyvm"
	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/hypervisor"
	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/proxmox"
	"aether.internal/aether/lab/proxmox/access"
	"aether.internal/aether/lab/registry"
	"aether.internal/aether/lab/talos"
)

// What the operator prepared on the hosts; examples/site.yaml states it.
const (
	proxmoxUser  = "aether@pve"
	proxmoxToken = proxmoxUser + "!aether"
	sshUser      = "root" // only root may flush neighbours
	workerBase   = 901    // template of the first host; the second has the next
	proxyBase    = 911
)

// Program of the proxy image, among the product's binaries.
const agentBinary = "agent"

// startProxmox starts the hosts with their templates, and the hypervisor that
// powers machines on.
func (w *World) startProxmox(context.Context) error {
	log, err := w.logger(partProxmox)
	if err != nil {
		return err
	}
	if err := w.startHypervisor(); err != nil {
		return err
	}
	public, private, err := sshKey()
	if err != nil {
		return err
	}
	cfg := w.proxmoxConfig()
	cfg.Log, cfg.AuthorizedKeys = log, []ssh.PublicKey{public}
	cluster, err := proxmox.New(cfg)
	if err != nil {
		return err
	}
	w.Proxmox = cluster
	w.onStop(func() error { cluster.Close(); return nil })
	token, err := cluster.Token(access.Token{ID: proxmoxToken})
	if err != nil {
		return fmt.Errorf("token: %w", err)
	}
	w.access.set(proxmoxToken+"="+token, private)
	w.secrets.add("Proxmox token "+proxmoxToken, token)
	w.secrets.add("SSH key of "+sshUser, string(private))
	return nil
}

// startHypervisor makes what powers machines on, with the systems that are on
// the templates' disks.
func (w *World) startHypervisor() error {
	guests, err := w.logger("guests")
	if err != nil {
		return err
	}
	proxies, err := envoyvm.New(envoyvm.Config{
		Agent: filepath.Join(w.opts.Product, agentBinary), Envoy: w.opts.Self,
		Containers: w.Containers, Clock: w.Clock, Log: guests,
	})
	if err != nil {
		return err
	}
	w.Hypervisor = hypervisor.New(w.Fabric, map[string]hypervisor.System{
		talos.OS: talos.New(talos.Config{
			Clock: w.Clock, Faults: w.faults, Containers: w.Containers, Programs: w.images(),
			PublicCAs: w.Registry.PublicCAPEM(), Log: guests,
		}),
		envoyvm.OS: proxies,
	}, guests, filepath.Join(w.opts.Dir, "run", "machines"))
	w.onStop(func() error { w.Hypervisor.Close(); return nil })
	return nil
}

// proxmoxConfig is the origin's cluster with the template numbers of
// examples/site.yaml.
func (w *World) proxmoxConfig() proxmox.Config {
	cfg := proxmox.HomeLab(
		machine.Image{OS: talos.OS, Version: registry.TalosVersion, Platform: "nocloud", Agent: true},
		machine.Image{OS: envoyvm.OS, Version: "v1", Agent: true},
	)
	tenant := map[string]string{"pv1-1": "10.1.1.2/24", "pv1-2": "10.1.1.3/24"}
	for i := range cfg.Nodes {
		for j, b := range cfg.Nodes[i].Bridges {
			if b.Name == "vmbr1" {
				cfg.Nodes[i].Bridges[j].CIDR = tenant[cfg.Nodes[i].Name]
			}
		}
	}
	numbers := map[string]int{talos.OS: workerBase, envoyvm.OS: proxyBase}
	for i, t := range cfg.Templates {
		cfg.Templates[i].VMID = numbers[t.Image.OS]
		numbers[t.Image.OS]++
	}
	cfg.Hypervisor, cfg.Clock, cfg.Faults = w.Hypervisor, w.Clock, w.faults
	cfg.Listen = func(node, address string) (net.Listener, error) {
		host, ok := w.Fabric.Host(node)
		if !ok {
			return nil, fmt.Errorf("host %q is not in the fabric", node)
		}
		return host.Namespace().Listen("tcp", address)
	}
	cfg.FlushNeighbour = func(node, device string, ip netip.Addr) error {
		host, ok := w.Fabric.Host(node)
		if !ok {
			return fmt.Errorf("host %q is not in the fabric", node)
		}
		return host.Namespace().FlushNeighbour(device, ip)
	}
	cfg.AccessLog = w.access.record
	return cfg
}

// sshKey makes the key that opens the hosts' door.
func sshKey() (ssh.PublicKey, []byte, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make SSH key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(private, "aether lab")
	if err != nil {
		return nil, nil, fmt.Errorf("encode SSH key: %w", err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return nil, nil, fmt.Errorf("encode SSH key: %w", err)
	}
	return key, pem.EncodeToMemory(block), nil
}

// accessLog keeps how the product gets at Proxmox, and what was asked there.
type accessLog struct {
	mu      sync.Mutex
	token   string
	sshKey  []byte
	records []proxmox.AccessRecord
}

func (a *accessLog) set(token string, sshKey []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token, a.sshKey = token, sshKey
}

func (a *accessLog) credentials() (token string, sshKey []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.token, a.sshKey
}

// maxRecords bounds the memory of a lab that is kept for long.
const maxRecords = 100_000

func (a *accessLog) record(r proxmox.AccessRecord) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.records) == maxRecords {
		a.records = a.records[maxRecords/2:]
	}
	a.records = append(a.records, r)
}

// ProxmoxRequests returns what was asked of the Proxmox hosts so far, the
// oldest first.
func (w *World) ProxmoxRequests() []proxmox.AccessRecord {
	w.access.mu.Lock()
	defer w.access.mu.Unlock()
	return append([]proxmox.AccessRecord(nil), w.access.records...)
}

// SetHost switches a Proxmox host off, as a power cut, or on again. What is on
// it loses its power, and nobody reaches its address.
func (w *World) SetHost(name string, on bool) error {
	if w.Fabric == nil || w.Proxmox == nil {
		return fmt.Errorf("host %s: this lab was started without Proxmox", name)
	}
	host, ok := w.Fabric.Host(name)
	if !ok {
		return fmt.Errorf("host %q is not a Proxmox host of the lab; `lab status` lists them", name)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	id, off := w.hostFaults[name]
	switch {
	case on && off:
		w.faults.Clear(id)
		delete(w.hostFaults, name)
	case !on && !off:
		id, err := w.faults.Inject(faults.Fault{Kind: faults.HostOff, Place: "pve/host/" + name})
		if err != nil {
			return err
		}
		w.hostFaults[name] = id
	}
	return host.SetDown(!on)
}
