package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// finished tells whether a pod has ended by itself.
func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// newer compares two versions of one object.
func newer(a, b *corev1.Pod) bool {
	left, errA := strconv.ParseUint(a.ResourceVersion, 10, 64)
	right, errB := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return errA != nil || errB != nil || left >= right
}

// status computes the pod's status from its containers.
func (w *worker) status() corev1.PodStatus {
	w.mu.Lock()
	pod, base := w.pod, w.base
	w.mu.Unlock()
	status := *base.Status.DeepCopy()
	status.InitContainerStatuses, status.ContainerStatuses = nil, nil
	for _, u := range w.units {
		if u.init {
			status.InitContainerStatuses = append(status.InitContainerStatuses, u.status())
		} else {
			status.ContainerStatuses = append(status.ContainerStatuses, u.status())
		}
	}
	status.Phase = w.phase(pod)
	status.HostIP = w.k.hostIP()
	if status.HostIP != "" {
		status.HostIPs = []corev1.HostIP{{IP: status.HostIP}}
	}
	if status.StartTime == nil {
		start := now()
		status.StartTime = &start
	}
	if w.sandbox != nil {
		status.PodIP, status.PodIPs = w.sandbox.podIP, nil
		if w.sandbox.podIP != "" {
			status.PodIPs = []corev1.PodIP{{IP: w.sandbox.podIP}}
		}
	}
	status.ObservedGeneration = pod.Generation
	w.setConditions(pod, &status)
	return status
}

// phase follows the rules of a kubelet.
func (w *worker) phase(pod *corev1.Pod) corev1.PodPhase {
	if finished(pod) {
		return pod.Status.Phase
	}
	for _, u := range w.units {
		if u.init && !u.sidecar() && u.failedForGood(pod) {
			return corev1.PodFailed
		}
	}
	running, waiting, failed, ended := 0, 0, 0, 0
	for _, u := range w.units {
		if u.init {
			continue
		}
		status := u.status()
		switch {
		case status.State.Running != nil:
			running++
		case status.State.Terminated == nil && status.LastTerminationState.Terminated == nil:
			waiting++
		case u.shouldRun(pod):
			running++ // it has run and will again
		default:
			ended++
			if !u.succeeded() {
				failed++
			}
		}
	}
	switch {
	case waiting > 0:
		return corev1.PodPending
	case running > 0:
		return corev1.PodRunning
	case failed > 0:
		return corev1.PodFailed
	case ended > 0:
		return corev1.PodSucceeded
	default:
		return corev1.PodPending
	}
}

func (w *worker) setConditions(pod *corev1.Pod, status *corev1.PodStatus) {
	ended := status.Phase == corev1.PodSucceeded || status.Phase == corev1.PodFailed
	var unready, uninitialized []string
	for _, u := range w.units {
		s := u.status()
		if u.init && !u.sidecar() && !s.Ready && !w.mainStarted() {
			uninitialized = append(uninitialized, u.spec.Name)
		}
		if (!u.init || u.sidecar()) && !s.Ready {
			unready = append(unready, u.spec.Name)
		}
	}
	list := func(what string, names []string) string {
		return fmt.Sprintf("containers with %s status: [%s]", what, strings.Join(names, " "))
	}
	set := func(kind corev1.PodConditionType, problem bool, reason, message string) {
		condition := corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, ObservedGeneration: pod.Generation}
		if problem {
			condition.Status, condition.Reason, condition.Message = corev1.ConditionFalse, reason, message
		}
		setPodCondition(status, condition)
	}
	set(corev1.PodReadyToStartContainers, w.sandbox == nil, "", "")
	set(corev1.PodInitialized, len(uninitialized) > 0, "ContainersNotInitialized", list("incomplete", uninitialized))
	reason, message := "ContainersNotReady", list("unready", unready)
	if ended {
		reason, message = "PodCompleted", ""
	}
	notReady := len(unready) > 0 || ended
	set(corev1.ContainersReady, notReady, reason, message)
	gates := openGates(pod, status)
	if !notReady && len(gates) > 0 {
		reason, message = "ReadinessGatesNotReady", fmt.Sprintf("conditions of readiness gates are not True: %v", gates)
	}
	set(corev1.PodReady, notReady || len(gates) > 0, reason, message)
	set(corev1.PodScheduled, false, "", "")
}

func openGates(pod *corev1.Pod, status *corev1.PodStatus) []corev1.PodConditionType {
	var open []corev1.PodConditionType
	for _, gate := range pod.Spec.ReadinessGates {
		met := false
		for i := range status.Conditions {
			met = met || status.Conditions[i].Type == gate.ConditionType && status.Conditions[i].Status == corev1.ConditionTrue
		}
		if !met {
			open = append(open, gate.ConditionType)
		}
	}
	return open
}

func setPodCondition(status *corev1.PodStatus, condition corev1.PodCondition) {
	condition.LastTransitionTime = now()
	for i := range status.Conditions {
		if status.Conditions[i].Type != condition.Type {
			continue
		}
		if status.Conditions[i].Status == condition.Status {
			condition.LastTransitionTime = status.Conditions[i].LastTransitionTime
		}
		status.Conditions[i] = condition
		return
	}
	status.Conditions = append(status.Conditions, condition)
}

// publish writes the status to the API if it says something new.
func (w *worker) publish(ctx context.Context) {
	if w.isGone() {
		return
	}
	if err := w.patchStatus(ctx, w.status()); err != nil && ctx.Err() == nil {
		w.log.Warn("cannot write pod status", "error", err)
		w.retryIn(statusRetry)
	}
}

func (w *worker) patchStatus(ctx context.Context, status corev1.PodStatus) error {
	w.mu.Lock()
	base := w.base
	w.mu.Unlock()
	if equality.Semantic.DeepEqual(base.Status, status) {
		return nil
	}
	patch, err := statusPatch(base, status)
	if err != nil {
		return err
	}
	pods := w.k.cfg.Client.CoreV1().Pods(base.Namespace)
	patched, err := pods.Patch(ctx, base.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // deleted, or replaced by another pod of that name
	}
	if err != nil {
		return fmt.Errorf("patch status of pod %s/%s: %w", base.Namespace, base.Name, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if newer(patched, w.base) {
		w.base = patched
	}
	return nil
}

// statusPatch is the difference, valid for this very pod only.
func statusPatch(base *corev1.Pod, status corev1.PodStatus) ([]byte, error) {
	before, err := json.Marshal(corev1.Pod{Status: base.Status})
	if err != nil {
		return nil, fmt.Errorf("status of pod %s/%s: %w", base.Namespace, base.Name, err)
	}
	after := corev1.Pod{Status: status}
	after.UID = base.UID
	changed, err := json.Marshal(after)
	if err != nil {
		return nil, fmt.Errorf("status of pod %s/%s: %w", base.Namespace, base.Name, err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, changed, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("status of pod %s/%s: %w", base.Namespace, base.Name, err)
	}
	return patch, nil
}
