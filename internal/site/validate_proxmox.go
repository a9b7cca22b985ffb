package site

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

const (
	highestVMID         = 999_999_999
	firstTemplateVMID   = 100
	highestTemplateVMID = LowestVMID - 1
)

func (r *report) proxmox(s *Site) {
	r.atLeastOne("spec.proxmox", len(s.Spec.Proxmox), "Proxmox cluster")
	names := make([]string, 0, len(s.Spec.Proxmox))
	for i := range s.Spec.Proxmox {
		names = append(names, s.Spec.Proxmox[i].Name)
		r.cluster(fmt.Sprintf("spec.proxmox[%d]", i), &s.Spec.Proxmox[i], s.Spec.Networks)
	}
	r.unique("spec.proxmox", names)
}

func (r *report) cluster(field string, c *Cluster, networks []Network) {
	r.label(field+".name", c.Name)
	r.atLeastOne(field+".endpoints", len(c.Endpoints), "API address, as https://192.168.0.8:8006")
	for i, endpoint := range c.Endpoints {
		r.endpoint(fmt.Sprintf("%s.endpoints[%d]", field, i), endpoint)
	}
	r.secret(field+".token", c.Token)
	r.tls(field+".tls", c.TLS)
	if c.SSH != nil {
		r.ssh(field+".ssh", c.SSH)
	}
	r.between(field+".vmids.from", c.VMIDs.From, LowestVMID, highestVMID, "VMIDs below 1000 are for templates and never written")
	r.between(field+".vmids.to", c.VMIDs.To, LowestVMID, highestVMID, "")
	if c.VMIDs.From > c.VMIDs.To {
		r.add(field+".vmids", fmt.Sprintf("%d to %d", c.VMIDs.From, c.VMIDs.To), "from at most to", "exchange them")
	}
	if c.Pool != "" && !regexp.MustCompile(`^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+){0,2}$`).MatchString(c.Pool) {
		r.add(field+".pool", shown(c.Pool), "the ID of a Proxmox pool", "correct it or leave it out")
	}
	r.hosts(field, c, networks)
}

func (r *report) endpoint(field, endpoint string) {
	const allowed = "https://<host>:<port> without a path"
	parsed, err := url.Parse(endpoint)
	switch {
	case err != nil || parsed.Host == "":
		r.add(field, shown(endpoint), allowed, "as https://192.168.0.8:8006")
	case parsed.User != nil:
		r.add(field, "an address with a user name in it", allowed, "state the credentials under token")
	case parsed.Scheme != "https":
		r.add(field, shown(endpoint), allowed, "the API token must not travel unencrypted")
	case strings.Trim(parsed.Path, "/") != "" || parsed.RawQuery != "" || parsed.Fragment != "":
		r.add(field, shown(endpoint), allowed, "leave out what follows the port")
	}
}

func (r *report) tls(field string, t TLS) {
	if t.CA == nil && len(t.Fingerprints) == 0 {
		r.add(field, "neither ca nor fingerprints", "one of them", "copy /etc/pve/pve-root-ca.pem from a host and name it in ca.file")
	}
	r.certificates(field+".ca", t.CA)
	pattern := regexp.MustCompile(`^([0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2}$`)
	for i, print := range t.Fingerprints {
		if !pattern.MatchString(print) {
			r.add(fmt.Sprintf("%s.fingerprints[%d]", field, i), shown(print), "32 bytes as AA:BB:…, SHA-256",
				"on the host: openssl x509 -in /etc/pve/local/pve-ssl.pem -noout -fingerprint -sha256")
		}
	}
}

func (r *report) ssh(field string, door *SSH) {
	r.required(field+".user", door.User, "a user name")
	r.between(field+".port", door.Port, 1, 65535, "")
	r.secret(field+".key", door.Key)
	// Load keeps the file's name beside the lines it read from it.
	if door.KnownHostsFile == "" || len(door.KnownHosts) == 0 {
		r.exactlyOne(field, map[string]bool{"knownHosts": len(door.KnownHosts) > 0, "knownHostsFile": door.KnownHostsFile != ""})
	}
}

func (r *report) hosts(field string, c *Cluster, networks []Network) {
	r.atLeastOne(field+".hosts", len(c.Hosts), "host")
	names := make([]string, 0, len(c.Hosts))
	templates := map[int]string{}
	for i := range c.Hosts {
		host, at := &c.Hosts[i], fmt.Sprintf("%s.hosts[%d]", field, i)
		names = append(names, host.Name)
		r.host(at, host)
		r.template(at+".templates.worker", host.Templates.Worker, templates)
		r.template(at+".templates.proxy", host.Templates.Proxy, templates)
		for j := range networks {
			n := &networks[j]
			if n.On(host.Name) && n.Bridge != "" && !slices.Contains(host.Bridges, n.Bridge) {
				r.add(at+".bridges", strings.Join(host.Bridges, ", "), fmt.Sprintf("a list with %s, the bridge of network %s", n.Bridge, n.Name),
					"add the bridge, or leave this host out of the network's hosts")
			}
		}
	}
	r.unique(field+".hosts", names)
}

func (r *report) host(field string, h *Host) {
	if !regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`).MatchString(h.Name) {
		r.add(field+".name", shown(h.Name), "a node name as pvesh get /nodes shows it, without a domain", "state the short name")
	}
	if !h.Address.Is4() {
		r.add(field+".address", shown(h.Address), "the host's IPv4 address", "fill the field")
	}
	r.between(field+".reserve.memoryMiB", h.Reserve.MemoryMiB, 0, 64<<20, "")
	r.between(field+".reserve.cores", h.Reserve.Cores, 0, 8192, "")
	r.between(field+".vcpusPerCore", h.VCPUsPerCore, 1, 32, "")
	r.required(field+".storage.disks", h.Storage.Disks, "the name of a storage with content images")
	r.required(field+".storage.iso", h.Storage.ISO, "the name of a storage with content iso")
	r.oneOf(field+".storage.cloneMode", string(h.Storage.CloneMode), []string{string(LinkedClone), string(FullClone)}, "choose one")
	r.between(field+".storage.cloneSlots", h.Storage.CloneSlots, 1, 16, "more clones at once run into Proxmox's lock time-outs")
	r.atLeastOne(field+".bridges", len(h.Bridges), "bridge")
	for i, bridge := range h.Bridges {
		r.bridge(fmt.Sprintf("%s.bridges[%d]", field, i), bridge)
	}
}

func (r *report) bridge(field, name string) {
	if !regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_.]{0,14}$`).MatchString(name) {
		r.add(field, shown(name), "the name of a bridge, as vmbr0, at most 15 characters", "state it as pvesh get /nodes/<node>/network shows it")
	}
}

// template checks a template's VMID and that no other host of the cluster has
// it: VMIDs are cluster-wide.
func (r *report) template(field string, vmid int, seen map[int]string) {
	if vmid < firstTemplateVMID || vmid > highestTemplateVMID {
		r.add(field, shown(vmid), fmt.Sprintf("%d to %d", firstTemplateVMID, highestTemplateVMID), "give templates a VMID below 1000; VMs start at 1000")
		return
	}
	if first, ok := seen[vmid]; ok {
		r.add(field, shown(vmid)+", which "+first+" has too", "a VMID used once in the cluster", "VMIDs are cluster-wide: make a copy of the template on each host")
		return
	}
	seen[vmid] = field
}
