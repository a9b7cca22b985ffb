package capi

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/site"
	"aether.internal/aether/internal/temporalclient"
)

// processes stands in for Temporal: one run per ID, as its lock has it.
type processes struct {
	mu       sync.Mutex
	runs     map[string]temporalclient.Run
	requests []temporalclient.Request
	cancels  []string
	err      error
}

func newProcesses() *processes { return &processes{runs: map[string]temporalclient.Run{}} }

func (p *processes) Start(_ context.Context, r temporalclient.Request) (temporalclient.Run, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return temporalclient.Run{}, p.err
	}
	if run, found := p.runs[r.ID]; found && run.Open() {
		return temporalclient.Run{}, &temporalclient.RunningError{Run: run}
	}
	p.requests = append(p.requests, r)
	run := temporalclient.Run{ID: r.ID, RunID: fmt.Sprintf("run-%d", len(p.requests)), Type: r.Type, Status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, Started: time.Now()}
	p.runs[r.ID] = run
	return run, nil
}

func (p *processes) Latest(_ context.Context, id string) (temporalclient.Run, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	run, found := p.runs[id]
	return run, found, p.err
}

func (p *processes) Cancel(_ context.Context, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cancels = append(p.cancels, id)
	return p.err
}

// end closes the open run of an ID.
func (p *processes) end(id string, status enumspb.WorkflowExecutionStatus, ago time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	run := p.runs[id]
	run.Status, run.Closed = status, time.Now().Add(-ago)
	p.runs[id] = run
}

// open makes a run of that type be open.
func (p *processes) open(id, kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs[id] = temporalclient.Run{ID: id, RunID: "earlier", Type: kind, Status: enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, Started: time.Now()}
}

// started lists the types of the workflows that were started, in order.
func (p *processes) started() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var types []string
	for _, r := range p.requests {
		types = append(types, r.Type)
	}
	return types
}

// world is a management cluster in memory.
type world struct {
	t         *testing.T
	client    client.WithWatch
	processes *processes
	site      *site.Site
}

func newWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	scheme, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join("..", "..", "examples", "site.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := site.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.AetherCluster{}, &v1alpha1.AetherMachine{}, &v1alpha1.AetherMachineTemplate{}, &v1alpha1.AetherVM{}).Build()
	return &world{t: t, client: c, processes: newProcesses(), site: s}
}

// failing makes the calls that fail returns an error for fail.
func (w *world) failing(fail func(verb string, object client.Object) error) {
	w.client = interceptor.NewClient(w.client, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			if err := fail("create", object); err != nil {
				return err
			}
			return c.Create(ctx, object, options...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			if err := fail("patch "+name, object); err != nil {
				return err
			}
			return c.SubResource(name).Patch(ctx, object, patch, options...)
		},
	})
}

// reconcileCluster reconciles until nothing is left to be done at once.
func (w *world) reconcileCluster() ctrl.Result {
	w.t.Helper()
	r := &clusterReconciler{client: w.client, processes: w.processes, events: events.NewFakeRecorder(100)}
	return w.settle(func() (ctrl.Result, error) { return r.Reconcile(w.t.Context(), request(tenantKey())) })
}

func (w *world) machineReconciler() *machineReconciler {
	return &machineReconciler{client: w.client, reader: w.client, processes: w.processes, site: w.site, events: events.NewFakeRecorder(100)}
}

func (w *world) reconcileMachine() ctrl.Result {
	w.t.Helper()
	r := w.machineReconciler()
	return w.settle(func() (ctrl.Result, error) { return r.Reconcile(w.t.Context(), request(machineKey())) })
}

// settle does a few rounds, as events of the first writes would cause.
func (w *world) settle(round func() (ctrl.Result, error)) ctrl.Result {
	w.t.Helper()
	var result ctrl.Result
	for range 3 {
		var err error
		if result, err = round(); err != nil {
			w.t.Fatal(err)
		}
	}
	return result
}

func request(key client.ObjectKey) ctrl.Request { return ctrl.Request{NamespacedName: key} }

func tenantKey() client.ObjectKey { return client.ObjectKey{Namespace: "tenant-demo", Name: "demo"} }

func machineKey() client.ObjectKey {
	return client.ObjectKey{Namespace: "tenant-demo", Name: "demo-workers-abc"}
}

func (w *world) get(key client.ObjectKey, into client.Object) bool {
	w.t.Helper()
	err := w.client.Get(w.t.Context(), key, into)
	if client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
	return err == nil
}

func (w *world) vms() []v1alpha1.AetherVM {
	w.t.Helper()
	list := &v1alpha1.AetherVMList{}
	if err := w.client.List(w.t.Context(), list, client.InNamespace(domain.SystemNamespace)); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

// cluster is a Cluster as core has it once the infrastructure is there.
func cluster() *clusterv1.Cluster {
	c := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-demo", Name: "demo"}}
	c.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{Kind: domain.AetherClusterKind, Name: "demo"}
	c.Status.Initialization.InfrastructureProvisioned = new(true)
	return c
}

func tenant() *v1alpha1.AetherCluster {
	return &v1alpha1.AetherCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-demo", Name: "demo", Generation: 1},
		Spec:       v1alpha1.AetherClusterSpec{Version: "v1.35.4"},
	}
}

// owned sets core as owner the way core does for clusters without topology: not
// as controller.
func owned[T client.Object](object T, kind, name string) T {
	object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: kind, Name: name, UID: "1"}})
	return object
}

// deleted makes an object that is being deleted and held by a finalizer.
func deleted[T client.Object](object T, finalizer string) T {
	now := metav1.Now()
	object.SetDeletionTimestamp(&now)
	object.SetFinalizers([]string{finalizer})
	return object
}
