package kamaji

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// finalizerStore is released after the tenant's data is gone.
	finalizerStore = "finalizer.kamaji.clastix.io"

	gonePoll = 500 * time.Millisecond
)

// Delete asks for the deletion. One that is not there is fine. Deleted is not
// gone: see Remains.
func (c *Client) Delete(ctx context.Context, ref Ref) error {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(groupVersion().WithKind(kindTCP))
	object.SetNamespace(ref.Namespace)
	object.SetName(ref.Name)
	return sorted("delete", ref, client.IgnoreNotFound(c.api.Delete(ctx, object)))
}

// Remainder is something that is still there of a deleted control plane.
type Remainder struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Reason string `json:"reason,omitempty"`
}

// String tells it in one line.
func (r Remainder) String() string {
	if r.Reason == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Name + ": " + r.Reason
}

// Remains lists what is still there: the object, which goes first, then
// Deployment and pods. While a pod lives, its API server still writes into the
// datastore, so a successor of the same name must wait.
func (c *Client) Remains(ctx context.Context, ref Ref) ([]Remainder, error) {
	var left []Remainder
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(groupVersion().WithKind(kindTCP))
	switch err := c.api.Get(ctx, client.ObjectKey(ref), object); {
	case err == nil:
		left = append(left, Remainder{Kind: kindTCP, Name: ref.Name, Reason: c.holding(object)})
	case client.IgnoreNotFound(err) != nil:
		return nil, sorted("look for", ref, err)
	}
	deployment, err := c.deployment(ctx, ref)
	if err != nil {
		return nil, err
	}
	if deployment != nil && ownedByKamaji(deployment) {
		left = append(left, Remainder{Kind: "Deployment", Name: deployment.Name, Reason: "waits for the garbage collector"})
	}
	pods := &corev1.PodList{}
	if err := c.api.List(ctx, pods, owner(ref)...); err != nil {
		return nil, sorted("list pods of", ref, err)
	}
	for _, pod := range pods.Items {
		left = append(left, Remainder{Kind: "Pod", Name: pod.Name, Reason: podState(&pod)})
	}
	return left, nil
}

func ownedByKamaji(deployment *appsv1.Deployment) bool {
	return slices.ContainsFunc(deployment.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == kindTCP })
}

// holding says why the object itself is still there.
func (c *Client) holding(object *unstructured.Unstructured) string {
	deleted := object.GetDeletionTimestamp()
	if deleted == nil {
		return "is not being deleted"
	}
	since := c.now().Sub(deleted.Time).Round(time.Second)
	reason := fmt.Sprintf("deleting for %s, held by %s", since, strings.Join(object.GetFinalizers(), ", "))
	if slices.Equal(object.GetFinalizers(), []string{finalizerStore}) {
		reason += "; Kamaji removes it after the tenant's data: is Kamaji up, and does its datastore answer?"
	}
	return reason
}

func podState(pod *corev1.Pod) string {
	if pod.DeletionTimestamp == nil {
		return "not being deleted yet"
	}
	return "terminating on node " + pod.Spec.NodeName
}

// WaitGone waits until nothing remains, and tells each time what does. The end
// of the context is its only limit.
func (c *Client) WaitGone(ctx context.Context, ref Ref, told func([]Remainder)) error {
	for {
		left, err := c.Remains(ctx, ref)
		if err != nil {
			return err
		}
		if told != nil {
			told(left)
		}
		if len(left) == 0 {
			return nil
		}
		timer := time.NewTimer(gonePoll)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait until control plane %s is gone: %w; still there: %s", ref, ctx.Err(), left[0])
		case <-timer.C:
		}
	}
}
