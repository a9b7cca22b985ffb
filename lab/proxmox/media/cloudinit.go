package media

import (
	"crypto/sha1" //nolint:gosec // PVE's instance ID is a SHA-1
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"sort"
	"strconv"
	"strings"
)

// Source is what the cloud-init drive of a VM is made from.
type Source struct {
	VMID int
	// Config is the VM's configuration: name, ciuser, ipconfigN, netN, ….
	Config map[string]string
	// Nameservers and SearchDomain are the host's own, which PVE writes when
	// the VM has none.
	Nameservers  []string
	SearchDomain string
}

// CloudInit is the content of a cloud-init drive in the NoCloud format.
type CloudInit struct{ User, Network, Meta string }

// NoCloud renders the drive the way PVE does.
func NoCloud(s Source) CloudInit {
	c := CloudInit{User: s.user(), Network: s.network()}
	sum := sha1.Sum([]byte(c.User + c.Network)) //nolint:gosec // as above
	c.Meta = "instance-id: " + hex.EncodeToString(sum[:]) + "\n"
	return c
}

// Disc returns the drive with its files; cloud-init looks for the label.
func (c CloudInit) Disc() *Disc {
	return &Disc{Label: "cidata", Files: map[string][]byte{
		"user-data": []byte(c.User), "meta-data": []byte(c.Meta), "network-config": []byte(c.Network), "vendor-data": {},
	}}
}

func (s Source) user() string {
	var b strings.Builder
	name := s.Config["name"]
	if name == "" {
		name = fmt.Sprintf("VM%d", s.VMID)
	}
	host, _, hasDomain := strings.Cut(name, ".")
	b.WriteString("#cloud-config\nhostname: " + host + "\nmanage_etc_hosts: true\n")
	switch domain := s.searchDomain(); {
	case hasDomain:
		b.WriteString("fqdn: " + name + "\n")
	case domain != "":
		b.WriteString("fqdn: " + name + "." + domain + "\n")
	}
	user := s.Config["ciuser"]
	if user != "" {
		b.WriteString("user: " + user + "\n")
	}
	if user == "root" {
		b.WriteString("disable_root: False\n")
	}
	if password := s.Config["cipassword"]; password != "" {
		b.WriteString("password: " + password + "\n")
	}
	s.writeKeys(&b)
	b.WriteString("chpasswd:\n  expire: False\n")
	if user != "root" {
		b.WriteString("users:\n  - default\n")
	}
	if s.Config["ciupgrade"] != "0" {
		b.WriteString("package_upgrade: true\n")
	}
	return b.String()
}

func (s Source) writeKeys(b *strings.Builder) {
	keys, err := url.PathUnescape(s.Config["sshkeys"])
	if err != nil || strings.TrimSpace(keys) == "" {
		return
	}
	b.WriteString("ssh_authorized_keys:\n")
	for key := range strings.SplitSeq(keys, "\n") {
		if key = strings.TrimSpace(key); key != "" {
			b.WriteString("  - " + key + "\n")
		}
	}
}

func (s Source) searchDomain() string {
	if d := s.Config["searchdomain"]; d != "" {
		return d
	}
	return s.SearchDomain
}

func (s Source) network() string {
	var b strings.Builder
	b.WriteString("version: 1\nconfig:\n")
	for _, id := range s.configured() {
		fmt.Fprintf(&b, "    - type: physical\n      name: eth%s\n      mac_address: '%s'\n      subnets:\n", id, strings.ToLower(macOf(s.Config["net"+id])))
		writeSubnets(&b, fields(s.Config["ipconfig"+id]))
	}
	servers := strings.FieldsFunc(s.Config["nameserver"], func(r rune) bool { return r == ' ' || r == ',' || r == ';' })
	if len(servers) == 0 {
		servers = s.Nameservers
	}
	domain := s.searchDomain()
	if len(servers) == 0 && domain == "" {
		return b.String()
	}
	b.WriteString("    - type: nameserver\n")
	writeList(&b, "address", servers)
	if domain != "" {
		writeList(&b, "search", strings.Fields(domain))
	}
	return b.String()
}

func writeList(b *strings.Builder, key string, values []string) {
	if len(values) == 0 {
		return
	}
	b.WriteString("      " + key + ":\n")
	for _, v := range values {
		b.WriteString("      - '" + v + "'\n")
	}
}

// configured lists the N that have both netN and ipconfigN, in PVE's order.
func (s Source) configured() []string {
	var ids []string
	for key := range s.Config {
		id, ok := strings.CutPrefix(key, "net")
		if _, err := strconv.Atoi(id); ok && err == nil && s.Config["ipconfig"+id] != "" {
			ids = append(ids, id)
		}
	}
	sort.Strings(ids)
	return ids
}

func writeSubnets(b *strings.Builder, ip map[string]string) {
	switch {
	case ip["ip"] == "dhcp":
		b.WriteString("      - type: dhcp4\n")
	case ip["ip"] != "":
		if p, err := netip.ParsePrefix(ip["ip"]); err == nil {
			mask := net.IP(net.CIDRMask(p.Bits(), 32)).String()
			fmt.Fprintf(b, "      - type: static\n        address: '%s'\n        netmask: '%s'\n", p.Addr(), mask)
			writeGateway(b, ip["gw"])
		}
	}
	switch {
	case ip["ip6"] == "auto":
		b.WriteString("      - type: ipv6_slaac\n")
	case ip["ip6"] == "dhcp":
		b.WriteString("      - type: dhcp6\n")
	case ip["ip6"] != "":
		fmt.Fprintf(b, "      - type: static6\n        address: '%s'\n", ip["ip6"])
		writeGateway(b, ip["gw6"])
	}
}

func writeGateway(b *strings.Builder, gateway string) {
	if gateway != "" {
		fmt.Fprintf(b, "        gateway: '%s'\n", gateway)
	}
}

func fields(text string) map[string]string {
	out := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		if key, value, ok := strings.Cut(part, "="); ok {
			out[key] = value
		}
	}
	return out
}

// macOf finds the address in "virtio=BC:24:11:…,bridge=vmbr0".
func macOf(text string) string {
	for part := range strings.SplitSeq(text, ",") {
		_, value, _ := strings.Cut(part, "=")
		if _, err := net.ParseMAC(value); err == nil {
			return value
		}
	}
	return ""
}
