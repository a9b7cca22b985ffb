package kubelet

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"aether.internal/aether/lab/container"
)

func (u *unit) postStart() *corev1.LifecycleHandler {
	if u.spec.Lifecycle == nil {
		return nil
	}
	return u.spec.Lifecycle.PostStart
}

func (u *unit) preStop() *corev1.LifecycleHandler {
	if u.spec.Lifecycle == nil {
		return nil
	}
	return u.spec.Lifecycle.PreStop
}

// runHook runs a lifecycle hook. A failed one is told as an event; the
// container goes on, since what it was meant to do is not known.
func (u *unit) runHook(ctx context.Context, pod *corev1.Pod, hook *corev1.LifecycleHandler, running *container.Container) {
	if hook == nil {
		return
	}
	if hook.Sleep != nil {
		// Cut short only by the end of the grace period, which is what ctx is.
		_ = sleep(ctx, time.Duration(hook.Sleep.Seconds)*time.Second)
		return
	}
	handler := &corev1.ProbeHandler{Exec: hook.Exec, HTTPGet: hook.HTTPGet, TCPSocket: hook.TCPSocket}
	if err := u.check(ctx, pod, handler, running); err != nil {
		u.w.event(u, corev1.EventTypeWarning, "FailedLifecycleHook", err.Error())
	}
}
