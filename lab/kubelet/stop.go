package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.internal/aether/lab/network"
)

// Times that a kubelet waits before it tries an API call again.
const (
	statusRetry = time.Second
	deleteRetry = time.Second
)

var errNetworkNotReady = errors.New("network is not ready: container runtime network not ready: " + networkNotReady)

func (w *worker) podDir() string {
	return filepath.Join(w.k.podsDir(), string(w.current().UID))
}

// ensureSandbox gives the pod its network.
func (w *worker) ensureSandbox(ctx context.Context, pod *corev1.Pod) error {
	if w.sandbox != nil {
		return nil
	}
	if pod.Spec.HostNetwork {
		w.setSandbox(&sandbox{net: w.k.cfg.Net, podIP: w.k.hostIP()})
		return nil
	}
	// Both changes, of the network and of the pod CIDR, wake the worker.
	if ready, _ := w.k.cni.get(); !ready || w.k.cfg.PodNetwork == nil {
		w.event(nil, corev1.EventTypeWarning, "NetworkNotReady", errNetworkNotReady.Error())
		return errNetworkNotReady
	}
	created, err := w.attach(ctx, pod)
	if err != nil {
		if !errors.Is(err, ErrNoPodCIDR) {
			w.retryIn(w.k.cfg.Clock.Scale(backoffFirst))
		}
		w.event(nil, corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error())
		return err
	}
	w.setSandbox(created)
	return nil
}

// setSandbox also notes the address for those outside of the loop.
func (w *worker) setSandbox(s *sandbox) {
	w.sandbox = s
	w.mu.Lock()
	defer w.mu.Unlock()
	w.podIP, w.podNet = s.podIP, s.net
}

// network is the pod's namespace, nil before and after its life.
func (w *worker) network() *network.Namespace {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.podNet
}

func (w *worker) attach(ctx context.Context, pod *corev1.Pod) (*sandbox, error) {
	space, err := network.NewNamespace("pod-" + pod.Namespace + "-" + pod.Name)
	if err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	var ip netip.Addr
	ip, err = w.k.cfg.PodNetwork.Attach(ctx, Sandbox{
		UID: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name, Net: space, PodCIDR: w.k.podCIDR(),
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sandbox: %w", err), space.Close())
	}
	return &sandbox{net: space, podIP: ip.String(), ownsNet: true}, nil
}

// cleanUp frees network and volumes of a pod that no longer runs.
func (w *worker) cleanUp() {
	if w.sandbox != nil && w.sandbox.ownsNet {
		if err := w.k.cfg.PodNetwork.Detach(string(w.current().UID)); err != nil {
			w.log.Warn("cannot detach pod from the network", "error", err)
		}
		if err := w.sandbox.net.Close(); err != nil {
			w.log.Warn("cannot close pod's network namespace", "error", err)
		}
	}
	w.sandbox = nil
	w.mu.Lock()
	w.podNet = nil
	w.mu.Unlock()
	if err := removeVolumes(w.podDir()); err != nil {
		w.log.Warn("cannot remove pod directory", "error", err)
	}
	w.volumes = nil
}

// terminate ends the pod gracefully and deletes it from the API.
func (w *worker) terminate(ctx context.Context) {
	pod := w.current()
	grace := w.grace(pod)
	w.log.Debug("terminating pod", "grace", grace)
	ending, cut := context.WithCancel(ctx)
	defer cut()
	var group sync.WaitGroup
	for _, u := range w.units {
		group.Go(func() { u.stop(ending, pod, grace) })
	}
	stopped := make(chan struct{})
	go func() { group.Wait(); close(stopped) }()
	for done := false; !done; {
		select {
		case <-stopped:
			done = true
		case <-w.wake:
			if newest := w.current(); w.isGone() || w.grace(newest) < grace {
				cut() // a forced deletion does not wait
			}
		}
	}
	if ctx.Err() != nil {
		w.powerCut()
		return
	}
	w.publish(ctx)
	w.cleanUp()
	w.removeFromAPI(ctx, pod)
}

func (w *worker) grace(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	switch {
	case w.isGone():
		seconds = 0
	case pod.DeletionGracePeriodSeconds != nil:
		seconds = *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		seconds = *pod.Spec.TerminationGracePeriodSeconds
	}
	return time.Duration(seconds) * time.Second
}

// removeFromAPI is the end of a graceful deletion.
func (w *worker) removeFromAPI(ctx context.Context, pod *corev1.Pod) {
	zero := int64(0)
	for !w.isGone() {
		err := w.k.cfg.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &pod.UID},
		})
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		w.log.Warn("cannot delete terminated pod", "error", err)
		if sleep(ctx, deleteRetry) != nil {
			return
		}
	}
}

// powerCut kills everything of the pod and leaves the API alone.
func (w *worker) powerCut() {
	for _, u := range w.units {
		u.kill()
	}
	for _, u := range w.units {
		u.waitEnd()
	}
	if w.sandbox != nil && w.sandbox.ownsNet {
		if err := errors.Join(w.k.cfg.PodNetwork.Detach(string(w.current().UID)), w.sandbox.net.Close()); err != nil {
			w.log.Warn("cannot free pod's network", "error", err)
		}
	}
	if err := unmountVolumes(w.podDir()); err != nil {
		w.log.Warn("cannot unmount volumes", "error", err)
	}
}

// stop ends a running container: hook, SIGTERM, and SIGKILL when the grace
// period or the context is over.
func (u *unit) stop(ctx context.Context, pod *corev1.Pod, grace time.Duration) {
	u.mu.Lock()
	running, ended := u.running, u.ended
	u.mu.Unlock()
	if running == nil {
		return
	}
	u.w.event(u, corev1.EventTypeNormal, "Killing", "Stopping container "+u.spec.Name)
	limited, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if grace > 0 {
		u.runHook(limited, pod, u.preStop(), running)
		// Fails only if the container has just ended by itself.
		_ = running.Kill(syscall.SIGTERM)
	}
	select {
	case <-ended:
		return
	case <-limited.Done():
	}
	_ = running.Kill(syscall.SIGKILL) // as above
	<-ended
}

// kill ends a container at once.
func (u *unit) kill() {
	u.mu.Lock()
	running := u.running
	u.mu.Unlock()
	if running != nil {
		_ = running.Kill(syscall.SIGKILL) // fails only if it has just ended
	}
}

func (u *unit) waitEnd() {
	u.mu.Lock()
	running, ended := u.running, u.ended
	u.mu.Unlock()
	if running != nil {
		<-ended
	}
}
