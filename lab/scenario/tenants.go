package scenario

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"aether.internal/aether/internal/talos"
)

// versionSkew: the kubelet that the node image brings is not one that the
// control plane supports, and nobody says so.
func versionSkew() Scenario {
	const vmid, address, supported = 3211, "10.1.1.231", 3
	naive := func(ctx context.Context, t *T) (string, error) {
		h, err := t.handMadeTenant(ctx)
		if err != nil {
			return "", err
		}
		if err := t.rawWorker(ctx, h, vmid, address); err != nil {
			return "", err
		}
		node, err := h.node(ctx, "by-hand-3211")
		if err != nil {
			return "", err
		}
		server, err := h.api.Discovery().ServerVersion()
		if err != nil {
			return "", fmt.Errorf("version of the API server: %w", err)
		}
		kubelet := node.Status.NodeInfo.KubeletVersion
		apart, err := minorsApart(server.GitVersion, kubelet)
		if err != nil {
			return "", err
		}
		if apart <= supported {
			return "", unexpected("kubelet %s with API server %s", kubelet, server.GitVersion)
		}
		return fmt.Sprintf("a node with kubelet %s joined an API server %s: %d minor versions apart, %d are supported", kubelet, server.GitVersion, apart, supported), nil
	}
	aether := func(ctx context.Context, t *T) (string, error) {
		if err := t.refusesConfiguration(ctx, vmid, address, "machine.kubelet.image"); err != nil {
			return "", err
		}
		shared, err := t.sharedTenant(ctx)
		if err != nil {
			return "", err
		}
		node, err := shared.onlyNode(ctx)
		if err != nil {
			return "", err
		}
		server, err := shared.api.Discovery().ServerVersion()
		if err != nil {
			return "", fmt.Errorf("version of the API server: %w", err)
		}
		if node.Status.NodeInfo.KubeletVersion != server.GitVersion {
			return "", unexpected("kubelet %s with API server %s", node.Status.NodeInfo.KubeletVersion, server.GitVersion)
		}
		return passed(), nil
	}
	return origin("version-skew", "a worker runs the kubelet of its control plane's version", nil, naive, aether)
}

// minorsApart counts the minor versions between two versions of Kubernetes.
func minorsApart(a, b string) (int, error) {
	minor := func(version string) (int, error) {
		parts := strings.Split(version, ".")
		if len(parts) < 2 {
			return 0, unexpected("version %q", version)
		}
		return strconv.Atoi(parts[1])
	}
	first, err := minor(a)
	second, secondErr := minor(b)
	return max(first-second, second-first), errors.Join(err, secondErr)
}

// caMismatch: the configuration has the CA that talosctl generated, the tenant
// has Kamaji's. The kubelet cannot tell anybody.
func caMismatch() Scenario {
	const vmid, address = 3221, "10.1.1.232"
	return origin("ca-mismatch", "a worker trusts the tenant's own CA", nil,
		silentWorker(vmid, address, "certificate signed by unknown authority"), joinedWorker(vmid, address, "cluster.ca.crt"))
}

// bootstrapToken: the configuration has a token that the tenant does not know.
func bootstrapToken() Scenario {
	const vmid, address = 3231, "10.1.1.233"
	return origin("bootstrap-token", "a worker has a token of its own, which the tenant knows and which is deleted after the join", nil,
		silentWorker(vmid, address, "Unauthorized"), joinedWorker(vmid, address, "cluster.token"))
}

// silentWorker is a naive half: the node never joins, and only its console,
// which nobody sees, says why.
func silentWorker(vmid int, address, says string) half {
	return func(ctx context.Context, t *T) (string, error) {
		h, err := t.handMadeTenant(ctx)
		if err != nil {
			return "", err
		}
		if err := t.rawWorker(ctx, h, vmid, address); err != nil {
			return "", err
		}
		if err := t.console(ctx, "pv1-1", vmid, says, 1); err != nil {
			return "", err
		}
		if err := h.noNode(ctx, fmt.Sprintf("by-hand-%d", vmid)); err != nil {
			return "", err
		}
		return fmt.Sprintf("the node never joins; only its console says %q", says), nil
	}
}

// joinedWorker is a half of Aether: it refuses the naive half's configuration
// for that field, and the worker that it configures itself is in the tenant.
func joinedWorker(vmid int, address, field string) half {
	return func(ctx context.Context, t *T) (string, error) {
		if err := t.refusesConfiguration(ctx, vmid, address, field); err != nil {
			return "", err
		}
		shared, err := t.sharedTenant(ctx)
		if err != nil {
			return "", err
		}
		node, err := shared.onlyNode(ctx)
		if err != nil {
			return "", err
		}
		if err := shared.noTokens(ctx); err != nil {
			return "", err
		}
		return passed(), ready(node)
	}
}

// refusesConfiguration is an error if Aether's own check would send the naive
// half's configuration to a worker of the shared tenant.
func (t *T) refusesConfiguration(ctx context.Context, vmid int, address, field string) error {
	h, err := t.handMadeTenant(ctx)
	if err != nil {
		return err
	}
	configuration, err := t.rawConfiguration(ctx, h, vmid, address)
	if err != nil {
		return err
	}
	want, err := t.wantedBy(ctx, h, vmid, address)
	if err != nil {
		return err
	}
	var fields []string
	for _, finding := range talos.Check(configuration, want) {
		if finding.Field == field && finding.Fix != "" {
			t.Logf("Aether does not send it: %s", finding)
			return nil
		}
		fields = append(fields, finding.Field)
	}
	return unexpected("the check finds nothing about %s, but %v", field, fields)
}

// storageNIC: without a configuration for the second card there is no way to
// the storage network.
func storageNIC() Scenario {
	const vmid, address, storage = 3241, "10.1.1.234", "10.1.2.234"
	naive := func(ctx context.Context, t *T) (string, error) {
		h, err := t.handMadeTenant(ctx)
		if err != nil {
			return "", err
		}
		if err := t.rawWorker(ctx, h, vmid, address); err != nil {
			return "", err
		}
		if _, err := h.node(ctx, "by-hand-3241"); err != nil {
			return "", err
		}
		p, err := t.pvesh()
		if err != nil {
			return "", err
		}
		interfaces, err := guestInterfaces(ctx, p, "pv1-1", vmid)
		if err != nil {
			return "", err
		}
		if len(interfaces["eth1"].Addresses) > 0 {
			return "", unexpected("the storage card has addresses: %+v", interfaces["eth1"])
		}
		return "the node joins, and has no address on vmbr2: it cannot reach Ceph", nil
	}
	aether := func(ctx context.Context, t *T) (string, error) {
		shared, err := t.sharedTenant(ctx)
		if err != nil {
			return "", err
		}
		machine, err := t.onlyWorker(ctx, shared.name)
		if err != nil {
			return "", err
		}
		ceph, err := t.storageMember()
		if err != nil {
			return "", err
		}
		for _, nic := range machine.Spec.NICs {
			if nic.Network == "storage" {
				host, _, _ := strings.Cut(nic.Address, "/")
				return passed(), answers(ctx, ceph, net.JoinHostPort(host, "10250"))
			}
		}
		return "", unexpected("the worker has no card on the storage network: %+v", machine.Spec.NICs)
	}
	return origin("storage-nic", "a worker has an address on the storage network", nil, naive, aether)
}

// advertiseAddress: without an advertised address the API server tells its
// nodes to find it at an address of the management cluster.
func advertiseAddress() Scenario {
	naive := func(ctx context.Context, t *T) (string, error) {
		h, err := t.applyControlPlane(ctx, t.Testdata("tenantcontrolplane.yaml"), "advertised")
		if err != nil {
			return "", err
		}
		endpoint, err := advertised(ctx, h.api)
		if err != nil {
			return "", err
		}
		if err := t.tenantSideAnswers(ctx, endpoint); err == nil {
			return "", unexpected("%s answers on the tenants' network", endpoint)
		}
		return fmt.Sprintf("the API server advertises %s, which no worker reaches", endpoint), nil
	}
	aether := func(ctx context.Context, t *T) (string, error) {
		shared, err := t.sharedTenant(ctx)
		if err != nil {
			return "", err
		}
		endpoint, err := advertised(ctx, shared.api)
		if err != nil {
			return "", err
		}
		if endpoint != net.JoinHostPort(hostOf(shared.config.Host), "6443") {
			return "", unexpected("the API server advertises %s, the proxy is at %s", endpoint, shared.config.Host)
		}
		return passed(), t.tenantSideAnswers(ctx, endpoint)
	}
	return origin("advertise-address", "the API server advertises the proxy's address from birth", nil, naive, aether)
}

// nodeRestriction: what Kamaji leaves out lets one node's certificate make
// another node.
func nodeRestriction() Scenario {
	naive := func(ctx context.Context, t *T) (string, error) {
		h, err := t.handMadeTenant(ctx)
		if err != nil {
			return "", err
		}
		if err := createNodeAs(ctx, h.config, h.api, t.Testdata("node.yaml")); err != nil {
			return "", fmt.Errorf("%w: the node's certificate could not make another node: %w", errUnexpected, err)
		}
		return "the certificate of node-a created Node node-b", nil
	}
	aether := func(ctx context.Context, t *T) (string, error) {
		shared, err := t.sharedTenant(ctx)
		if err != nil {
			return "", err
		}
		err = createNodeAs(ctx, shared.config, shared.api, t.Testdata("node.yaml"))
		if reason, ok := forbidden(err); ok {
			return refused(reason), nil
		}
		return "", unexpected("creating another node ended with %v", err)
	}
	return origin("node-restriction", "a node's certificate is good for that node alone", nil, naive, aether)
}
