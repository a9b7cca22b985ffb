package scenario

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"aether.internal/aether/internal/domain"
)

// tenant is a tenant that Aether made, seen by its people: over its proxy, with
// the published kubeconfig.
type tenant struct {
	name   string
	config *rest.Config
	api    kubernetes.Interface
}

// lazily makes something once for all scenarios that use it, when the first
// one does.
type lazily[V any] struct {
	once  sync.Once
	value V
	err   error
}

func (l *lazily[V]) get(build func() (V, error)) (V, error) {
	l.once.Do(func() { l.value, l.err = build() })
	return l.value, l.err
}

// sharedTenant has one worker on pv1-1. Scenarios that only look at a tenant
// use it; it lives as long as the lab.
func (t *T) sharedTenant(ctx context.Context) (*tenant, error) {
	return t.shared.get(func() (*tenant, error) { return t.createTenant(ctx, "shared") })
}

// createTenant makes a tenant with the command line and opens it.
func (t *T) createTenant(ctx context.Context, name string) (*tenant, error) {
	file, err := t.namedTenantFile(name)
	if err != nil {
		return nil, err
	}
	out, err := t.starter(ctx, "", "tenant", "create", "-f", file)
	if err != nil {
		return nil, err
	}
	if out.code != 0 {
		return nil, unexpected("starter tenant create ended with %d: %s%s", out.code, out.stdout, out.stderr)
	}
	return t.openTenant(ctx, name)
}

// openTenant opens a tenant with its published kubeconfig.
func (t *T) openTenant(ctx context.Context, name string) (*tenant, error) {
	config, err := t.World.TenantRestConfig(ctx, domain.TenantNamespace(name), name)
	if err != nil {
		return nil, err
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of tenant %s: %w", name, err)
	}
	return &tenant{name: name, config: config, api: api}, nil
}

// namedTenantFile writes the scenario's tenant file, or the common one, with
// another name.
func (t *T) namedTenantFile(name string) (string, error) {
	data, err := os.ReadFile(t.tenantFile())
	if err != nil {
		return "", fmt.Errorf("read tenant file: %w", err)
	}
	file := filepath.Join(t.Dir, name+".yaml")
	if err := os.WriteFile(file, bytes.ReplaceAll(data, []byte("planned"), []byte(name)), 0o600); err != nil {
		return "", fmt.Errorf("write tenant file: %w", err)
	}
	return file, nil
}

// deleteTenant deletes a tenant with the command line; one that is not there is
// fine.
func (t *T) deleteTenant(ctx context.Context, name string) error {
	out, err := t.starter(ctx, "", "tenant", "delete", name, "--yes")
	if err != nil {
		return err
	}
	if out.code != 0 {
		return unexpected("starter tenant delete ended with %d: %s%s", out.code, out.stdout, out.stderr)
	}
	return nil
}

// nodes lists the tenant's nodes.
func (n *tenant) nodes(ctx context.Context) ([]corev1.Node, error) {
	list, err := n.api.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("nodes of tenant %s: %w", n.name, err)
	}
	return list.Items, nil
}

// onlyNode returns the node of a tenant with one worker.
func (n *tenant) onlyNode(ctx context.Context) (*corev1.Node, error) {
	nodes, err := n.nodes(ctx)
	if err != nil {
		return nil, err
	}
	if len(nodes) != 1 {
		return nil, unexpected("tenant %s has %d nodes", n.name, len(nodes))
	}
	return &nodes[0], nil
}

// internalIP is the address the node registered with.
func internalIP(node *corev1.Node) string {
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	return ""
}

// ready tells whether the node is Ready and may be used.
func ready(node *corev1.Node) error {
	for _, taint := range node.Spec.Taints {
		if taint.Effect != corev1.TaintEffectPreferNoSchedule {
			return unexpected("node %s has taint %s", node.Name, taint.Key)
		}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return unexpected("node %s is not Ready", node.Name)
}
