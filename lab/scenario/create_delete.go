package scenario

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.internal/aether/internal/domain"
)

// createDelete makes a tenant, uses it and deletes it.
func createDelete() Scenario {
	const name = "brief"
	run := func(ctx context.Context, t *T) (string, error) {
		t.Cleanup(func(ctx context.Context) error { return t.ensureDeleted(ctx, name) })
		made, err := t.createTenant(ctx, name)
		if err != nil {
			return "", err
		}
		node, err := made.onlyNode(ctx)
		if err != nil {
			return "", err
		}
		if err := ready(node); err != nil {
			return "", err
		}
		if err := made.runsPod(ctx, "visitor"); err != nil {
			return "", err
		}
		uid, err := t.controlPlaneUID(ctx, name)
		if err != nil {
			return "", err
		}
		if keys, err := t.storedKeys(ctx, uid); err != nil || keys == 0 {
			return "", unexpected("the tenant's API server has %d keys in etcd: %v", keys, err)
		}
		if err := t.deleteTenant(ctx, name); err != nil {
			return "", err
		}
		if err := t.leftovers(ctx, name); err != nil {
			return "", err
		}
		if keys, err := t.storedKeys(ctx, uid); err != nil || keys != 0 {
			return "", unexpected("%d keys are left in etcd: %v", keys, err)
		}
		return fmt.Sprintf("ok (node %s ran a pod; nothing is left)", node.Name), nil
	}
	return Scenario{Name: "create-delete", Proves: "a tenant is made, used and deleted, and nothing of it is left", Run: run}
}

// ensureDeleted deletes a tenant that a scenario may have left.
func (t *T) ensureDeleted(ctx context.Context, name string) error {
	if found, err := t.namespaceOf(ctx, name); err != nil || len(found) == 0 {
		return err
	}
	return t.deleteTenant(ctx, name)
}

// runsPod runs a pod in the tenant until it is ready, and removes it.
func (n *tenant) runsPod(ctx context.Context, name string) error {
	pods := n.api.CoreV1().Pods(metav1.NamespaceDefault)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{domain.TenantLabel: n.name}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{
				Name: "web", Image: "registry.k8s.io/e2e-test-images/agnhost:2.53", Args: []string{"netexec"},
			}},
		},
	}
	err := eventually(ctx, "the service account of the namespace", func(ctx context.Context) error {
		_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	err = eventually(ctx, "pod "+name, func(ctx context.Context) error {
		seen, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range seen.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return unexpected("pod %s is %s", name, seen.Status.Phase)
	})
	if err != nil {
		return err
	}
	return pods.Delete(ctx, name, metav1.DeleteOptions{})
}
