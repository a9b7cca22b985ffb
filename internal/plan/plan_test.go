package plan_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/quick"

	"github.com/google/go-cmp/cmp"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/plan"
	"aether.internal/aether/internal/site"
)

var update = flag.Bool("update", false, "write the golden files anew")

func exampleSite(t testing.TB) *site.Site {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "examples", "site.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := site.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// state is a site, a tenant and an observation that fit one another: every
// check passes.
type state struct {
	site     *site.Site
	tenant   domain.Tenant
	observed plan.Observed
}

func fitting(t testing.TB) *state {
	t.Helper()
	s := exampleSite(t)
	host := func(name string, memory int64) plan.Host {
		return plan.Host{
			Name: name, Cluster: "homelab", MemoryMiB: memory, VCPUs: 44, DiskFreeGiB: 700, TemplateDiskGiB: 10,
			Bridges: []plan.Bridge{{Name: "vmbr0", VLANAware: true}, {Name: "vmbr1"}, {Name: "vmbr2"}},
			Holders: []plan.Holder{{Name: "VM 105 nas", MemoryMiB: 4096, VCPUs: 2, Foreign: true}},
		}
	}
	tenant := domain.Tenant{Name: "demo", Spec: v1alpha1.AetherClusterSpec{Pools: []v1alpha1.Pool{
		{Name: "workers", Replicas: new(int32(3)), MaxSize: new(int32(4))},
		{Name: "big", Class: "medium", Replicas: new(int32(1)), Hosts: []string{"pv1-2"}},
	}}}.WithDefaults(s)
	return &state{site: s, tenant: tenant, observed: plan.Observed{
		Hosts: []plan.Host{host("pv1-2", 39000), host("pv1-1", 28000)}, Quorate: true, FreeVMIDs: 1000, VMIDRange: "1000-1999",
		FreeWorkerAddresses: map[string]int{"tenant": 200, "storage": 200},
		FreeProxyAddresses:  map[string]int{"mgmt": 40, "tenant": 40},
		Images:              []plan.Image{{Ref: "ghcr.io/siderolabs/kubelet:v1.35.4"}},
	}}
}

func (s *state) make() plan.Plan { return plan.Make(s.site, s.tenant, s.observed) }

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), -update writes it anew:\n%s", path, diff)
	}
}

func TestPlanOfAFittingTenant(t *testing.T) {
	made := fitting(t).make()
	if !made.Accepted() || made.Refusal() != "" {
		t.Errorf("not accepted: %s", made.Refusal())
	}
	text, err := json.MarshalIndent(made, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "accepted.json", string(text)+"\n")
}

// TestEachCheckFails breaks one thing at a time. Exactly the check of that
// thing fails, and its text says what was found, what is needed and what to do.
func TestEachCheckFails(t *testing.T) {
	host := func(s *state, name string) *plan.Host {
		return &s.observed.Hosts[slices.IndexFunc(s.observed.Hosts, func(h plan.Host) bool { return h.Name == name })]
	}
	tests := []struct {
		name  string
		spoil func(*state)
		fails []string // names of the failed checks
	}{
		{"no-host-answers", func(s *state) {
			s.tenant.Spec.Pools = nil
			for i := range s.observed.Hosts {
				s.observed.Hosts[i].Problem = "not reachable"
			}
		}, []string{"hosts"}},
		{"host-off", func(s *state) {
			s.tenant.Spec.Pools = s.tenant.Spec.Pools[1:]
			*host(s, "pv1-2") = plan.Host{Name: "pv1-2", Problem: "read status of node pv1-2: not reachable (HTTP 595)"}
		}, []string{"host pv1-2"}},
		{"unknown-host", func(s *state) {
			s.tenant.Spec.Pools = s.tenant.Spec.Pools[1:]
			s.observed.Hosts = s.observed.Hosts[1:]
		}, []string{"host pv1-2"}},
		{"no-quorum", func(s *state) { s.observed.Quorate = false }, []string{"quorum"}},
		{"missing-privilege", func(s *state) {
			s.observed.MissingPrivileges = []string{"VM.Clone on /vms/901", "SDN.Use on /sdn/zones/localnetwork/vmbr0"}
		}, []string{"privilege VM.Clone on /vms/901", "privilege SDN.Use on /sdn/zones/localnetwork/vmbr0"}},
		{"template-missing", func(s *state) {
			host(s, "pv1-2").TemplateProblems = []string{"worker template 902 is not on this host"}
		}, []string{"template on pv1-2"}},
		{"bridge-missing", func(s *state) { host(s, "pv1-1").Bridges = host(s, "pv1-1").Bridges[:1] }, []string{"bridge vmbr1 on pv1-1", "bridge vmbr2 on pv1-1"}},
		{"bridge-without-vlan", func(s *state) { s.site.Spec.Networks[2].VLAN = 4 }, []string{"bridge vmbr2 on pv1-1 with VLAN 4", "bridge vmbr2 on pv1-2 with VLAN 4"}},
		{"network-not-on-host", func(s *state) { s.site.Spec.Networks[2].Hosts = []string{"pv1-1"} }, []string{"bridge vmbr2 on pv1-2"}},
		{"memory", func(s *state) {
			host(s, "pv1-1").Holders = []plan.Holder{{Name: "VM 105 nas", MemoryMiB: 20000, Foreign: true, Stopped: true}, {Name: "old-workers-1", MemoryMiB: 7000}}
		}, []string{"memory on pv1-1"}},
		{"cpus", func(s *state) { host(s, "pv1-1").VCPUs = 5 }, []string{"cpus on pv1-1"}},
		{"storage", func(s *state) { host(s, "pv1-2").DiskFreeGiB = 59 }, []string{"storage on pv1-2"}},
		{"template-disk", func(s *state) { host(s, "pv1-1").TemplateDiskGiB = 30 }, []string{"disk of pool workers on pv1-1"}},
		{"vmids", func(s *state) { s.observed.FreeVMIDs = 4 }, []string{"VMIDs"}},
		{"worker-addresses", func(s *state) { s.observed.FreeWorkerAddresses["tenant"] = 3 }, []string{"addresses for workers in tenant"}},
		{"storage-addresses", func(s *state) { s.observed.FreeWorkerAddresses["storage"] = 3 }, []string{"addresses for workers in storage"}},
		{"proxy-addresses", func(s *state) { s.observed.FreeProxyAddresses = nil }, []string{"addresses for proxies in mgmt", "addresses for proxies in tenant"}},
		{"pods-overlap-a-network", func(s *state) { s.tenant.Spec.ClusterNetwork.PodCIDR = "10.1.0.0/16" }, []string{"spec.clusterNetwork.podCIDR"}},
		{"services-overlap-management", func(s *state) { s.tenant.Spec.ClusterNetwork.ServiceCIDR = "10.98.0.0/20" }, []string{"spec.clusterNetwork.serviceCIDR"}},
		{"services-overlap-pods", func(s *state) { s.tenant.Spec.ClusterNetwork.ServiceCIDR = "10.244.128.0/20" }, []string{"spec.clusterNetwork.serviceCIDR"}},
		{"image", func(s *state) {
			s.observed.Images = append(s.observed.Images, plan.Image{Ref: "quay.io/cilium/cilium:v1.20.2", Problem: "https://192.168.0.5/v2/proxy-quay.io: status 404 Not Found"})
		}, []string{"image quay.io/cilium/cilium:v1.20.2"}},
	}
	var texts strings.Builder
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := fitting(t)
			test.spoil(s)
			made := s.make()
			var failed []string
			for _, check := range made.Checks {
				if check.Passed {
					continue
				}
				failed = append(failed, check.Name)
				if check.Found == "" || check.Needed == "" || check.Do == "" {
					t.Errorf("%s does not say what was found, what is needed and what to do: %+v", check.Name, check)
				}
			}
			if diff := cmp.Diff(test.fails, failed); diff != "" {
				t.Errorf("failed checks (-want +got):\n%s\n%s", diff, made.Refusal())
			}
			if made.Accepted() {
				t.Error("accepted")
			}
			fmt.Fprintf(&texts, "== %s\n%s\n\n", test.name, made.Refusal())
		})
	}
	golden(t, "refusals.txt", texts.String())
}

func TestTheProxyGoesWhereRoomIsLeft(t *testing.T) {
	s := fitting(t)
	if got := s.make().ProxyHost(); got != "pv1-2" {
		t.Errorf("the host with most memory is pv1-2, got %s", got)
	}
	// pv1-2 is larger, but the workers that must go there fill it.
	s.tenant.Spec.Pools[1].Replicas, s.tenant.Spec.Pools[1].MaxSize = new(int32(7)), new(int32(7))
	made := s.make()
	if made.ProxyHost() != "pv1-1" || !made.Accepted() {
		t.Errorf("on %s: %s", made.ProxyHost(), made.Refusal())
	}
	if made.VMs[0].Role != "proxy" {
		t.Errorf("the first VM is %+v", made.VMs[0])
	}
	// Of equals, the first by name.
	s = fitting(t)
	s.tenant.Spec.Pools = nil
	s.observed.Hosts[0].MemoryMiB = s.observed.Hosts[1].MemoryMiB
	if got := s.make().ProxyHost(); got != "pv1-1" {
		t.Errorf("of equals: %s", got)
	}
	// One that is off is not chosen, and its absence refuses nothing.
	s.observed.Hosts[1].Problem = "off"
	if made := s.make(); made.ProxyHost() != "pv1-2" || !made.Accepted() {
		t.Errorf("with pv1-1 off: %s, %s", made.ProxyHost(), made.Refusal())
	}
}

// TestWhatExistsIsNotPlannedAgain: a change, or a second try, counts only what
// is missing.
func TestWhatExistsIsNotPlannedAgain(t *testing.T) {
	s := fitting(t)
	s.observed.ExistingProxy = true
	s.observed.ExistingWorkers = []plan.PoolOnHost{{Pool: "workers", Host: "pv1-1", Count: 2}, {Pool: "workers", Host: "pv1-2", Count: 5}}
	s.observed.FreeVMIDs = 1
	s.observed.FreeProxyAddresses = nil
	made := s.make()
	if len(made.VMs) != 1 || made.VMs[0].Pool != "big" || !made.Accepted() {
		t.Errorf("planned %+v, %s", made.VMs, made.Refusal())
	}
	for i := range s.observed.Hosts {
		s.observed.Hosts[i].Problem = "off"
	}
	s.tenant.Spec.Pools = nil
	if made := s.make(); !made.Accepted() {
		t.Errorf("nothing is to be made, but: %s", made.Refusal())
	}
}

func TestPlansAreTheSameForTheSameState(t *testing.T) {
	want := fitting(t).make()
	for range 20 {
		s := fitting(t)
		rand.Shuffle(len(s.observed.Hosts), func(i, j int) {
			s.observed.Hosts[i], s.observed.Hosts[j] = s.observed.Hosts[j], s.observed.Hosts[i]
		})
		if diff := cmp.Diff(want, s.make()); diff != "" {
			t.Fatalf("(-first +other):\n%s", diff)
		}
	}
}

// TestSharesAddUp: whatever a pool's numbers and hosts are, its shares add up to
// them, differ by one at most, and keep within their bounds.
func TestSharesAddUp(t *testing.T) {
	property := func(low, more, evenMore uint8, count uint8) bool {
		n := int(count%7) + 1
		pool := v1alpha1.Pool{
			Name: "p", MinSize: new(int32(low)), Replicas: new(int32(low) + int32(more)), MaxSize: new(int32(low) + int32(more) + int32(evenMore)),
		}
		for i := range n {
			pool.Hosts = append(pool.Hosts, fmt.Sprintf("host-%d", n-i))
		}
		shares := plan.Shares(pool)
		var replicas, minimum, maximum int32
		for i, share := range shares {
			replicas, minimum, maximum = replicas+share.Replicas, minimum+share.MinSize, maximum+share.MaxSize
			if share.MinSize > share.Replicas || share.Replicas > share.MaxSize || share.Pool != "p" {
				return false
			}
			if shares[0].Replicas-share.Replicas > 1 || share.Replicas > shares[0].Replicas {
				return false
			}
			if i > 0 && shares[i-1].Host >= share.Host {
				return false
			}
		}
		return len(shares) == n && replicas == *pool.Replicas && minimum == *pool.MinSize && maximum == *pool.MaxSize
	}
	if err := quick.Check(property, &quick.Config{MaxCount: 2000}); err != nil {
		t.Error(err)
	}
	if got := plan.Shares(v1alpha1.Pool{Name: "p"}); len(got) != 0 {
		t.Errorf("a pool without hosts has shares %+v", got)
	}
	if got := plan.Shares(v1alpha1.Pool{Name: "p", Hosts: []string{"a"}}); got[0] != (plan.Share{Pool: "p", Host: "a"}) {
		t.Errorf("a pool without numbers: %+v", got)
	}
}

func TestFree(t *testing.T) {
	h := plan.Host{MemoryMiB: 100, VCPUs: 8, Holders: []plan.Holder{{MemoryMiB: 30, VCPUs: 2}, {MemoryMiB: 90, Stopped: true}}}
	if h.MemoryFreeMiB() != -20 || h.VCPUsFree() != 6 {
		t.Errorf("free: %d MiB, %d CPUs", h.MemoryFreeMiB(), h.VCPUsFree())
	}
}

func TestARefusalNamesTheLargestHolders(t *testing.T) {
	s := fitting(t)
	for i := range s.observed.Hosts {
		s.observed.Hosts[i].Holders = nil
		for n := range 20 {
			s.observed.Hosts[i].Holders = append(s.observed.Hosts[i].Holders, plan.Holder{Name: fmt.Sprintf("vm-%02d", n), MemoryMiB: int64(2000 + n)})
		}
	}
	text := s.make().Refusal()
	if !strings.Contains(text, "vm-19 holds 2019 MiB, vm-18") || !strings.Contains(text, "and 12 more") || strings.Contains(text, "vm-00") {
		t.Errorf("got %s", text)
	}
}
