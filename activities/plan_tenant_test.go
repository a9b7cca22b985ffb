package activities

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	controlplanev1 "aether.internal/aether/api/controlplane/v1alpha1"
	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/internal/plan"
	"aether.internal/aether/internal/proxmox"
	"aether.internal/aether/lab/faults"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mirrors stands in for the site's mirrors.
type mirrors map[string]string

func (m mirrors) Check(_ context.Context, reference string) string { return m[reference] }

func (w *world) planner(images mirrors) *Tenants {
	t := w.tenants()
	t.Images = images
	return t
}

func planned(w *world) PlanTenantInput {
	return PlanTenantInput{Tenant: domain.Tenant{Name: "demo", Spec: v1alpha1.AetherClusterSpec{Pools: []v1alpha1.Pool{{Name: "workers", Replicas: new(int32(2))}}}}}
}

func check(p plan.Plan, name string) (plan.Check, bool) {
	i := slices.IndexFunc(p.Checks, func(c plan.Check) bool { return c.Name == name })
	if i < 0 {
		return plan.Check{}, false
	}
	return p.Checks[i], true
}

// TestPlanTenant: the homelab takes the example, and nothing is changed by
// asking.
func TestPlanTenant(t *testing.T) {
	w := newWorld(t)
	for range 2 {
		got, err := w.planner(mirrors{}).PlanTenant(t.Context(), planned(w))
		if err != nil {
			t.Fatal(err)
		}
		if got.Tenant.Spec.Version != "v1.35.4" || got.Tenant.Spec.Network != "tenant" {
			t.Errorf("defaults are not filled in: %+v", got.Tenant.Spec)
		}
		if len(got.Plan.VMs) != 3 || got.Plan.ProxyHost() != "pv1-2" || got.Plan.VMs[0].Template != 202 {
			t.Errorf("VMs %+v", got.Plan.VMs)
		}
		for name, found := range map[string]string{
			"VMIDs":                                    "1000 free in 1000-1999, 3 needed",
			"addresses for proxies in tenant":          "40 free, 1 needed",
			"addresses for workers in tenant":          "200 free, 2 needed",
			"image ghcr.io/siderolabs/kubelet:v1.35.4": "served by the mirrors",
			"templates on pv1-1":                       "usable",
			"privileges":                               "all that Aether uses",
			"quorum":                                   "quorate",
		} {
			if c, ok := check(got.Plan, name); !ok || !c.Passed || c.Found != found {
				t.Errorf("%s: %+v", name, c)
			}
		}
	}
	held, err := w.leases.HeldByTenant(t.Context(), "demo")
	if err != nil || len(held) != 0 || w.count() != 0 {
		t.Errorf("planning changed something: %+v, %d VMs, %v", held, w.count(), err)
	}
}

// TestPlanTenantRefuses with every finding, for good.
func TestPlanTenantRefuses(t *testing.T) {
	for _, test := range []struct {
		name   string
		spoil  func(*world, *PlanTenantInput)
		images mirrors
		parts  []string
	}{
		{"bad field", func(_ *world, in *PlanTenantInput) { in.Tenant.Spec.Version = "v9.9.9" }, nil, []string{`spec.version: found "v9.9.9"; allowed: one of v1.35.4`}},
		{"template on another host", func(w *world, _ *PlanTenantInput) { w.site.Spec.Proxmox[0].Hosts[0].Templates.Worker = 201 }, nil, []string{"template on pv1-1", "worker template 201 is not on this host"}},
		{"bridge without VLAN", func(w *world, _ *PlanTenantInput) { w.site.Spec.Networks[1].VLAN = 7 }, nil, []string{"bridge vmbr1 on pv1-1 with VLAN 7", "bridge-vlan-aware yes"}},
		{"missing privilege", func(w *world, _ *PlanTenantInput) {
			w.site.Spec.Proxmox[0].Pool = "aether"
		}, nil, []string{"privilege Pool.Allocate on /pool/aether: found not granted", "pveum acl modify /pool/aether"}},
		{"image that is not served", func(*world, *PlanTenantInput) {}, mirrors{"quay.io/cilium/cilium:v1.20.2": "status 404 Not Found"}, []string{"image quay.io/cilium/cilium:v1.20.2: found status 404"}},
		{"more memory than there is", func(w *world, in *PlanTenantInput) {
			in.Tenant.Spec.Pools[0].Replicas, in.Tenant.Spec.Pools[0].Hosts = new(int32(20)), []string{"pv1-1"}
		}, nil, []string{"memory on pv1-1", "40960 MiB", "choose a smaller class"}},
		{"pods over a network", func(_ *world, in *PlanTenantInput) { in.Tenant.Spec.ClusterNetwork.PodCIDR = "10.1.0.0/16" }, nil, []string{"overlaps network tenant, 10.1.1.0/24"}},
		{"unknown node", func(w *world, _ *PlanTenantInput) { w.site.Spec.Proxmox[0].Hosts[0].Name = "pv1-1.lan" }, nil, []string{"host pv1-1.lan: found a name that Proxmox does not know", "a full domain name is not a node name"}},
		{"no quorum", func(w *world, _ *PlanTenantInput) {
			w.inject(faults.Fault{Kind: faults.NoQuorum, Place: "pve/quorum"})
		}, nil, []string{"quorum: found cluster not ready"}},
		{"VMIDs used up by others", func(w *world, _ *PlanTenantInput) {
			w.site.Spec.Proxmox[0].VMIDs.To = 1002
			w.foreign(1001, proxmox.Mark{})
		}, nil, []string{"VMIDs: found 2 free in 1000-1002; needed: 3"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			in := planned(w)
			test.spoil(w, &in)
			_, err := w.planner(test.images).PlanTenant(t.Context(), in)
			if err := errorIs(err, RefusedType, true, test.parts...); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAHostThatIsOffRefusesOnlyWhatNeedsIt: the other host is worked with.
func TestAHostThatIsOffRefusesOnlyWhatNeedsIt(t *testing.T) {
	w := newWorld(t)
	w.inject(faults.Fault{Kind: faults.HostOff, Place: "pve/host/pv1-2"})
	eventually(t, "host off", func() bool { _, err := w.pve.NodeStatus(t.Context(), "pv1-2"); return err != nil })
	in := planned(w)
	_, err := w.planner(nil).PlanTenant(t.Context(), in)
	if err := errorIs(err, RefusedType, true, "host pv1-2: found", "take it out of the pool's hosts"); err != nil {
		t.Error(err)
	}
	in.Tenant.Spec.Pools[0].Hosts = []string{"pv1-1"}
	got, err := w.planner(nil).PlanTenant(t.Context(), in)
	if err != nil || got.Plan.ProxyHost() != "pv1-1" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestAPlanCountsWhatTheTenantHas once: its machines, and the address it holds.
func TestAPlanCountsWhatTheTenantHas(t *testing.T) {
	w := newWorld(t, tenantObject(), workerVM(workerID, "pv1-1"), proxyVM())
	if _, err := w.leases.Address(t.Context(), "tenant", ranges(w.site.Spec.Networks[1].Ranges.Proxies), addressHolder("demo"), nil); err != nil {
		t.Fatal(err)
	}
	w.lease(workerID)
	w.lease(proxyID)
	in := planned(w)
	in.Change = true
	got, err := w.planner(nil).PlanTenant(t.Context(), in)
	if err != nil || len(got.Plan.VMs) != 1 || got.Plan.VMs[0].Host != "pv1-2" {
		t.Errorf("%+v, %v", got, err)
	}
	// A second try after an undo: the proxy is gone, the address is kept.
	if err := w.kube.Delete(t.Context(), w.vm(proxyID)); err != nil {
		t.Fatal(err)
	}
	w.site.Spec.Networks[1].Ranges.Proxies[0].To = w.site.Spec.Networks[1].Ranges.Proxies[0].From
	in.Change = false
	if _, err := w.planner(nil).PlanTenant(t.Context(), in); err != nil {
		t.Errorf("its own address is not free to it: %v", err)
	}
	in.Tenant.Name = "other"
	_, err = w.planner(nil).PlanTenant(t.Context(), in)
	if err := errorIs(err, RefusedType, true, "addresses for proxies in tenant: found 0 free"); err != nil {
		t.Error(err)
	}
}

// TestCreatingAStandingTenantIsRefused: a failure on the way would undo what its
// people work with.
func TestCreatingAStandingTenantIsRefused(t *testing.T) {
	object := tenantObject()
	object.Status.Initialization.Provisioned = new(true)
	w := newWorld(t, object, proxyVM())
	_, err := w.planner(nil).PlanTenant(t.Context(), planned(w))
	if err := errorIs(err, RefusedType, true, `metadata.name: found "demo"`, "aether tenant apply"); err != nil {
		t.Error(err)
	}
	// One that failed and was undone may be tried again.
	if err := w.kube.Delete(t.Context(), w.vm(proxyID)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.planner(nil).PlanTenant(t.Context(), planned(w)); err != nil {
		t.Error(err)
	}
}

func TestWhatCannotChangeIsRefused(t *testing.T) {
	running := &controlplanev1.AetherControlPlane{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-demo", Name: "demo"}}
	running.Status.Version = "v1.35.4"
	for _, test := range []struct {
		name   string
		change func(*world, *v1alpha1.AetherClusterSpec)
		parts  []string
	}{
		{"pods", func(_ *world, s *v1alpha1.AetherClusterSpec) { s.ClusterNetwork.PodCIDR = "10.245.0.0/16" }, []string{"spec.clusterNetwork.podCIDR", "10.244.0.0/16, as the tenant was made"}},
		{"services", func(_ *world, s *v1alpha1.AetherClusterSpec) { s.ClusterNetwork.ServiceCIDR = "10.97.0.0/16" }, []string{"spec.clusterNetwork.serviceCIDR", "certificates carry it"}},
		{"domain", func(_ *world, s *v1alpha1.AetherClusterSpec) { s.ClusterNetwork.DNSDomain = "example.com" }, []string{"spec.clusterNetwork.dnsDomain"}},
		{"version", func(w *world, s *v1alpha1.AetherClusterSpec) {
			w.site.Spec.Versions.Kubernetes = append(w.site.Spec.Versions.Kubernetes, "v1.36.0")
			s.Version = "v1.36.0"
		}, []string{"spec.version", "v1.35.4, which runs", "cannot be changed yet"}},
		{"replicas of the control plane", func(_ *world, s *v1alpha1.AetherClusterSpec) { s.ControlPlane.Replicas = new(int32(3)) }, []string{"spec.controlPlane.replicas: found 3", "cannot be resized yet"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, tenantObject(), running.DeepCopy())
			in := planned(w)
			in.Change = true
			test.change(w, &in.Tenant.Spec)
			_, err := w.planner(nil).PlanTenant(t.Context(), in)
			if err := errorIs(err, RefusedType, true, test.parts...); err != nil {
				t.Error(err)
			}
		})
	}
	w := newWorld(t)
	in := planned(w)
	in.Change = true
	_, err := w.planner(nil).PlanTenant(t.Context(), in)
	if err := errorIs(err, RefusedType, true, "does not exist", "aether tenant create"); err != nil {
		t.Error(err)
	}
}

// TestARefusalListsWhoHoldsTheMemory, ours and others, running or not.
func TestARefusalListsWhoHoldsTheMemory(t *testing.T) {
	w := newWorld(t)
	w.foreign(1500, proxmox.Mark{})
	err := w.leases.Reserve(t.Context(), lease.Host{Cluster: "homelab", Name: "pv1-1"},
		lease.Reservation{Machine: worker2ID, Tenant: "other", Purpose: "other-workers-1", VMID: 1700, Cores: 2, MemoryMiB: 20000},
		lease.Capacity{MemoryMiB: 1 << 20, VCPUs: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	in := planned(w)
	in.Tenant.Spec.Pools[0].Hosts, in.Tenant.Spec.Pools[0].Replicas = []string{"pv1-1"}, new(int32(3))
	_, err = w.planner(nil).PlanTenant(t.Context(), in)
	if err := errorIs(err, RefusedType, true, "other-workers-1 holds 20000 MiB, VM 1500 stranger holds 2048 MiB though stopped"); err != nil {
		t.Error(err)
	}
}

func TestPlanningWithoutProxmox(t *testing.T) {
	w := newWorld(t)
	w.platform.Proxmox = func(string) (*proxmox.Client, error) { return nil, errors.New("the token's Secret is missing") }
	_, err := w.planner(nil).PlanTenant(t.Context(), planned(w))
	if err == nil || !strings.Contains(err.Error(), "the token's Secret is missing") {
		t.Errorf("got %v", err)
	}
}
