package schema

import (
	"encoding/base64"
	"net/netip"
	"strings"
)

const (
	configID = `^[A-Za-z][A-Za-z0-9\-_]+$`
	dnsLabel = `[a-zA-Z0-9]([a-zA-Z0-9\-]*[a-zA-Z0-9])?`
	tagName  = `^(?i)[a-z0-9_][a-z0-9_\-+.]*$`
	volumeID = `^[a-zA-Z][a-zA-Z0-9\-_.]*[a-zA-Z0-9]:.+$`
)

// checkFormat checks one of PVE's named formats. A format that the simulator
// never acts on passes, as it would on a node with a newer schema.
func checkFormat(format, name, text string) string {
	if item, ok := strings.CutSuffix(format, "-list"); ok {
		for _, part := range SplitList(text) {
			if problem := checkFormat(item, name, part); problem != "" {
				return problem
			}
		}
		return ""
	}
	if simple, ok := simpleFormats()[format]; ok {
		if !matches(simple.pattern, text) {
			return strings.ReplaceAll(simple.problem, "%s", text)
		}
		return ""
	}
	switch format {
	case "ip", "ipv4", "ipv6", "address":
		return checkAddress(format, text)
	case "CIDR", "CIDRv4", "CIDRv6":
		return checkCIDR(format, text)
	case "urlencoded":
		if !matches(`^[-%a-zA-Z0-9_.!~*'()]*$`, text) {
			return "invalid urlencoded string: " + text
		}
	case "pve-qm-boot":
		return checkBoot(text)
	case "pve-qm-ipconfig":
		return checkIPConfig(name, text)
	case "pve-qm-smbios1":
		return checkSMBIOS(name, text)
	}
	return ""
}

type simpleFormat struct{ pattern, problem string }

func simpleFormats() map[string]simpleFormat {
	return map[string]simpleFormat{
		"pve-vmid":                 {`^[1-9][0-9]{2,8}$`, "value does not look like a valid VM ID"},
		"pve-node":                 {`^` + dnsLabel + `$`, "value does not look like a valid node name"},
		"pve-storage-id":           {`^(?i)[a-z][a-z0-9\-_.]*[a-z0-9]$`, "storage ID '%s' contains illegal characters"},
		"pve-configid":             {configID, "invalid configuration ID '%s'"},
		"pve-poolid":               {`^[A-Za-z0-9.\-_]+(/[A-Za-z0-9.\-_]+){0,2}$`, "value '%s' does not look like a valid pool name"},
		"dns-name":                 {`^(` + dnsLabel + `\.)*` + dnsLabel + `$`, "value does not look like a valid DNS name"},
		"mac-addr":                 {`^(?i)[a-f0-9][02468ace](:[a-f0-9]{2}){5}$`, "value does not look like a valid unicast MAC address"},
		"pve-tag":                  {tagName, "invalid characters in tag"},
		"pve-volume-id":            {volumeID, "unable to parse volume ID '%s'"},
		"pve-volume-id-or-qm-path": {`^(none|cdrom|/.*|` + strings.Trim(volumeID, "^$") + `)$`, "unable to parse volume ID '%s'"},
		"pve-bridge-id":            {`^[-_.\w]+$`, "invalid bridge ID '%s'"},
		"pve-iface":                {`^(?i)[a-z][a-z0-9_]{1,20}([:.]\d+)?$`, "invalid network interface name '%s'"},
		"pve-startup-order":        {`^(order=\d+|\d+|up=\d+|down=\d+)(,(order=\d+|up=\d+|down=\d+))*$`, "unable to parse startup options"},
		"pve-storage-content":      {`^(none|images|rootdir|iso|vztmpl|backup|snippets|import)$`, "invalid content type '%s'"},
		"disk-size":                {`^\d+(\.\d+)?[KMGT]?$`, "invalid size '%s'"},
		"pve-qm-bootdisk":          {`^(ide|sata|scsi|virtio|efidisk|tpmstate)\d+$`, "invalid boot disk '%s'"},
		"pve-userid":               {`^[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+$`, "value '%s' does not look like a valid user name"},
		"pve-roleid":               {`^[A-Za-z0-9.\-_]+$`, "role ID '%s' contains invalid characters"},
		"pve-tokenid":              {`^[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+![A-Za-z][A-Za-z0-9.\-_]+$`, "value '%s' does not look like a valid token ID"},
		"pve-ha-resource-or-vm-id": {`^((vm|ct):)?[1-9][0-9]{2,8}$`, "unable to parse HA resource ID '%s'"},
	}
}

// SplitList splits a list the way PVE does: at commas, semicolons, NUL and
// white space.
func SplitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool {
		return strings.ContainsRune(",; \x00\t\r\n", r)
	})
}

func checkAddress(format, text string) string {
	a, err := netip.ParseAddr(text)
	switch {
	case format == "address":
		if err != nil && !matches(`^(`+dnsLabel+`\.)*`+dnsLabel+`$`, text) {
			return "value is not a valid address: " + text
		}
		return ""
	case err != nil, format == "ipv4" && !a.Is4(), format == "ipv6" && !a.Is6():
		return "value does not look like a valid " + strings.Replace(format, "ip", "IP", 1) + " address"
	}
	return ""
}

func checkCIDR(format, text string) string {
	p, err := netip.ParsePrefix(text)
	if err != nil || (format == "CIDRv4" && !p.Addr().Is4()) || (format == "CIDRv6" && !p.Addr().Is6()) {
		return "value does not look like a valid network/mask"
	}
	return ""
}

// checkBoot takes "order=scsi0;net0" and the old letters of "legacy=" or bare.
func checkBoot(text string) string {
	if order, ok := strings.CutPrefix(text, "order="); ok {
		for dev := range strings.SplitSeq(order, ";") {
			if dev != "" && !matches(`^(ide[0-3]|sata[0-5]|scsi([0-9]|[12][0-9]|30)|virtio([0-9]|1[0-5])|(net|hostpci|usb)[0-9]+)$`, dev) {
				return "invalid boot device '" + dev + "'"
			}
		}
		return ""
	}
	if !matches(`^(legacy=)?[acdn]{1,4}$`, text) {
		return "invalid boot order '" + text + "'"
	}
	return ""
}

func checkIPConfig(name, text string) string {
	seen := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			return "format error\n" + "value without key, but schema does not define a default key"
		}
		problem := ""
		switch key {
		case "ip":
			if value != "dhcp" {
				problem = checkCIDR("CIDRv4", value)
			}
		case "ip6":
			if value != "dhcp" && value != "auto" {
				problem = checkCIDR("CIDRv6", value)
			}
		case "gw":
			problem = checkAddress("ipv4", value)
		case "gw6":
			problem = checkAddress("ipv6", value)
		default:
			return "format error\n" + name + "." + key + ": " + errUnknown
		}
		if problem != "" {
			return "format error\n" + name + "." + key + ": invalid format - " + problem
		}
		seen[key] = value
	}
	for gateway, address := range map[string]string{"gw": "ip", "gw6": "ip6"} {
		switch {
		case seen[gateway] == "":
		case seen[address] == "":
			return "gateway specified without specifying an IP address"
		case seen[address] == "dhcp":
			return "gateway specified together with DHCP"
		}
	}
	return ""
}

func checkSMBIOS(name, text string) string {
	fields := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			return "format error\nvalue without key, but schema does not define a default key"
		}
		fields[key] = value
	}
	for key, value := range fields {
		switch key {
		case "uuid":
			if !matches(`^(?i)[a-f0-9]{8}(-[a-f0-9]{4}){3}-[a-f0-9]{12}$`, value) {
				return "format error\n" + name + ".uuid: value does not match the regex pattern"
			}
		case "base64":
			if value != "0" && value != "1" {
				return "format error\n" + name + ".base64: type check ('boolean') failed - got '" + value + "'"
			}
		case "version", "serial", "manufacturer", "product", "sku", "family":
			if _, err := base64.StdEncoding.DecodeString(value); fields["base64"] == "1" && err != nil {
				return "format error\n" + name + "." + key + ": value does not match the regex pattern"
			}
		default:
			return "format error\n" + name + "." + key + ": " + errUnknown
		}
	}
	return ""
}
