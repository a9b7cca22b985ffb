package cilium

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// Settings are what Aether decides about a tenant's Cilium.
type Settings struct {
	Tenant string
	// APIHost and APIPort are the proxy's: Cilium cannot use the cluster's
	// own service address before it works.
	APIHost netip.Addr
	APIPort int
	// NetworkMTU is the MTU of the tenant's network. The tunnel's overhead is
	// taken off it.
	NetworkMTU int
	// Version of the images, as v1.20.2.
	Version string
	// AgentDigest and OperatorDigest pin the images; empty: by tag.
	AgentDigest, OperatorDigest string
	// Extra is laid over these values. Keys that are unknown, or that Aether
	// computes, are refused.
	Extra map[string]any
}

// tunnelOverhead is what VXLAN adds to each packet.
const tunnelOverhead = 50

// TaintKey is the taint a node carries until its agent is ready.
const TaintKey = "node.cilium.io/agent-not-ready"

// ValuesError says what is wrong with a value of the site's.
type ValuesError struct{ Key, Found, Allowed, Do string }

// Error tells the finding in one line.
func (e *ValuesError) Error() string {
	return fmt.Sprintf("cilium value %s: found %s; allowed: %s; %s", e.Key, e.Found, e.Allowed, e.Do)
}

// Values renders the chart's values.
func Values(s Settings) (map[string]any, error) {
	if !s.APIHost.IsValid() || s.APIPort <= 0 || s.APIPort > 65535 {
		return nil, &ValuesError{"k8sServiceHost", fmt.Sprintf("%s, port %d", s.APIHost, s.APIPort), "the proxy's address and port", "lease the proxy's address first"}
	}
	if s.NetworkMTU < 1280+tunnelOverhead {
		return nil, &ValuesError{"MTU", fmt.Sprint(s.NetworkMTU), fmt.Sprintf("a network MTU of at least %d", 1280+tunnelOverhead), "raise the MTU of the tenant's network"}
	}
	values := base(s)
	if err := checkExtra("", s.Extra); err != nil {
		return nil, err
	}
	overlay(values, s.Extra)
	return values, checkDigests(values)
}

// base are the values of a Talos worker behind a proxy.
func base(s Settings) map[string]any {
	return map[string]any{
		"cluster":              map[string]any{"name": clusterName(s.Tenant)},
		"k8sServiceHost":       s.APIHost.String(),
		"k8sServicePort":       s.APIPort,
		"kubeProxyReplacement": true,
		"MTU":                  s.NetworkMTU - tunnelOverhead,
		"image":                image(s.Version, "digest", s.AgentDigest),
		// Kamaji's controller-manager gives each node its pod range.
		"ipam": map[string]any{"mode": "kubernetes"},
		// Talos forbids modules to be loaded, mounts these file systems
		// itself, and has no systemd.
		"securityContext": map[string]any{"capabilities": map[string]any{
			"ciliumAgent": []any{
				"CHOWN", "KILL", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "SYS_ADMIN",
				"SYS_RESOURCE", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID",
			},
			"cleanCiliumState": []any{"NET_ADMIN", "SYS_ADMIN", "SYS_RESOURCE"},
		}},
		"cgroup":    map[string]any{"autoMount": map[string]any{"enabled": false}, "hostRoot": "/sys/fs/cgroup"},
		"sysctlfix": map[string]any{"enabled": false},
		// Talos forwards DNS on the host, which eBPF host routing passes by.
		"bpf": map[string]any{"autoMount": map[string]any{"enabled": false}, "hostLegacyRouting": true},
		// With Hubble on, each render makes new certificates.
		"hubble": map[string]any{"enabled": false},
		"operator": map[string]any{
			// Two replicas never fit on one node.
			"replicas": 1,
			"image":    image(s.Version, "genericDigest", s.OperatorDigest),
			// A pool's taint on every node would keep the operator, and so
			// Cilium, from ever starting.
			"tolerations": []any{map[string]any{"operator": "Exists"}},
			// Tolerating everything, the operator comes back to a node that is
			// being drained, and the drain of a tenant's only node never ends.
			"podLabels":   map[string]any{clusterv1.PodDrainLabel: "skip"},
			"rollOutPods": true,
		},
		// Without these a changed configuration restarts nothing.
		"rollOutCiliumPods": true,
		"envoy":             map[string]any{"rollOutPods": true},
	}
}

func image(tag, digestKey, digest string) map[string]any {
	values := map[string]any{"tag": tag}
	if digest != "" {
		values[digestKey], values["useDigest"] = digest, true
	}
	return values
}

// clusterName is the tenant's name in at most 32 characters.
func clusterName(tenant string) string {
	const most = 32
	if len(tenant) <= most {
		return tenant
	}
	sum := sha256.Sum256([]byte(tenant))
	return strings.TrimRight(tenant[:most-9], "-") + "-" + hex.EncodeToString(sum[:4])
}

// computed are the keys only Aether sets.
func computed() []string {
	return []string{"k8sServiceHost", "k8sServicePort", "kubeProxyReplacement", "MTU", "ipam", "cluster.name", "agentNotReadyTaintKey", "upgradeCompatibility"}
}

// allowed are the keys a site may set, each with everything below it.
func allowed() []string {
	return []string{
		"bpf.hostLegacyRouting", "bpf.masquerade", "cluster.id", "debug", "devices", "envoy", "gatewayAPI", "hubble.enabled",
		"image", "imagePullSecrets", "ipv4NativeRoutingCIDR", "k8sClientRateLimit", "l2NeighDiscovery", "l2announcements",
		"loadBalancer", "operator.affinity", "operator.image", "operator.nodeSelector", "operator.podDisruptionBudget",
		"operator.replicas", "operator.resources", "operator.updateStrategy", "priorityClassName", "prometheus", "operator.prometheus",
		"resources", "routingMode", "tunnelProtocol", "updateStrategy",
	}
}

// checkExtra refuses keys that are unknown or Aether's own.
func checkExtra(path string, extra map[string]any) error {
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		full := strings.TrimPrefix(path+"."+key, ".")
		switch within := relation(full, computed()); {
		case within == inside:
			return &ValuesError{full, fmt.Sprint(extra[key]), "nothing", "Aether computes it; leave it out"}
		case relation(full, allowed()) == inside:
			continue
		case relation(full, allowed()) == above || within == above:
			below, ok := extra[key].(map[string]any)
			if !ok {
				return &ValuesError{full, fmt.Sprint(extra[key]), "a mapping", "write the keys below it"}
			}
			if err := checkExtra(full, below); err != nil {
				return err
			}
		default:
			return &ValuesError{
				full, "a key Aether does not know", strings.Join(slices.Sorted(slices.Values(allowed())), ", "),
				"correct its spelling: the chart would ignore it in silence",
			}
		}
	}
	return nil
}

type position int

const (
	outside position = iota
	above            // a listed key lies below it
	inside           // it is a listed key or lies below one
)

func relation(key string, listed []string) position {
	result := outside
	for _, one := range listed {
		if key == one || strings.HasPrefix(key, one+".") {
			return inside
		}
		if strings.HasPrefix(one, key+".") {
			result = above
		}
	}
	return result
}

// overlay lays values over others; mappings are merged.
func overlay(under, over map[string]any) {
	for key, value := range over {
		upper, isMap := value.(map[string]any)
		lower, wasMap := under[key].(map[string]any)
		if isMap && wasMap {
			overlay(lower, upper)
			continue
		}
		under[key] = value
	}
}

// checkDigests refuses useDigest without a digest: the chart would render an
// invalid reference and nothing would notice before the kubelet.
func checkDigests(values map[string]any) error {
	for _, one := range []struct {
		path []string
		key  string
	}{{[]string{"image"}, "digest"}, {[]string{"operator", "image"}, "genericDigest"}} {
		at := values
		for _, key := range one.path {
			at, _ = at[key].(map[string]any)
		}
		name := strings.Join(one.path, ".") + "." + one.key
		digest, _ := at[one.key].(string)
		if at["useDigest"] == true && !strings.HasPrefix(digest, "sha256:") {
			return &ValuesError{name, fmt.Sprintf("%q with useDigest", digest), "sha256:<64 hex digits>", "state the digest or leave useDigest out"}
		}
	}
	return nil
}
