package activities

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/plan"
)

// poolWorld is a management cluster alone: pools never touch Proxmox.
func poolWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	w := &world{t: t, site: labSite(t), kube: newKube(t, objects...)}
	w.platform = Platform{Kube: w.kube, Site: w.site}
	return w
}

func (w *world) pools() *Pools { return &Pools{Platform: w.platform} }

func (w *world) deployments() map[string]clusterv1.MachineDeployment {
	w.t.Helper()
	list := &clusterv1.MachineDeploymentList{}
	if err := w.kube.List(w.t.Context(), list, client.InNamespace("tenant-demo")); err != nil {
		w.t.Fatal(err)
	}
	byName := map[string]clusterv1.MachineDeployment{}
	for _, md := range list.Items {
		byName[md.Name] = md
	}
	return byName
}

func TestApplyPools(t *testing.T) {
	object := tenantObject()
	object.Spec.Pools[0].Labels = map[string]string{"example.com/team": "demo", "node-role.kubernetes.io/worker": ""}
	object.Spec.Pools[0].Taints = []corev1.Taint{{Key: "example.com/dedicated", Effect: corev1.TaintEffectNoSchedule}}
	w := poolWorld(t, object)
	w.twice("ApplyPools", func() error { return w.pools().ApplyPools(t.Context(), demo()) })
	deployments := w.deployments()
	if len(deployments) != 2 {
		t.Fatalf("deployments %v", deployments)
	}
	for name, bounds := range map[string][3]string{"demo-workers-pv1-1": {"1", "1", "2"}, "demo-workers-pv1-2": {"1", "0", "2"}} {
		md := deployments[name]
		if md.Spec.Replicas == nil || *md.Spec.Replicas != 1 {
			t.Errorf("%s: replicas %v", name, md.Spec.Replicas)
		}
		if md.Annotations[clusterv1.AutoscalerMinSizeAnnotation] != bounds[1] || md.Annotations[clusterv1.AutoscalerMaxSizeAnnotation] != bounds[2] {
			t.Errorf("%s: bounds %v", name, md.Annotations)
		}
		spec := md.Spec.Template.Spec
		if spec.Version != "v1.35.4" || spec.FailureDomain != md.Labels[domain.HostLabel] || *spec.Bootstrap.DataSecretName != bootstrapSecret || spec.InfrastructureRef.Kind != "AetherMachineTemplate" {
			t.Errorf("%s: %+v", name, spec)
		}
		labels := md.Spec.Template.Labels
		if labels["node-role.kubernetes.io/worker"] != "" || labels["example.com/team"] != "" || labels[domain.NodePoolLabel] != "workers" {
			t.Errorf("%s: labels %v", name, labels)
		}
		if _, ok := labels["node-role.kubernetes.io/worker"]; !ok {
			t.Errorf("%s: core does not write the role", name)
		}
		template := &v1alpha1.AetherMachineTemplate{}
		if err := w.kube.Get(t.Context(), client.ObjectKey{Namespace: "tenant-demo", Name: spec.InfrastructureRef.Name}, template); err != nil {
			t.Fatal(err)
		}
		m := template.Spec.Template.Spec
		if m.Pool != "workers" || m.Class != "small" || m.Host != md.Labels[domain.HostLabel] || len(m.Taints) != 1 || len(m.Labels) != 1 || m.Labels["example.com/team"] != "demo" {
			t.Errorf("%s: template %+v", name, m)
		}
	}
	status := w.tenant().Status
	if !*status.Initialization.Provisioned || len(status.FailureDomains) != 2 || status.FailureDomains[0].Name != "pv1-1" {
		t.Errorf("status %+v", status)
	}
}

func (w *world) scale(name string, replicas int32) {
	w.t.Helper()
	md := w.deployments()[name]
	patch := client.MergeFrom(md.DeepCopy())
	md.Spec.Replicas = &replicas
	if err := w.kube.Patch(w.t.Context(), &md, patch, client.FieldOwner("cluster-autoscaler")); err != nil {
		w.t.Fatal(err)
	}
}

// TestReplicasAreTheAutoscalersAfterwards: they are only moved into bounds that
// changed.
func TestReplicasAreTheAutoscalersAfterwards(t *testing.T) {
	w := poolWorld(t, tenantObject())
	apply := func() {
		t.Helper()
		w.twice("ApplyPools", func() error { return w.pools().ApplyPools(t.Context(), demo()) })
	}
	replicas := func(want1, want2 int32) {
		t.Helper()
		d := w.deployments()
		if got1, got2 := *d["demo-workers-pv1-1"].Spec.Replicas, *d["demo-workers-pv1-2"].Spec.Replicas; got1 != want1 || got2 != want2 {
			t.Errorf("replicas %d and %d, want %d and %d", got1, got2, want1, want2)
		}
	}
	change := func(low, high int32) {
		t.Helper()
		object := w.tenant()
		object.Spec.Pools[0].MinSize, object.Spec.Pools[0].MaxSize, object.Spec.Pools[0].Replicas = &low, &high, &low
		if err := w.kube.Update(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		apply()
	}
	apply()
	replicas(1, 1)
	w.scale("demo-workers-pv1-1", 2)
	apply()
	replicas(2, 1)
	change(0, 2) // at most one on each host
	replicas(1, 1)
	change(6, 10) // at least three on each
	replicas(3, 3)
	w.scale("demo-workers-pv1-2", 5)
	change(2, 10)
	replicas(3, 5)
}

func TestApplyPoolsAddsAndRemoves(t *testing.T) {
	stranger := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-demo", Name: "by-hand", Labels: map[string]string{domain.TenantLabel: "demo"}}}
	w := poolWorld(t, tenantObject(), stranger)
	if err := w.pools().ApplyPools(t.Context(), demo()); err != nil {
		t.Fatal(err)
	}
	object := w.tenant()
	object.Spec.Pools = []v1alpha1.Pool{{Name: "big", Class: "medium", Hosts: []string{"pv1-2"}, Replicas: new(int32(1)), MinSize: new(int32(0)), MaxSize: new(int32(1))}}
	if err := w.kube.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	w.twice("ApplyPools", func() error { return w.pools().ApplyPools(t.Context(), demo()) })
	d := w.deployments()
	if _, big := d["demo-big-pv1-2"]; !big || len(d) != 2 {
		t.Errorf("deployments %v", d)
	}
	if _, kept := d["by-hand"]; !kept {
		t.Error("what a person made is gone")
	}
}

// TestAChangedClassIsAnotherTemplate, so that core rolls the workers.
func TestAChangedClassIsAnotherTemplate(t *testing.T) {
	w := poolWorld(t, tenantObject())
	template := func() string {
		t.Helper()
		if err := w.pools().ApplyPools(t.Context(), demo()); err != nil {
			t.Fatal(err)
		}
		return w.deployments()["demo-workers-pv1-1"].Spec.Template.Spec.InfrastructureRef.Name
	}
	first := template()
	if again := template(); again != first {
		t.Errorf("%s became %s without a change", first, again)
	}
	object := w.tenant()
	object.Spec.Pools[0].Class = "large"
	if err := w.kube.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	if second := template(); second == first {
		t.Error("the workers are not rolled")
	}
}

func TestDeploymentNamesAreLabelValues(t *testing.T) {
	long := strings.Repeat("h", 60)
	names := map[string]bool{}
	for _, host := range []string{"pv1-1", long + "1", long + "2", strings.Repeat("a.", 31) + "b"} {
		name := deploymentName(strings.Repeat("t", 32), plan.Share{Pool: strings.Repeat("p", 20), Host: host})
		if problems := validation.IsValidLabelValue(name); len(problems) > 0 {
			t.Errorf("%s: %v", name, problems)
		}
		if names[name] {
			t.Errorf("two hosts have the name %s", name)
		}
		names[name] = true
	}
}

// condition is a machine with that Ready condition.
func condition(id, reason, message string, status metav1.ConditionStatus) *v1alpha1.AetherMachine {
	m := aetherMachine(id)
	m.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: status, Reason: reason, Message: message}}
	return m
}

func TestWhatWorkersAreWaitedFor(t *testing.T) {
	ready := func(id string) client.Object { return condition(id, v1alpha1.ReasonReady, "", metav1.ConditionTrue) }
	deleted := condition(worker2ID, v1alpha1.ReasonReady, "", metav1.ConditionTrue)
	deleted.DeletionTimestamp, deleted.Finalizers = new(metav1.Now()), []string{"x"}
	for _, test := range []struct {
		name     string
		machines []client.Object
		waits    string
		refused  string
	}{
		{"all", []client.Object{ready(workerID), ready(worker2ID)}, "", ""},
		{"none yet", nil, "2 of 2 workers to be usable", ""},
		{"one is new", []client.Object{ready(workerID), aetherMachine(worker2ID)}, "1 of 2 workers to be usable; demo-workers-7a2f is new", ""},
		{"one waits", []client.Object{ready(workerID), condition(worker2ID, v1alpha1.ReasonWaiting, "waits for x", metav1.ConditionFalse)}, "demo-workers-7a2f: waits for x", ""},
		{"one goes", []client.Object{ready(workerID), deleted}, "1 of 2", ""},
		{"one cannot be joined", []client.Object{ready(workerID), condition(worker2ID, v1alpha1.ReasonFailed, "no room", metav1.ConditionFalse)}, "", "demo-workers-7a2f cannot be joined: no room"},
		{"one was cancelled", []client.Object{ready(workerID), condition(worker2ID, v1alpha1.ReasonCancelled, "cancelled", metav1.ConditionFalse)}, "demo-workers-7a2f: cancelled", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := poolWorld(t, append(test.machines, tenantObject())...)
			if err := w.pools().ApplyPools(t.Context(), demo()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			err := w.pools().WaitWorkers(ctx, demo())
			switch {
			case test.refused != "":
				err = errorIs(err, RefusedType, true, test.refused)
			case test.waits != "" && errors.Is(err, context.Canceled) && strings.Contains(err.Error(), test.waits):
				err = nil
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestRemovePoolsWaitsForTheMachines(t *testing.T) {
	core := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-demo", Name: "demo-workers-6f1e", Finalizers: []string{"machine.cluster.x-k8s.io"}}}
	core.Status.Conditions = []metav1.Condition{{Type: clusterv1.MachineDeletingCondition, Status: metav1.ConditionTrue, Reason: "DrainingNode", Message: "evicting pod a"}}
	w := poolWorld(t, tenantObject(), core)
	if err := w.pools().ApplyPools(t.Context(), demo()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := w.pools().RemovePools(ctx, demo())
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "0 MachineDeployments, 1 Machines") || !strings.Contains(err.Error(), "DrainingNode evicting pod a") {
		t.Errorf("got %v", err)
	}
	core.Finalizers = nil
	if err := errors.Join(w.kube.Update(t.Context(), core), w.kube.Delete(t.Context(), core)); err != nil {
		t.Fatal(err)
	}
	w.twice("RemovePools", func() error { return w.pools().RemovePools(t.Context(), demo()) })
	w.twice("WaitMachinesGone", func() error { return w.pools().WaitMachinesGone(t.Context(), demo()) })
}

// TestFieldsHoldOnlyWhatIsSet: an apply owns what it sends.
func TestFieldsHoldOnlyWhatIsSet(t *testing.T) {
	got, err := fields(v1alpha1.AetherMachineSpec{Pool: "a", Class: "b", Host: "c"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got)
	if err != nil || string(text) != `{"class":"b","host":"c","pool":"a"}` {
		t.Errorf("got %s, %v", text, err)
	}
	if _, err := fields(make(chan int)); err == nil {
		t.Error("a channel has fields")
	}
}
