package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.temporal.io/sdk/client"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/workflows"
)

// kubectlApply makes a tenant through the shim, with the file that the command
// line takes.
func kubectlApply() Scenario {
	const name = "applied"
	run := func(ctx context.Context, t *T) (string, error) {
		j, err := t.newJourney(ctx, name)
		if err != nil {
			return "", err
		}
		data, err := os.ReadFile(filepath.Join(t.Source, "examples", "tenant.yaml"))
		if err != nil {
			return "", fmt.Errorf("read the example: %w", err)
		}
		text := strings.NewReplacer("demo", name, "replicas: 2", "replicas: 1", "[pv1-1, pv1-2]", "[pv1-1]").Replace(string(data))
		file := filepath.Join(t.Dir, "tenant.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return "", fmt.Errorf("write tenant: %w", err)
		}
		if err := t.apply(ctx, file); err != nil {
			return "", err
		}
		err = eventually(ctx, "the shim to start the creation", func(ctx context.Context) error {
			_, err := j.temporal.DescribeWorkflowExecution(ctx, j.id(), "")
			return err
		})
		if err != nil {
			return "", err
		}
		if err := j.arrives(ctx); err != nil {
			return "", err
		}
		cluster := &v1alpha1.AetherCluster{}
		if err := t.Kube.Get(ctx, kubeclient.ObjectKey{Namespace: domain.TenantNamespace(name), Name: name}, cluster); err != nil {
			return "", fmt.Errorf("read AetherCluster: %w", err)
		}
		return fmt.Sprintf("ok (endpoint %s from examples/tenant.yaml)", cluster.Spec.ControlPlaneEndpoint.Host), t.kubectlDelete(ctx, name)
	}
	return Scenario{Name: "kubectl-apply", Proves: "kubectl apply of the tenant's file makes the same tenant", Run: run}
}

// kubectlDelete deletes the Cluster, and then the namespace, which is not
// Aether's: the file made it.
func (t *T) kubectlDelete(ctx context.Context, name string) error {
	namespace := domain.TenantNamespace(name)
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := t.Kube.Delete(ctx, cluster); err != nil {
		return fmt.Errorf("delete Cluster: %w", err)
	}
	err := eventually(ctx, "all but the namespace to be gone", func(ctx context.Context) error {
		left, err := t.remains(ctx, name)
		if err == nil && !slices.Equal(left, []string{"namespace " + namespace}) {
			return unexpected("left: %s", strings.Join(left, ", "))
		}
		return err
	})
	if err != nil {
		return err
	}
	return t.Kube.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
}

// rawStart makes a tenant by the bare Temporal API with the JSON of the file,
// without the codec.
func rawStart() Scenario {
	const name = "raw"
	run := func(ctx context.Context, t *T) (string, error) {
		j, err := t.newJourney(ctx, name)
		if err != nil {
			return "", err
		}
		file, err := t.namedTenantFile(name)
		if err != nil {
			return "", err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("read tenant: %w", err)
		}
		var document json.RawMessage
		if document, err = yaml.YAMLToJSON(data); err != nil {
			return "", fmt.Errorf("read tenant: %w", err)
		}
		bare, err := client.DialContext(ctx, t.World.Temporal.ClientOptions())
		if err != nil {
			return "", fmt.Errorf("connect to Temporal: %w", err)
		}
		defer bare.Close()
		options := client.StartWorkflowOptions{ID: j.id(), TaskQueue: workflows.TaskQueue}
		if _, err := bare.ExecuteWorkflow(ctx, options, "CreateTenant", document); err != nil {
			return "", fmt.Errorf("start workflow: %w", err)
		}
		return "ok (CreateTenant with the file's JSON)", j.complete(ctx)
	}
	return Scenario{Name: "raw-start", Proves: "CreateTenant with the file's JSON through the bare Temporal API makes the same tenant", Run: run}
}
