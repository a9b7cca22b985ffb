package domain_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/site"
)

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

// tenant is one with all defaults filled in and nothing wrong.
func tenant(t testing.TB) domain.Tenant {
	t.Helper()
	return domain.Tenant{Name: "demo", Spec: v1alpha1.AetherClusterSpec{
		Pools: []v1alpha1.Pool{{Name: "workers", Replicas: new(int32(2)), MinSize: new(int32(1)), MaxSize: new(int32(4))}},
	}}.WithDefaults(exampleSite(t))
}

func TestWithDefaults(t *testing.T) {
	s := exampleSite(t)
	empty := domain.Tenant{Name: "demo", Spec: v1alpha1.AetherClusterSpec{Pools: []v1alpha1.Pool{{Name: "workers"}}}}
	got := empty.WithDefaults(s)
	want := domain.Tenant{Name: "demo", Spec: v1alpha1.AetherClusterSpec{
		Version: "v1.35.4", Network: "tenant",
		ClusterNetwork: v1alpha1.ClusterNetwork{PodCIDR: "10.244.0.0/16", ServiceCIDR: "10.96.0.0/16", DNSDomain: "cluster.local"},
		Pools: []v1alpha1.Pool{{
			Name: "workers", Class: "small", Hosts: []string{"pv1-1", "pv1-2"},
			Replicas: new(int32(0)), MinSize: new(int32(0)), MaxSize: new(int32(0)),
		}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if empty.Spec.Pools[0].Class != "" {
		t.Error("the original was changed")
	}
	if diff := cmp.Diff(got, got.WithDefaults(s)); diff != "" {
		t.Errorf("twice is not once:\n%s", diff)
	}
	if err := got.Validate(s); err != nil {
		t.Errorf("defaults alone are not valid: %v", err)
	}
	s.Spec.Defaults.DNSDomain = ""
	if got := empty.WithDefaults(s).Spec.ClusterNetwork.DNSDomain; got != "cluster.local" {
		t.Errorf("domain %q", got)
	}
	chosen := domain.Tenant{Spec: v1alpha1.AetherClusterSpec{Version: "v1.0.0", Network: "other", Pools: []v1alpha1.Pool{{Class: "large", Hosts: []string{"pv1-2", "pv1-1"}}}}}.WithDefaults(s)
	if chosen.Spec.Version != "v1.0.0" || chosen.Spec.Network != "other" || chosen.Spec.Pools[0].Class != "large" {
		t.Errorf("what was chosen is gone: %+v", chosen.Spec)
	}
	if !slices.IsSorted(chosen.Spec.Pools[0].Hosts) {
		t.Errorf("hosts are not sorted: %v", chosen.Spec.Pools[0].Hosts)
	}
	s.Spec.Proxmox[0].Hosts[0].Templates.Worker = 0
	if got := empty.WithDefaults(s).Spec.Pools[0].Hosts; !slices.Equal(got, []string{"pv1-2"}) {
		t.Errorf("hosts without a worker template are among %v", got)
	}
}

func TestDefaultSizes(t *testing.T) {
	none := int32(-1)
	for _, test := range []struct{ replicas, low, high, wantReplicas, wantLow, wantHigh int32 }{
		{none, none, none, 0, 0, 0},
		{3, none, none, 3, 0, 3},
		{none, 2, none, 2, 2, 2},
		{none, none, 5, 0, 0, 5},
		{none, 2, 5, 2, 2, 5},
		{3, 2, none, 3, 2, 3},
		{3, none, 5, 3, 0, 5},
		{3, 2, 5, 3, 2, 5},
		{0, none, none, 0, 0, 0},
	} {
		number := func(n int32) *int32 {
			if n == none {
				return nil
			}
			return &n
		}
		pool := domain.Tenant{Spec: v1alpha1.AetherClusterSpec{Pools: []v1alpha1.Pool{{
			Name: "p", Replicas: number(test.replicas), MinSize: number(test.low), MaxSize: number(test.high),
		}}}}.WithDefaults(exampleSite(t)).Spec.Pools[0]
		if *pool.Replicas != test.wantReplicas || *pool.MinSize != test.wantLow || *pool.MaxSize != test.wantHigh {
			t.Errorf("%+v: got %d, %d to %d", test, *pool.Replicas, *pool.MinSize, *pool.MaxSize)
		}
	}
}

func TestValidateNamesFieldFindingAndAllowed(t *testing.T) {
	long := strings.Repeat("a", 300)
	pool := func(change func(*v1alpha1.Pool)) func(*domain.Tenant) {
		return func(t *domain.Tenant) { change(&t.Spec.Pools[0]) }
	}
	label := func(key, value string) func(*domain.Tenant) {
		return pool(func(p *v1alpha1.Pool) { p.Labels = map[string]string{key: value} })
	}
	taint := func(taint corev1.Taint) func(*domain.Tenant) {
		return pool(func(p *v1alpha1.Pool) { p.Taints = []corev1.Taint{taint} })
	}
	network := func(change func(*v1alpha1.ClusterNetwork)) func(*domain.Tenant) {
		return func(t *domain.Tenant) { change(&t.Spec.ClusterNetwork) }
	}
	for _, test := range []struct {
		name   string
		change func(*domain.Tenant)
		// field, and what the message must hold besides: what was found, what is
		// allowed, what to do.
		field string
		holds []string
	}{
		{"no name", func(t *domain.Tenant) { t.Name = "" }, "metadata.name", []string{"found nothing", "32 characters"}},
		{"name with capitals", func(t *domain.Tenant) { t.Name = "Demo" }, "metadata.name", []string{`"Demo"`, "as team-a"}},
		{"name that begins with a digit", func(t *domain.Tenant) { t.Name = "1demo" }, "metadata.name", []string{"starts with a letter"}},
		{"name with a dot", func(t *domain.Tenant) { t.Name = "a.b" }, "metadata.name", []string{`"a.b"`}},
		{"name too long", func(t *domain.Tenant) { t.Name = strings.Repeat("a", 33) }, "metadata.name", []string{"at most 32"}},
		{"name far too long", func(t *domain.Tenant) { t.Name = long }, "metadata.name", []string{"…"}},
		{"no version", func(t *domain.Tenant) { t.Spec.Version = "" }, "spec.version", []string{"found nothing", "v1.35.4"}},
		{"unknown version", func(t *domain.Tenant) { t.Spec.Version = "v1.36.0" }, "spec.version", []string{`"v1.36.0"`, "one of v1.35.4", "operator"}},
		{"version without v", func(t *domain.Tenant) { t.Spec.Version = "1.35.4" }, "spec.version", []string{`"1.35.4"`}},
		{"unknown network", func(t *domain.Tenant) { t.Spec.Network = "lan" }, "spec.network", []string{`"lan"`, "tenant", "leave it out"}},
		{"network of another kind", func(t *domain.Tenant) { t.Spec.Network = "mgmt" }, "spec.network", []string{`"mgmt"`}},
		{"pods without length", network(func(n *v1alpha1.ClusterNetwork) { n.PodCIDR = "10.244.0.0" }), "spec.clusterNetwork.podCIDR", []string{"as 10.244.0.0/16"}},
		{"pods in IPv6", network(func(n *v1alpha1.ClusterNetwork) { n.PodCIDR = "fd00::/64" }), "spec.clusterNetwork.podCIDR", []string{`"fd00::/64"`, "IPv4"}},
		{"pods with host bits", network(func(n *v1alpha1.ClusterNetwork) { n.PodCIDR = "10.244.7.0/16" }), "spec.clusterNetwork.podCIDR", []string{"write 10.244.0.0/16"}},
		{"pods too few", network(func(n *v1alpha1.ClusterNetwork) { n.PodCIDR = "10.244.0.0/25" }), "spec.clusterNetwork.podCIDR", []string{"8 to 24"}},
		{"pods too many", network(func(n *v1alpha1.ClusterNetwork) { n.PodCIDR = "10.0.0.0/7" }), "spec.clusterNetwork.podCIDR", []string{"8 to 24"}},
		{"services are text", network(func(n *v1alpha1.ClusterNetwork) { n.ServiceCIDR = "many" }), "spec.clusterNetwork.serviceCIDR", []string{`"many"`}},
		{"services too few", network(func(n *v1alpha1.ClusterNetwork) { n.ServiceCIDR = "10.96.0.0/30" }), "spec.clusterNetwork.serviceCIDR", []string{"8 to 24"}},
		{"domain with capitals", network(func(n *v1alpha1.ClusterNetwork) { n.DNSDomain = "Cluster.Local" }), "spec.clusterNetwork.dnsDomain", []string{`"Cluster.Local"`, "lower case"}},
		{"domain too long", network(func(n *v1alpha1.ClusterNetwork) { n.DNSDomain = long }), "spec.clusterNetwork.dnsDomain", []string{"…"}},
		{"no replicas of the control plane", func(t *domain.Tenant) { t.Spec.ControlPlane.Replicas = new(int32(0)) }, "spec.controlPlane.replicas", []string{"found 0", "1 to 5"}},
		{"too many replicas of the control plane", func(t *domain.Tenant) { t.Spec.ControlPlane.Replicas = new(int32(6)) }, "spec.controlPlane.replicas", []string{"found 6", "1 to 5"}},
		{"pool without a name", pool(func(p *v1alpha1.Pool) { p.Name = "" }), "spec.pools[0].name", []string{"found nothing", "20 characters"}},
		{"pool name too long", pool(func(p *v1alpha1.Pool) { p.Name = strings.Repeat("p", 21) }), "spec.pools[0].name", []string{"20 characters"}},
		{"two pools of one name", func(t *domain.Tenant) { t.Spec.Pools = append(t.Spec.Pools, t.Spec.Pools[0]) }, "spec.pools[1].name", []string{"no other pool"}},
		{"unknown class", pool(func(p *v1alpha1.Pool) { p.Class = "huge" }), "spec.pools[0].class", []string{`"huge"`, "small, medium, large"}},
		{"negative replicas", pool(func(p *v1alpha1.Pool) { p.Replicas = new(int32(-1)) }), "spec.pools[0].replicas", []string{"found -1", "0 to 1000"}},
		{"too many replicas", pool(func(p *v1alpha1.Pool) { p.Replicas, p.MaxSize = new(int32(1001)), new(int32(1001)) }), "spec.pools[0].replicas", []string{"found 1001", "0 to 1000"}},
		{"negative minSize", pool(func(p *v1alpha1.Pool) { p.MinSize = new(int32(-2)) }), "spec.pools[0].minSize", []string{"found -2"}},
		{"maxSize too large", pool(func(p *v1alpha1.Pool) { p.MaxSize = new(int32(5000)) }), "spec.pools[0].maxSize", []string{"found 5000"}},
		{"minSize above maxSize", pool(func(p *v1alpha1.Pool) { p.MinSize = new(int32(9)) }), "spec.pools[0].minSize", []string{"found 9", "at most maxSize, 4"}},
		{"replicas above maxSize", pool(func(p *v1alpha1.Pool) { p.Replicas = new(int32(5)) }), "spec.pools[0].replicas", []string{"found 5", "from minSize 1 to maxSize 4"}},
		{"replicas below minSize", pool(func(p *v1alpha1.Pool) { p.Replicas = new(int32(0)) }), "spec.pools[0].replicas", []string{"found 0"}},
		{"unknown host", pool(func(p *v1alpha1.Pool) { p.Hosts = []string{"pv1-1", "pv1-1.lan"} }), "spec.pools[0].hosts[1]", []string{`"pv1-1.lan"`, "pv1-1, pv1-2", "without a domain"}},
		{"host twice", pool(func(p *v1alpha1.Pool) { p.Hosts = []string{"pv1-1", "pv1-1"} }), "spec.pools[0].hosts[1]", []string{"each host once"}},
		{"label key", label("a b", "x"), "spec.pools[0].labels[a b]", []string{"as example.com/tier"}},
		{"label value", label("example.com/tier", long), "spec.pools[0].labels[example.com/tier]", []string{"63"}},
		{"label of Kubernetes", label("kubernetes.io/hostname", "x"), "spec.pools[0].labels[kubernetes.io/hostname]", []string{"node-role.kubernetes.io", "use another key"}},
		{"label below Kubernetes", label("topology.kubernetes.io/zone", "x"), "spec.pools[0].labels[topology.kubernetes.io/zone]", []string{"your own domain"}},
		{"label of the pool", label(domain.NodePoolLabel, "x"), "spec.pools[0].labels[" + domain.NodePoolLabel + "]", nil},
		{"taint without key", taint(corev1.Taint{Effect: corev1.TaintEffectNoSchedule}), "spec.pools[0].taints[0].key", []string{"found nothing"}},
		{"taint without effect", taint(corev1.Taint{Key: "a"}), "spec.pools[0].taints[0].effect", []string{"NoSchedule, PreferNoSchedule or NoExecute"}},
		{"taint with another effect", taint(corev1.Taint{Key: "a", Effect: "Never"}), "spec.pools[0].taints[0].effect", []string{`"Never"`}},
		{"Cilium's taint", taint(corev1.Taint{Key: domain.StartupTaint().Key, Effect: corev1.TaintEffectNoExecute}), "spec.pools[0].taints[0].key", []string{"Cilium"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			changed := tenant(t)
			test.change(&changed)
			var problems domain.Problems
			if err := changed.Validate(exampleSite(t)); !errors.As(err, &problems) {
				t.Fatalf("got %v", err)
			}
			i := slices.IndexFunc(problems, func(p domain.Problem) bool { return p.Field == test.field })
			if i < 0 {
				t.Fatalf("no problem of %s in:\n%v", test.field, problems)
			}
			text := problems[i].Error()
			for _, part := range append(test.holds, test.field+": found ", "; allowed: ") {
				if !strings.Contains(text, part) {
					t.Errorf("%q does not hold %q", text, part)
				}
			}
			if len(text) > 600 {
				t.Errorf("%d characters are too many for one line", len(text))
			}
		})
	}
}

func TestValidateAccepts(t *testing.T) {
	for name, change := range map[string]func(*domain.Tenant){
		"as it is":   func(*domain.Tenant) {},
		"no pool":    func(t *domain.Tenant) { t.Spec.Pools = nil },
		"one letter": func(t *domain.Tenant) { t.Name = "a" },
		"32 letters": func(t *domain.Tenant) { t.Name = strings.Repeat("a", 32) },
		"own label": func(t *domain.Tenant) {
			t.Spec.Pools[0].Labels = map[string]string{"example.com/tier": "gold", "short": ""}
		},
		"role label": func(t *domain.Tenant) { t.Spec.Pools[0].Labels = map[string]string{"node-role.kubernetes.io/gpu": ""} },
		"restricted label": func(t *domain.Tenant) {
			t.Spec.Pools[0].Labels = map[string]string{"a.node-restriction.kubernetes.io/b": "c"}
		},
		"own taint": func(t *domain.Tenant) {
			t.Spec.Pools[0].Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoExecute}}
		},
		"three API servers": func(t *domain.Tenant) { t.Spec.ControlPlane.Replicas = new(int32(3)) },
		"an empty pool": func(t *domain.Tenant) {
			t.Spec.Pools[0].Replicas, t.Spec.Pools[0].MinSize = new(int32(0)), new(int32(0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			changed := tenant(t)
			change(&changed)
			if err := changed.Validate(exampleSite(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestValidateTellsAllProblemsAtOnce(t *testing.T) {
	wrong := domain.Tenant{Name: "Demo", Spec: v1alpha1.AetherClusterSpec{Pools: []v1alpha1.Pool{{Name: "X", Class: "y"}}}}
	err := wrong.Validate(exampleSite(t))
	for _, field := range []string{"metadata.name", "spec.version", "spec.network", "spec.clusterNetwork.podCIDR", "spec.clusterNetwork.serviceCIDR", "spec.clusterNetwork.dnsDomain", "spec.pools[0].name", "spec.pools[0].class"} {
		if err == nil || !strings.Contains(err.Error(), field+": found") {
			t.Errorf("%s is not told in: %v", field, err)
		}
	}
}

func TestLabelsAreDealtBetweenKubeletAndCore(t *testing.T) {
	labels := map[string]string{
		"example.com/tier": "gold", "plain": "1", "node.kubernetes.io/instance-type": "small",
		"node-role.kubernetes.io/gpu": "", "node-restriction.kubernetes.io/a": "b", "x.node.cluster.x-k8s.io/y": "z",
	}
	own := domain.KubeletLabels(labels)
	want := map[string]string{"example.com/tier": "gold", "plain": "1", "node.kubernetes.io/instance-type": "small"}
	if diff := cmp.Diff(want, own); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for key := range labels {
		if _, kubelet := own[key]; kubelet == domain.CoreLabel(key) {
			t.Errorf("%s is written by both or neither", key)
		}
	}
}

func TestReplicasAndPool(t *testing.T) {
	one := tenant(t)
	if one.Replicas() != 1 {
		t.Errorf("replicas: %d", one.Replicas())
	}
	one.Spec.ControlPlane.Replicas = new(int32(3))
	if one.Replicas() != 3 {
		t.Errorf("replicas: %d", one.Replicas())
	}
	if pool, ok := one.Pool("workers"); !ok || pool.Name != "workers" {
		t.Errorf("pool: %+v, %t", pool, ok)
	}
	if pool, ok := one.Pool("others"); ok {
		t.Errorf("pool: %+v", pool)
	}
	if class, ok := domain.Class(exampleSite(t), "medium"); !ok || class.Cores != 4 {
		t.Errorf("class: %+v, %t", class, ok)
	}
}
