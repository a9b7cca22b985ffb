package capi

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/workflows"
)

const tenantRun = "tenant/demo"

func TestANewTenantStartsCreateTenantOnce(t *testing.T) {
	w := newWorld(t, cluster(), owned(tenant(), "Cluster", "demo"))
	if result := w.reconcileCluster(); result.RequeueAfter != lookAgainSoon {
		t.Errorf("looks again after %s", result.RequeueAfter)
	}
	if got := w.processes.started(); !slices.Equal(got, []string{"CreateTenant"}) {
		t.Fatalf("started %v", got)
	}
	r := w.processes.requests[0]
	document, ok := r.Input.(domain.TenantDocument)
	if r.ID != tenantRun || r.Tenant != "demo" || !ok || document.Metadata.Name != "demo" || document.Spec.Version != "v1.35.4" || document.Kind != domain.AetherClusterKind {
		t.Errorf("request %+v", r)
	}
	object := &v1alpha1.AetherCluster{}
	if w.get(tenantKey(), object); !controllerutil.ContainsFinalizer(object, v1alpha1.ClusterFinalizer) {
		t.Error("nothing holds the object")
	}
}

// TestNothingIsStarted: in each of these states nothing is started.
func TestNothingIsStarted(t *testing.T) {
	paused := cluster()
	paused.Spec.Paused = new(true)
	annotated, managed := owned(tenant(), "Cluster", "demo"), owned(tenant(), "Cluster", "demo")
	annotated.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	managed.Labels = map[string]string{clusterv1.ManagedByAnnotation: "someone"}
	managedByAnnotation := owned(tenant(), "Cluster", "demo")
	managedByAnnotation.Annotations = map[string]string{clusterv1.ManagedByAnnotation: ""}
	deletedWhilePaused := deleted(owned(tenant(), "Cluster", "demo"), v1alpha1.ClusterFinalizer)
	for name, objects := range map[string][]client.Object{
		"no Cluster yet":           {tenant()},
		"the Cluster is paused":    {paused, owned(tenant(), "Cluster", "demo")},
		"the tenant is paused":     {cluster(), annotated},
		"managed by label":         {cluster(), managed},
		"managed by annotation":    {cluster(), managedByAnnotation},
		"deleted while paused":     {paused, deletedWhilePaused},
		"deleted, held by another": {cluster(), deleted(owned(tenant(), "Cluster", "demo"), "example.com/other")},
		"no tenant":                {cluster()},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, objects...)
			if result := w.reconcileCluster(); result.RequeueAfter != 0 {
				t.Errorf("looks again after %s", result.RequeueAfter)
			}
			if got := w.processes.started(); len(got) > 0 || len(w.processes.cancels) > 0 {
				t.Errorf("started %v, cancelled %v", got, w.processes.cancels)
			}
			object := &v1alpha1.AetherCluster{}
			if w.get(tenantKey(), object) && object.DeletionTimestamp.IsZero() && len(object.Finalizers) > 0 {
				t.Errorf("has finalizers %v", object.Finalizers)
			}
		})
	}
}

// TestATenantWithoutOwnerReference: core sets it a moment after the Cluster
// exists; the Cluster of the same name is enough.
func TestATenantWithoutOwnerReference(t *testing.T) {
	w := newWorld(t, cluster(), tenant())
	w.reconcileCluster()
	if got := w.processes.started(); !slices.Equal(got, []string{"CreateTenant"}) {
		t.Errorf("started %v", got)
	}
}

func TestAMisplacedTenantIsRefusedAndNeverDeletesAnother(t *testing.T) {
	elsewhere, otherCluster := tenant(), cluster()
	elsewhere.Namespace, otherCluster.Namespace = "default", "default"
	otherName := owned(tenant(), "Cluster", "other")
	other := cluster()
	other.Name = "other"
	for name, test := range map[string]struct {
		objects []client.Object
		object  *v1alpha1.AetherCluster
		want    string
	}{
		"namespace": {[]client.Object{otherCluster, elsewhere}, elsewhere, `metadata.namespace: found "default"; allowed: tenant-demo`},
		"name":      {[]client.Object{other, otherName}, otherName, `metadata.name: found "demo"; allowed: other, the name of its Cluster`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, test.objects...)
			r := &clusterReconciler{client: w.client, processes: w.processes, events: events.NewFakeRecorder(10)}
			key := client.ObjectKeyFromObject(test.object)
			for range 3 {
				if _, err := r.Reconcile(t.Context(), request(key)); err != nil {
					t.Fatal(err)
				}
			}
			object := &v1alpha1.AetherCluster{}
			w.get(key, object)
			ready := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ReadyCondition)
			if ready == nil || ready.Reason != v1alpha1.ReasonRefused || !strings.Contains(ready.Message, test.want) {
				t.Errorf("condition %+v", ready)
			}
			if err := w.client.Delete(t.Context(), object); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Reconcile(t.Context(), request(key)); err != nil {
				t.Fatal(err)
			}
			if w.get(key, object) || len(w.processes.started()) > 0 {
				t.Errorf("started %v; object left: %v", w.processes.started(), object.Finalizers)
			}
		})
	}
}

func TestProvisionedTenantsAreApplied(t *testing.T) {
	object := owned(tenant(), "Cluster", "demo")
	object.Status.Initialization.Provisioned = new(true)
	w := newWorld(t, cluster(), object)
	w.reconcileCluster()
	if got := w.processes.started(); !slices.Equal(got, []string{"ApplyTenant"}) {
		t.Errorf("started %v", got)
	}
}

// TestAChangeDuringARunIsNotLost: the run began with an older spec, so another
// follows it.
func TestAChangeDuringARunIsNotLost(t *testing.T) {
	object := owned(tenant(), "Cluster", "demo")
	object.Status.Initialization.Provisioned = new(true)
	object.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, ObservedGeneration: 0}}
	w := newWorld(t, cluster(), object)
	w.processes.open(tenantRun, "CreateTenant")
	if result := w.reconcileCluster(); result.RequeueAfter != lookAgainSoon || len(w.processes.started()) != 0 {
		t.Fatalf("while it runs: %s, started %v", result.RequeueAfter, w.processes.started())
	}
	w.processes.end(tenantRun, enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, 0)
	w.reconcileCluster()
	if got := w.processes.started(); !slices.Equal(got, []string{"ApplyTenant"}) {
		t.Errorf("started %v", got)
	}
}

func TestSettled(t *testing.T) {
	ready := func(status metav1.ConditionStatus, reason string, generation int64) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: status, Reason: reason, ObservedGeneration: generation}}
	}
	for _, test := range []struct {
		name        string
		conditions  []metav1.Condition
		annotations map[string]string
		want        bool
	}{
		{"nothing said", nil, nil, false},
		{"ready", ready(metav1.ConditionTrue, v1alpha1.ReasonReady, 2), nil, true},
		{"ready, without a node", ready(metav1.ConditionTrue, v1alpha1.ReasonUnproven, 2), nil, true},
		{"ready for an older spec", ready(metav1.ConditionTrue, v1alpha1.ReasonReady, 1), nil, false},
		{"in progress", ready(metav1.ConditionFalse, v1alpha1.ReasonInProgress, 2), nil, false},
		{"refused", ready(metav1.ConditionFalse, v1alpha1.ReasonRefused, 2), nil, true},
		{"failed", ready(metav1.ConditionFalse, v1alpha1.ReasonFailed, 2), nil, true},
		{"cancelled", ready(metav1.ConditionFalse, v1alpha1.ReasonCancelled, 2), nil, true},
		{"failed for an older spec", ready(metav1.ConditionFalse, v1alpha1.ReasonFailed, 1), nil, false},
		{"failed, retry wished", ready(metav1.ConditionFalse, v1alpha1.ReasonFailed, 2), map[string]string{domain.RetryAnnotation: "1"}, false},
		{"failed, retry done", ready(metav1.ConditionFalse, v1alpha1.ReasonFailed, 2), map[string]string{domain.RetryAnnotation: "1", retriedAnnotation: "1"}, true},
		{"failed, retry wished again", ready(metav1.ConditionFalse, v1alpha1.ReasonFailed, 2), map[string]string{domain.RetryAnnotation: "2", retriedAnnotation: "1"}, false},
		{"ready, retry wished", ready(metav1.ConditionTrue, v1alpha1.ReasonReady, 2), map[string]string{domain.RetryAnnotation: "1"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			object := tenant()
			object.Generation, object.Status.Conditions, object.Annotations = 2, test.conditions, test.annotations
			if got := settled(object); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestTheRetryAnnotationStartsOneRunPerValue(t *testing.T) {
	object := owned(tenant(), "Cluster", "demo")
	object.Finalizers = []string{v1alpha1.ClusterFinalizer}
	object.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonRefused, ObservedGeneration: 1}}
	w := newWorld(t, cluster(), object)
	w.reconcileCluster()
	if got := w.processes.started(); len(got) != 0 {
		t.Fatalf("a refused tenant is tried again by itself: %v", got)
	}
	for i, value := range []string{"now", "later"} {
		w.get(tenantKey(), object)
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, domain.RetryAnnotation, value)
		if err := w.client.Update(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		w.reconcileCluster()
		w.processes.end(tenantRun, enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, 0)
		w.reconcileCluster()
		if got := len(w.processes.started()); got != i+1 {
			t.Errorf("%s: %d runs", value, got)
		}
	}
}

// TestARunThatEndsWithoutAWordRests: what dies at once must not fill Temporal.
func TestARunThatEndsWithoutAWordRests(t *testing.T) {
	w := newWorld(t, cluster(), owned(tenant(), "Cluster", "demo"))
	w.reconcileCluster()
	w.processes.end(tenantRun, enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, time.Second)
	if result := w.reconcileCluster(); result.RequeueAfter != lookAgain || len(w.processes.started()) != 1 {
		t.Errorf("looks again after %s, started %v", result.RequeueAfter, w.processes.started())
	}
	w.processes.end(tenantRun, enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, time.Minute)
	if w.reconcileCluster(); len(w.processes.started()) != 2 {
		t.Errorf("started %v", w.processes.started())
	}
}

func TestTemporalAwayIsAnErrorAndNothingElse(t *testing.T) {
	w := newWorld(t, cluster(), owned(tenant(), "Cluster", "demo"))
	w.processes.err = errors.New("connection refused")
	r := &clusterReconciler{client: w.client, processes: w.processes, events: events.NewFakeRecorder(10)}
	var last error
	for range 2 {
		_, last = r.Reconcile(t.Context(), request(tenantKey()))
	}
	if last == nil {
		t.Error("no error, so nobody tries again")
	}
	w.processes.err = nil
	if w.reconcileCluster(); len(w.processes.started()) != 1 {
		t.Errorf("started %v", w.processes.started())
	}
}

// TestDeletion: whatever is deleted first, DeleteTenant runs, after what ran
// before was cancelled and has ended.
func TestDeletion(t *testing.T) {
	clusterOnly := []client.Object{deleted(cluster(), "cluster.cluster.x-k8s.io"), owned(tenant(), "Cluster", "demo")}
	for name, objects := range map[string][]client.Object{
		"the Cluster is deleted":       clusterOnly,
		"the AetherCluster is deleted": {cluster(), deleted(owned(tenant(), "Cluster", "demo"), v1alpha1.ClusterFinalizer)},
		"the Cluster is gone":          {deleted(owned(tenant(), "Cluster", "demo"), v1alpha1.ClusterFinalizer)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, objects...)
			w.processes.open(tenantRun, "CreateTenant")
			w.reconcileCluster()
			if len(w.processes.started()) != 0 || !slices.Contains(w.processes.cancels, tenantRun) {
				t.Fatalf("while CreateTenant runs: started %v, cancelled %v", w.processes.started(), w.processes.cancels)
			}
			w.processes.end(tenantRun, enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED, 0)
			if result := w.reconcileCluster(); result.RequeueAfter != lookAgainSoon {
				t.Errorf("looks again after %s", result.RequeueAfter)
			}
			if got := w.processes.started(); !slices.Equal(got, []string{"DeleteTenant"}) {
				t.Fatalf("started %v", got)
			}
			if input, ok := w.processes.requests[0].Input.(workflows.DeleteTenantInput); !ok || input.Tenant != "demo" {
				t.Errorf("input %+v", w.processes.requests[0].Input)
			}
			// It failed: it is tried again, but not at once.
			w.processes.end(tenantRun, enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, time.Second)
			if w.reconcileCluster(); len(w.processes.started()) != 1 {
				t.Error("a deletion that failed is repeated at once")
			}
			w.processes.end(tenantRun, enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, time.Minute)
			if w.reconcileCluster(); len(w.processes.started()) != 2 {
				t.Error("a deletion that failed is not repeated")
			}
			object := &v1alpha1.AetherCluster{}
			if w.get(tenantKey(), object) && !object.DeletionTimestamp.IsZero() && len(object.Finalizers) == 0 {
				t.Error("the finalizer was released by one who has not seen the tenant gone")
			}
		})
	}
}
