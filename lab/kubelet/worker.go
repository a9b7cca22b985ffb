package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"aether.internal/aether/lab/network"
)

// worker runs one pod, from its first sight to its end. Its loop is the only
// one that starts and stops things; everybody else pokes it.
type worker struct {
	k   *Kubelet
	log *slog.Logger

	wake chan struct{}

	mu         sync.Mutex
	pod        *corev1.Pod // as the API has it
	base       *corev1.Pod // newest version known, for status patches
	gone       bool        // removed from the API
	over       bool        // the loop has ended
	cancelSync context.CancelFunc
	podIP      string
	podNet     *network.Namespace

	units []*unit // init containers, then containers

	// Below is the loop's own.
	sandbox    *sandbox
	volumes    map[string]string // name → directory on the host
	tokens     []token
	mounts     backoff
	next       time.Duration // until the loop looks again; 0 means when poked
	terminated bool
}

// sandbox is what the containers of a pod share.
type sandbox struct {
	net     *network.Namespace
	podIP   string
	ownsNet bool
}

func newWorker(k *Kubelet, pod *corev1.Pod) *worker {
	w := &worker{
		k: k, pod: pod, base: pod, wake: make(chan struct{}, 1),
		log: k.log.With("pod", pod.Namespace+"/"+pod.Name),
	}
	for i := range pod.Spec.InitContainers {
		w.units = append(w.units, newUnit(w, &pod.Spec.InitContainers[i], true))
	}
	for i := range pod.Spec.Containers {
		w.units = append(w.units, newUnit(w, &pod.Spec.Containers[i], false))
	}
	return w
}

func (w *worker) current() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

// update takes a newer version from the API.
func (w *worker) update(pod *corev1.Pod) {
	w.mu.Lock()
	w.pod = pod
	if newer(pod, w.base) {
		w.base = pod
	}
	if pod.DeletionTimestamp != nil && w.cancelSync != nil {
		w.cancelSync() // a pull or a wait must not hold up the end
	}
	w.mu.Unlock()
	w.poke()
}

// forget notes that the API no longer has the pod, and tells whether the
// worker is done with it, too.
func (w *worker) forget() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = true
	if w.cancelSync != nil {
		w.cancelSync()
	}
	w.poke()
	return w.over
}

// end notes that the loop has ended, and tells whether the API is done with
// the pod, too. Until both are, the worker stays known, or a late update would
// start the pod again.
func (w *worker) end() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	return w.gone
}

func (w *worker) isGone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone
}

func (w *worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default: // a wake-up is waiting already
	}
}

// retryIn asks for another look; the soonest wins.
func (w *worker) retryIn(d time.Duration) {
	d = max(d, time.Millisecond)
	if w.next == 0 || d < w.next {
		w.next = d
	}
}

// run is the worker's loop.
func (w *worker) run(ctx context.Context) {
	for {
		if pod := w.current(); w.isGone() || pod.DeletionTimestamp != nil {
			w.terminate(ctx)
			return
		}
		w.look(ctx)
		if !w.rest(ctx) {
			w.powerCut()
			return
		}
	}
}

// rest waits for a reason to look again; false when the node goes down.
func (w *worker) rest(ctx context.Context) bool {
	var due <-chan time.Time
	if w.next > 0 {
		timer := time.NewTimer(w.next)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-w.wake:
	case <-due:
	}
	return true
}

// look brings the pod one step closer to its spec and publishes its status.
func (w *worker) look(ctx context.Context) {
	syncCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.mu.Lock()
	w.cancelSync = cancel
	ending := w.gone || w.pod.DeletionTimestamp != nil
	w.mu.Unlock()
	if ending {
		return
	}
	w.next = 0
	if !w.terminated {
		w.sync(syncCtx)
	}
	w.publish(ctx)
}

func (w *worker) sync(ctx context.Context) {
	pod := w.current()
	if w.allEnded(pod) {
		w.cleanUp()
		w.terminated = true
		return
	}
	if err := w.ensureSandbox(ctx, pod); err != nil {
		w.waitAll("ContainerCreating", "")
		return
	}
	if !w.ensureVolumes(ctx, pod) {
		w.waitAll("ContainerCreating", "")
		return
	}
	if !w.syncInit(ctx, pod) {
		return
	}
	for _, u := range w.units {
		if !u.init {
			w.syncUnit(ctx, pod, u)
		}
	}
}

// syncInit runs the init containers in order. It tells whether the pod's own
// containers may run.
func (w *worker) syncInit(ctx context.Context, pod *corev1.Pod) bool {
	if w.mainStarted() { // init containers do not run again in a living pod
		for _, u := range w.units {
			if u.sidecar() {
				w.syncUnit(ctx, pod, u)
			}
		}
		return true
	}
	for _, u := range w.units {
		if !u.init {
			continue
		}
		w.syncUnit(ctx, pod, u)
		if u.sidecar() && u.isStarted() {
			continue
		}
		if !u.succeeded() {
			w.waitMain("PodInitializing")
			return false
		}
	}
	return true
}

func (w *worker) mainStarted() bool {
	for _, u := range w.units {
		if !u.init && u.hasRun() {
			return true
		}
	}
	return false
}

// syncUnit starts a container that should run and does not.
func (w *worker) syncUnit(ctx context.Context, pod *corev1.Pod, u *unit) {
	if u.isRunning() || !u.shouldRun(pod) || ctx.Err() != nil {
		return
	}
	if wait, left := u.crashBackoff(time.Now()); left > 0 {
		u.setWaiting("CrashLoopBackOff", fmt.Sprintf(
			"back-off %s restarting failed container=%s pod=%s_%s(%s)", wait, u.spec.Name, pod.Name, pod.Namespace, pod.UID,
		))
		w.event(u, corev1.EventTypeWarning, "BackOff", fmt.Sprintf("Back-off restarting failed container %s in pod %s_%s(%s)", u.spec.Name, pod.Name, pod.Namespace, pod.UID))
		w.retryIn(left)
		return
	}
	image := w.ensureImage(ctx, u)
	if image == nil {
		return
	}
	w.start(ctx, pod, u, image)
	w.publish(ctx)
}

// allEnded tells whether no container will ever run again.
func (w *worker) allEnded(pod *corev1.Pod) bool {
	for _, u := range w.units {
		if u.init && !u.sidecar() && u.failedForGood(pod) {
			return !w.anyRunning()
		}
	}
	for _, u := range w.units {
		if !u.init && (u.isRunning() || !u.hasRun() || u.shouldRun(pod)) {
			return false
		}
	}
	w.stopSidecars()
	return true
}

func (w *worker) anyRunning() bool {
	for _, u := range w.units {
		if u.isRunning() {
			return true
		}
	}
	return false
}

func (w *worker) stopSidecars() {
	for _, u := range w.units {
		if u.sidecar() {
			u.kill()
		}
	}
}

func (w *worker) waitAll(reason, message string) {
	for _, u := range w.units {
		if w.hasInit() && !u.init {
			u.setWaitingIfNew("PodInitializing", "")
			continue
		}
		u.setWaitingIfNew(reason, message)
	}
}

func (w *worker) waitMain(reason string) {
	for _, u := range w.units {
		if !u.init {
			u.setWaitingIfNew(reason, "")
		}
	}
}

func (w *worker) hasInit() bool { return len(w.units) > 0 && w.units[0].init }

func (w *worker) event(u *unit, kind, reason, message string) {
	pod := w.current()
	if w.k.recorder == nil {
		return
	}
	if u == nil {
		w.k.recorder.Event(pod, kind, reason, message)
		return
	}
	w.k.recorder.Event(u.reference(pod), kind, reason, message)
}
