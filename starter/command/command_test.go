package command

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/activities"
	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/plan"
	"aether.internal/aether/workflows"
)

func tenant(name string) *v1alpha1.AetherCluster {
	t := &v1alpha1.AetherCluster{ObjectMeta: metav1.ObjectMeta{Namespace: domain.TenantNamespace(name), Name: name}}
	t.Spec.Version, t.Spec.ControlPlaneEndpoint.Host = "v1.35.4", "10.1.1.10"
	t.Spec.Pools = []v1alpha1.Pool{
		{Name: "workers", Class: "small", Hosts: []string{"pv1-1", "pv1-2"}, Replicas: new(int32(2)), MinSize: new(int32(1)), MaxSize: new(int32(4))},
		{Name: "wide", Class: "large", Hosts: []string{"pv1-1"}, MinSize: new(int32(0)), MaxSize: new(int32(1))},
	}
	t.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, Message: "2 workers are usable"}}
	return t
}

func deployment(host string, replicas int32) *clusterv1.MachineDeployment {
	md := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: "tenant-demo", Name: "demo-workers-" + host,
		Labels:      map[string]string{domain.TenantLabel: "demo", domain.PoolLabel: "workers", domain.HostLabel: host},
		Annotations: map[string]string{clusterv1.AutoscalerMinSizeAnnotation: "0", clusterv1.AutoscalerMaxSizeAnnotation: "2"},
	}}
	md.Spec.Replicas = &replicas
	md.Status.ReadyReplicas = &replicas
	return md
}

// TestOutputs are golden: what people and scripts read must not change unseen.
func TestOutputs(t *testing.T) {
	other := tenant("other")
	other.Status.Conditions = nil
	w := newWorld(t, tenant("demo"), other, deployment("pv1-1", 1), deployment("pv1-2", 1))
	for name, args := range map[string][]string{
		"tenant-list.txt":  {"tenant", "list"},
		"tenant-list.json": {"tenant", "list", "-o", "json"},
		"tenant-get.txt":   {"tenant", "get", "demo"},
		"tenant-get.yaml":  {"tenant", "get", "demo", "-o", "yaml"},
		"pool-list.txt":    {"pool", "list", "demo"},
		"pool-list.yaml":   {"pool", "list", "demo", "--output=yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, problems := w.run(args...)
			if code != 0 || problems != "" {
				t.Fatalf("exit %d, %s", code, problems)
			}
			golden(t, name, out)
		})
	}
}

// TestWhatIsShownCanBeApplied: `tenant get -o yaml` is a tenant file.
func TestWhatIsShownCanBeApplied(t *testing.T) {
	w := newWorld(t, tenant("demo"))
	_, out, _ := w.run("tenant", "get", "demo", "-o", "yaml")
	got, err := parseTenant([]byte(out))
	if err != nil || got.Name != "demo" || len(got.Spec.Pools) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestPlanTables(t *testing.T) {
	var out strings.Builder
	err := printPlanTables(&out, plan.Plan{
		Tenant: "demo", Versions: plan.Versions{Kubernetes: "v1.35.4", Talos: "v1.12.6", Cilium: "v1.20.2", CoreDNS: "v1.14.2", Konnectivity: "v0.34.0"},
		VMs: []plan.VM{
			{Name: "demo-proxy-1", Role: "proxy", Host: "pv1-2", VMIDs: "1000-1999", Cores: 1, MemoryMiB: 512, Storage: "local-lvm", NICs: []plan.NIC{{Network: "mgmt", Bridge: "vmbr0", Addresses: "192.168.0.200-192.168.0.239"}}},
			{Name: "demo-workers-<id>", Role: "worker", Host: "pv1-1", VMIDs: "1000-1999", Cores: 2, MemoryMiB: 2048, DiskGiB: 20, Storage: "local-lvm", NICs: []plan.NIC{{Network: "tenant", Bridge: "vmbr1", VLAN: 4, Addresses: "10.1.1.50-10.1.1.249"}}},
		},
		Checks: []plan.Check{{Name: "quorum", Passed: true, Found: "quorate"}, {Name: "VMIDs", Found: "1 free in 1000-1999", Needed: "2", Do: "widen vmids of the Proxmox cluster in the site"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "plan.txt", out.String())
}

// TestWhatIsRefused: each wrong use says what was found, what is allowed, and
// what to do, and nothing is started.
func TestWhatIsRefused(t *testing.T) {
	noPools := tenant("bare")
	noPools.Spec.Pools = []v1alpha1.Pool{{Name: "a", MaxSize: new(int32(3))}}
	for _, test := range []struct {
		name string
		args []string
		want []string
	}{
		{"unknown command", []string{"tenants", "destroy"}, []string{`unknown command "destroy" for "aether tenant"`}},
		{"unknown server", []string{"serve", "dns"}, []string{`unknown command "dns" for "aether serve"`}},
		{"unknown format", []string{"tenant", "list", "-o", "xml"}, []string{"--output", `found "xml"; allowed: table, json, yaml`}},
		{"get without a name", []string{"tenant", "get"}, []string{"accepts 1 arg"}},
		{"get of another", []string{"tenant", "get", "nope"}, []string{`tenant "nope" does not exist`, "aether tenant list"}},
		{"kubeconfig of another", []string{"tenant", "kubeconfig", "nope"}, []string{"does not exist"}},
		{"kubeconfig too early", []string{"tenant", "kubeconfig", "demo"}, []string{"has no kubeconfig yet", "aether tenant watch demo"}},
		{"delete without yes", []string{"tenant", "delete", "demo"}, []string{"all workers and data of tenant demo", "--yes"}},
		{"delete of another", []string{"tenant", "delete", "nope", "--yes"}, []string{`tenant "nope" does not exist`}},
		{"watch of another", []string{"tenant", "watch", "nope"}, []string{"nothing runs or ran", "aether tenant list"}},
		{"create without a file", []string{"tenant", "create"}, []string{"--file: found nothing", "examples/tenant.yaml"}},
		{"pools of another", []string{"pool", "list", "nope"}, []string{"does not exist"}},
		{"unknown pool", []string{"pool", "scale", "demo", "gpu", "--replicas=1"}, []string{`POOL: found "gpu"`, "aether pool list demo"}},
		{"scale without a number", []string{"pool", "scale", "demo", "workers"}, []string{"--replicas: found -1; allowed: 1 to 4"}},
		{"scale above the bound", []string{"pool", "scale", "demo", "workers", "--replicas=5"}, []string{"found 5; allowed: 1 to 4", "aether tenant apply"}},
		{"scale below the bound", []string{"pool", "scale", "demo", "workers", "--replicas=0"}, []string{"found 0; allowed: 1 to 4"}},
		{"scale what is not made yet", []string{"pool", "scale", "demo", "wide", "--replicas=1"}, []string{"is not made yet", "aether tenant watch demo"}},
		{"scale a pool without hosts", []string{"pool", "scale", "bare", "a", "--replicas=1"}, []string{"is not made yet"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, tenant("demo"), noPools, deployment("pv1-1", 1))
			code, out, problems := w.run(test.args...)
			if code != 1 || out != "" {
				t.Errorf("exit %d, out %q", code, out)
			}
			for _, part := range append(test.want, "aether: ") {
				if !strings.Contains(problems, part) {
					t.Errorf("%q is not in %q", part, problems)
				}
			}
			if len(w.temporal.started)+len(w.temporal.cancels) > 0 {
				t.Errorf("started %v, cancelled %v", w.temporal.started, w.temporal.cancels)
			}
		})
	}
}

func TestKubeconfig(t *testing.T) {
	w := newWorld(t, tenant("demo"), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-demo", Name: activities.PublishedKubeconfigSecret("demo")},
		Data:       map[string][]byte{activities.KubeconfigKey: []byte("apiVersion: v1\n")},
	})
	if code, out, problems := w.run("tenant", "kubeconfig", "demo"); code != 0 || out != "apiVersion: v1\n" {
		t.Errorf("exit %d, %q, %q", code, out, problems)
	}
}

func TestScale(t *testing.T) {
	w := newWorld(t, tenant("demo"), deployment("pv1-1", 1), deployment("pv1-2", 1))
	code, out, problems := w.run("pool", "scale", "demo", "workers", "--replicas=3")
	if code != 0 || out != "pool workers on pv1-1: 2 workers wanted\npool workers on pv1-2: 1 workers wanted\n" {
		t.Errorf("exit %d, %q, %q", code, out, problems)
	}
	md := deployment("pv1-1", 0)
	if err := w.kube.Get(t.Context(), kubeclient.ObjectKeyFromObject(md), md); err != nil || *md.Spec.Replicas != 2 {
		t.Errorf("replicas %v, %v", md.Spec.Replicas, err)
	}
}

func TestCreateFollowsItsWorkflow(t *testing.T) {
	w := newWorld(t)
	w.in = exampleTenant(t)
	ended := time.Date(2026, 11, 30, 12, 0, 2, 0, time.UTC)
	w.temporal.steps = []workflows.Step{
		{Name: "plan", State: workflows.StepDone, Started: ended.Add(-time.Second), Ended: &ended},
		{Name: "clone", State: workflows.StepRunning, WaitsFor: "a clone slot", Started: ended},
	}
	code, out, problems := w.run("tenant", "create", "-f", "-")
	if code != 0 || !strings.Contains(out, "tenant demo is ready; `aether tenant kubeconfig demo`") {
		t.Errorf("exit %d, %q", code, out)
	}
	for _, part := range []string{"done      plan (1.0s)", "running   clone: waits for a clone slot"} {
		if strings.Count(problems, part) != 1 {
			t.Errorf("%q is not once in:\n%s", part, problems)
		}
	}
	if strings.Contains(problems, "\x1b") {
		t.Error("escape sequences without a terminal")
	}
	if !slices.Equal(w.temporal.started, []string{"CreateTenant"}) {
		t.Errorf("started %v", w.temporal.started)
	}
}

// TestNoWorkerIsSaidAtOnce, and the request is kept.
func TestNoWorkerIsSaidAtOnce(t *testing.T) {
	w := newWorld(t)
	w.in, w.temporal.pollers = exampleTenant(t), 0
	code, out, problems := w.run("tenant", "create", "-f", "-", "--detach")
	if code != 0 || !strings.Contains(problems, "warning: no worker is polling") || !strings.Contains(problems, "go run ./worker") {
		t.Errorf("exit %d, %q", code, problems)
	}
	if !strings.Contains(out, "started CreateTenant for tenant/demo; `aether tenant watch demo` shows it") {
		t.Errorf("out %q", out)
	}
}

func TestHowARunEnds(t *testing.T) {
	for _, test := range []struct {
		name    string
		outcome enumspb.WorkflowExecutionStatus
		failure error
		want    string
	}{
		{"failed", enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, errors.New("memory on pv1-1: found 0 MiB"), "aether: memory on pv1-1: found 0 MiB"},
		{"cancelled", enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED, nil, "aether: CreateTenant for tenant/demo was cancelled"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.in, w.temporal.outcome, w.temporal.failure = exampleTenant(t), test.outcome, test.failure
			code, out, problems := w.run("tenant", "create", "-f", "-")
			if code != 1 || out != "" || !strings.Contains(problems, test.want) {
				t.Errorf("exit %d, %q, %q", code, out, problems)
			}
		})
	}
}

func TestASecondStartSaysWhichOneRuns(t *testing.T) {
	w := newWorld(t)
	w.in = exampleTenant(t)
	w.temporal.runs["tenant/demo"] = &run{kind: "ApplyTenant", id: "run-0", status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING}
	code, _, problems := w.run("tenant", "create", "-f", "-")
	for _, part := range []string{"ApplyTenant is running for tenant/demo since 2026-11-30T12:00:00Z", "aether tenant watch demo"} {
		if code != 1 || !strings.Contains(problems, part) {
			t.Errorf("exit %d, %q is not in %q", code, part, problems)
		}
	}
}

func TestDelete(t *testing.T) {
	leftover := &v1alpha1.AetherVM{ObjectMeta: metav1.ObjectMeta{Namespace: domain.SystemNamespace, Name: "a", Labels: map[string]string{domain.TenantLabel: "demo"}}}
	for _, test := range []struct {
		name    string
		objects []kubeclient.Object
		runs    string // type of the open run
		started []string
		cancels int
	}{
		{"a tenant", []kubeclient.Object{tenant("demo")}, "", []string{"DeleteTenant"}, 0},
		{"what is left of one", []kubeclient.Object{leftover}, "", []string{"DeleteTenant"}, 0},
		{"while it is created", nil, "CreateTenant", []string{"DeleteTenant"}, 1},
		{"while it is deleted", []kubeclient.Object{tenant("demo")}, "DeleteTenant", nil, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, test.objects...)
			if test.runs != "" {
				w.temporal.runs["tenant/demo"] = &run{kind: test.runs, id: "run-1", status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING}
			}
			code, out, problems := w.run("tenant", "delete", "demo", "--yes")
			if code != 0 || out != "tenant demo is gone\n" {
				t.Errorf("exit %d, %q, %q", code, out, problems)
			}
			if !slices.Equal(w.temporal.started, test.started) || len(w.temporal.cancels) != test.cancels {
				t.Errorf("started %v, cancelled %v", w.temporal.started, w.temporal.cancels)
			}
		})
	}
}

func TestCompletion(t *testing.T) {
	w := newWorld(t, tenant("demo"), tenant("dev"), tenant("other"))
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if code, out, problems := w.run("completion", shell); code != 0 || !strings.Contains(out, "aether") {
			t.Errorf("%s: exit %d, %s", shell, code, problems)
		}
	}
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"tenant", "get", ""}, []string{"demo", "dev", "other"}},
		{[]string{"tenant", "watch", "d"}, []string{"demo", "dev"}},
		{[]string{"tenant", "kubeconfig", "o"}, []string{"other"}},
		{[]string{"tenant", "delete", "x"}, nil},
		{[]string{"tenant", "get", "demo", ""}, nil},
		{[]string{"pool", "list", "demo", ""}, nil},
		{[]string{"pool", "scale", "de"}, []string{"demo", "dev"}},
		{[]string{"pool", "scale", "demo", "w"}, []string{"workers", "wide"}},
		{[]string{"tenant", "list", "-o", ""}, []string{"table", "json", "yaml"}},
	} {
		code, out, _ := w.run(append([]string{"__complete"}, test.args...)...)
		var got []string
		for line := range strings.Lines(out) {
			if name, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); !strings.HasPrefix(name, ":") {
				got = append(got, name)
			}
		}
		if code != 0 || !slices.Equal(got, test.want) {
			t.Errorf("%v: exit %d, got %v, want %v", test.args, code, got, test.want)
		}
	}
	w.kubeErr = errors.New("no kubeconfig")
	if _, out, _ := w.run("__complete", "tenant", "get", ""); strings.Contains(out, "demo") || !strings.Contains(out, ":1") {
		t.Errorf("without a management cluster: %q", out)
	}
}

func TestTheManagementClusterThatCannotBeOpened(t *testing.T) {
	w := newWorld(t)
	w.kubeErr = errors.New("management cluster: no configuration; give --kubeconfig or set KUBECONFIG")
	for _, args := range [][]string{{"tenant", "list"}, {"tenant", "get", "a"}, {"tenant", "kubeconfig", "a"}, {"tenant", "delete", "a", "--yes"}, {"pool", "list", "a"}, {"pool", "scale", "a", "b"}} {
		if code, _, problems := w.run(args...); code != 1 || !strings.Contains(problems, "give --kubeconfig") {
			t.Errorf("%v: exit %d, %q", args, code, problems)
		}
	}
}
