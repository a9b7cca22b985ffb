package kubelet

import (
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/registry"
)

// unit is one container of a pod over all its restarts.
type unit struct {
	w    *worker
	spec corev1.Container
	init bool

	// The loop's own.
	pulls       backoff
	crashWait   time.Duration // before the next restart, on a clock of speed 1
	lastRestart time.Time

	mu       sync.Mutex
	state    corev1.ContainerState
	last     corev1.ContainerState
	restarts int32
	attempt  int
	image    *registry.Image
	id       string
	ready    bool
	started  bool
	running  *container.Container
	ended    chan struct{} // closed when the end of running has been recorded
	began    time.Time
	finished time.Time
}

// newUnit continues counting where the API's status of an earlier run stands.
func newUnit(w *worker, spec *corev1.Container, init bool) *unit {
	u := &unit{w: w, spec: *spec, init: init}
	u.state.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	known := w.pod.Status.ContainerStatuses
	if init {
		known = w.pod.Status.InitContainerStatuses
	}
	for i := range known {
		if known[i].Name == spec.Name && known[i].ContainerID != "" {
			u.restarts = known[i].RestartCount + 1
			u.attempt = int(u.restarts)
		}
	}
	return u
}

func (u *unit) sidecar() bool {
	return u.init && u.spec.RestartPolicy != nil && *u.spec.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func (u *unit) isRunning() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.running != nil
}

func (u *unit) isStarted() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.running != nil && u.started
}

// hasRun tells whether the container ran at least once under this kubelet.
func (u *unit) hasRun() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.running != nil || u.lastEnd() != nil
}

// lastEnd returns how the newest finished run ended. The caller holds mu.
func (u *unit) lastEnd() *corev1.ContainerStateTerminated {
	if u.state.Terminated != nil {
		return u.state.Terminated
	}
	return u.last.Terminated
}

func (u *unit) succeeded() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.running == nil && u.state.Terminated != nil && u.state.Terminated.ExitCode == 0
}

// shouldRun applies the restart policy to a container that does not run.
func (u *unit) shouldRun(pod *corev1.Pod) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	end := u.lastEnd()
	if end == nil || u.sidecar() {
		return true
	}
	if u.init {
		return end.ExitCode != 0 && pod.Spec.RestartPolicy != corev1.RestartPolicyNever
	}
	switch pod.Spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return end.ExitCode != 0
	default:
		return true
	}
}

func (u *unit) failedForGood(pod *corev1.Pod) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	end := u.lastEnd()
	return end != nil && end.ExitCode != 0 && pod.Spec.RestartPolicy == corev1.RestartPolicyNever
}

// crashBackoff returns how long a container waits between its end and its next
// start, and what is left of that. The first restart is immediate.
func (u *unit) crashBackoff(now time.Time) (wait, left time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.finished.IsZero() || u.crashWait == 0 {
		return 0, 0
	}
	return u.crashWait, u.finished.Add(u.w.k.cfg.Clock.Scale(u.crashWait)).Sub(now)
}

// noteRestart makes the next restart wait longer, or forgets old failures.
func (u *unit) noteRestart(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.finished.IsZero() {
		return
	}
	switch {
	case u.crashWait == 0 || now.Sub(u.lastRestart) > u.w.k.cfg.Clock.Scale(backoffReset):
		u.crashWait = backoffFirst
	default:
		u.crashWait = min(2*u.crashWait, backoffLimit)
	}
	u.lastRestart = now
}

func (u *unit) setWaiting(reason, message string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.running != nil {
		return
	}
	if u.state.Terminated != nil {
		u.last = corev1.ContainerState{Terminated: u.state.Terminated}
	}
	u.state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	u.ready, u.started = false, false
}

// setWaitingIfNew is for a container that has not been tried yet.
func (u *unit) setWaitingIfNew(reason, message string) {
	if !u.hasRun() {
		u.setWaiting(reason, message)
	}
}

func (u *unit) setReady(ready bool) {
	u.mu.Lock()
	changed := u.ready != ready && u.running != nil
	if u.running != nil {
		u.ready = ready
	}
	u.mu.Unlock()
	if changed {
		u.w.poke()
	}
}

func (u *unit) setStarted() {
	u.mu.Lock()
	u.started = u.running != nil
	u.mu.Unlock()
	u.w.poke()
}

// status is the container's entry in the pod's status.
func (u *unit) status() corev1.ContainerStatus {
	u.mu.Lock()
	defer u.mu.Unlock()
	started := u.started
	status := corev1.ContainerStatus{
		Name: u.spec.Name, Image: u.spec.Image, State: *u.state.DeepCopy(), LastTerminationState: *u.last.DeepCopy(),
		RestartCount: u.restarts, Ready: u.ready, Started: &started,
	}
	if u.image != nil {
		status.Image = u.image.Ref
		status.ImageID = u.image.Repository + "@" + u.image.Digest
	}
	if u.id != "" {
		status.ContainerID = "containerd://" + u.id
	}
	if u.init && !u.sidecar() {
		status.Ready = u.running == nil && u.state.Terminated != nil && u.state.Terminated.ExitCode == 0
	}
	return status
}

// reference is the object that events about the container are recorded on.
func (u *unit) reference(pod *corev1.Pod) *corev1.ObjectReference {
	group := "containers"
	if u.init {
		group = "initContainers"
	}
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion, FieldPath: fmt.Sprintf("spec.%s{%s}", group, u.spec.Name),
	}
}

// logPath is where the log of an attempt lies, with a real node's layout.
func (u *unit) logPath(pod *corev1.Pod, attempt int) string {
	folder := pod.Namespace + "_" + pod.Name + "_" + string(pod.UID)
	return filepath.Join(u.w.k.logsDir(), folder, u.spec.Name, strconv.Itoa(attempt)+".log")
}

func now() metav1.Time { return metav1.Now().Rfc3339Copy() }
