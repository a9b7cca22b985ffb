package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// Kubelet runs the pods of one node.
type Kubelet struct {
	cfg    Config
	log    *slog.Logger
	images *imageStore

	recorder record.EventRecorder
	services corelisters.ServiceLister

	node atomic.Pointer[corev1.Node] // as last seen in the API
	cni  *level

	mu      sync.Mutex
	workers map[types.UID]*worker
	running sync.WaitGroup
}

// New checks the configuration and returns a Kubelet that has not begun.
func New(cfg Config) (*Kubelet, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return &Kubelet{
		cfg: cfg, log: cfg.Log, images: newImageStore(cfg.Pull), cni: newLevel(),
		workers: map[types.UID]*worker{},
	}, nil
}

// Run registers the node and runs its pods until the context ends; then it
// kills what it started, as a power cut would, and returns nil.
func (k *Kubelet) Run(ctx context.Context) error {
	if err := k.makeRoot(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopEvents := k.startEvents(ctx)
	defer stopEvents()
	group, ctx := errgroup.WithContext(ctx)
	server, err := k.newServer()
	if err != nil {
		return err
	}
	group.Go(func() error { return server.serve(ctx) })
	group.Go(func() error { return k.watchCNI(ctx) })
	group.Go(func() error {
		if err := k.register(ctx); err != nil {
			return err
		}
		group.Go(func() error { return k.heartbeat(ctx) })
		group.Go(func() error { return k.reportStatus(ctx) })
		return k.runPods(ctx)
	})
	err = group.Wait()
	k.running.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// makeRoot makes the directories that every node has: host paths may ask for
// them to be there.
func (k *Kubelet) makeRoot() error {
	for _, dir := range []string{"dev", "etc", "lib/modules", "proc", "run", "sys/fs/cgroup", "tmp", "var/run", "var/lib/kubelet/pods"} {
		if err := os.MkdirAll(filepath.Join(k.cfg.Dir, dir), 0o755); err != nil {
			return fmt.Errorf("root directory of %s: %w", k.cfg.NodeName, err)
		}
	}
	return nil
}

func (k *Kubelet) podsDir() string { return filepath.Join(k.cfg.Dir, "var/lib/kubelet/pods") }

func (k *Kubelet) logsDir() string { return filepath.Join(k.cfg.Dir, "var/log/pods") }

func (k *Kubelet) startEvents(ctx context.Context) (stop func()) {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: k.cfg.Client.CoreV1().Events("")})
	k.recorder = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: k.cfg.NodeName})
	return broadcaster.Shutdown
}

// runPods watches what is bound to this node.
func (k *Kubelet) runPods(ctx context.Context) error {
	onNode := informers.NewSharedInformerFactoryWithOptions(k.cfg.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", k.cfg.NodeName).String()
	}))
	ownNode := informers.NewSharedInformerFactoryWithOptions(k.cfg.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", k.cfg.NodeName).String()
	}))
	everything := informers.NewSharedInformerFactory(k.cfg.Client, 0)

	k.services = everything.Core().V1().Services().Lister()
	if _, err := ownNode.Core().V1().Nodes().Informer().AddEventHandler(k.nodeHandler()); err != nil {
		return fmt.Errorf("watch node %s: %w", k.cfg.NodeName, err)
	}
	services := everything.Core().V1().Services().Informer().HasSynced
	everything.Start(ctx.Done())
	ownNode.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), services, ownNode.Core().V1().Nodes().Informer().HasSynced) {
		return ctx.Err()
	}
	pods := onNode.Core().V1().Pods().Informer()
	registration, err := pods.AddEventHandler(k.podHandler(ctx))
	if err != nil {
		return fmt.Errorf("watch pods of %s: %w", k.cfg.NodeName, err)
	}
	onNode.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return ctx.Err()
	}
	k.removeOrphans()
	<-ctx.Done()
	return ctx.Err()
}

func (k *Kubelet) nodeHandler() cache.ResourceEventHandler {
	set := func(obj any) {
		if node, ok := obj.(*corev1.Node); ok {
			k.node.Store(node)
			k.wakeAll()
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: set, UpdateFunc: func(_, obj any) { set(obj) }}
}

func (k *Kubelet) podHandler(ctx context.Context) cache.ResourceEventHandler {
	set := func(obj any) {
		if pod, ok := obj.(*corev1.Pod); ok {
			k.dispatch(ctx, pod)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, obj any) { set(obj) },
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				k.forget(pod.UID)
			}
		},
	}
}

// dispatch hands a pod to its worker and starts one for a new pod.
func (k *Kubelet) dispatch(ctx context.Context, pod *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w, ok := k.workers[pod.UID]
	if ok {
		w.update(pod)
		return
	}
	if ctx.Err() != nil || finished(pod) && pod.DeletionTimestamp == nil {
		return // going down, or ended before this kubelet began
	}
	w = newWorker(k, pod)
	k.workers[pod.UID] = w
	k.running.Go(func() {
		w.run(ctx)
		k.mu.Lock()
		defer k.mu.Unlock()
		if w.end() {
			delete(k.workers, pod.UID)
		}
	})
}

func (k *Kubelet) forget(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w, ok := k.workers[uid]; ok && w.forget() {
		delete(k.workers, uid)
	}
}

func (k *Kubelet) wakeAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range k.workers {
		w.poke()
	}
}

// find returns the worker of a pod by name; uid may be empty.
func (k *Kubelet) find(namespace, name string, uid types.UID) (*worker, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range k.workers {
		pod := w.current()
		if pod.Namespace == namespace && pod.Name == name && (uid == "" || uid == pod.UID) {
			return w, true
		}
	}
	return nil, false
}

// removeOrphans deletes the directories of pods that the API server no longer
// has: a machine that was off during a deletion finds them at its next start.
func (k *Kubelet) removeOrphans() {
	entries, err := os.ReadDir(k.podsDir())
	if err != nil {
		k.log.Warn("cannot list pod directories", "error", err)
		return
	}
	for _, entry := range entries {
		k.mu.Lock()
		_, known := k.workers[types.UID(entry.Name())]
		k.mu.Unlock()
		if known {
			continue
		}
		k.log.Info("removing the directory of a pod that no longer exists", "uid", entry.Name())
		if err := removeVolumes(filepath.Join(k.podsDir(), entry.Name())); err != nil {
			k.log.Warn("cannot remove pod directory", "uid", entry.Name(), "error", err)
		}
	}
}

// watchCNI turns the answer of CNIReady into something that can be waited for.
// A directory is all there is to watch, as for the container runtime.
func (k *Kubelet) watchCNI(ctx context.Context) error {
	ticker := time.NewTicker(cniPeriod)
	defer ticker.Stop()
	for {
		if k.cni.set(k.cfg.CNIReady()) {
			k.wakeAll()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

const cniPeriod = 500 * time.Millisecond

// level is a boolean that can be waited for.
type level struct {
	mu      sync.Mutex
	value   bool
	changed chan struct{}
}

func newLevel() *level { return &level{changed: make(chan struct{})} }

// set changes the value and tells whether it was another one.
func (l *level) set(value bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.value == value {
		return false
	}
	l.value = value
	close(l.changed)
	l.changed = make(chan struct{})
	return true
}

// get returns the value and a channel that is closed at its next change.
func (l *level) get() (bool, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value, l.changed
}
