package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	corev1 "k8s.io/api/core/v1"

	"aether.internal/aether/activities"
	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/workflows"
)

func newTenant(p *program) *cobra.Command {
	command := group(&cobra.Command{Use: "tenant", Aliases: []string{"tenants"}, Short: "Create, change and delete tenants"})
	command.AddCommand(
		newTenantWrite(p, "create", "CreateTenant", "Create a tenant from a file, and follow it"),
		newTenantWrite(p, "apply", "ApplyTenant", "Change a tenant to what a file says, and follow it"),
		newTenantGet(p),
		newTenantList(p),
		newTenantWatch(p),
		newTenantPlan(p),
		newTenantKubeconfig(p),
		newTenantDelete(p),
	)
	return command
}

// newTenantWrite is create and apply: they differ in the workflow they start.
func newTenantWrite(p *program, use, workflow, short string) *cobra.Command {
	var file string
	var output *format
	var detach, dryRun bool
	command := &cobra.Command{
		Use: use + " -f FILE", Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			tenant, err := readTenant(p.streams, file)
			if err != nil {
				return err
			}
			if dryRun {
				return printPlan(cmd.Context(), p, tenant, workflow == "ApplyTenant", *output)
			}
			return startTenant(cmd.Context(), p, workflow, tenant, detach)
		},
	}
	command.Flags().StringVarP(&file, "file", "f", "", "tenant file, or - for standard input")
	command.Flags().BoolVar(&detach, "detach", false, "return once the workflow has started")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "print the plan with every check, and change nothing")
	output = outputFlag(command, "of --dry-run: table, json or yaml")
	return command
}

func startTenant(ctx context.Context, p *program, workflow string, tenant domain.Tenant, detach bool) error {
	t, err := p.temporal(ctx)
	if err != nil {
		return err
	}
	defer t.Close()
	id := workflows.TenantWorkflowID(tenant.Name)
	run, err := t.processes.Start(ctx, temporalclient.Request{
		ID: id, Type: workflow, Input: tenant.Document(), Tenant: tenant.Name, Summary: workflow + " " + tenant.Name,
	})
	var running *temporalclient.RunningError
	if errors.As(err, &running) {
		return fmt.Errorf("%w: `aether tenant watch %s` shows it", err, tenant.Name)
	}
	if err != nil {
		return err
	}
	if err := t.warnNoWorker(ctx, p.streams); err != nil {
		return err
	}
	if detach {
		_, err := fmt.Fprintf(p.out, "started %s for %s; `aether tenant watch %s` shows it\n", workflow, id, tenant.Name)
		return err
	}
	if err := t.follow(ctx, p.streams, id, run.RunID); err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.out, "tenant %s is ready; `aether tenant kubeconfig %s` prints its kubeconfig\n", tenant.Name, tenant.Name)
	return err
}

func newTenantGet(p *program) *cobra.Command {
	var output *format
	command := &cobra.Command{
		Use: "get NAME", Short: "Show a tenant with its conditions", Args: cobra.ExactArgs(1), ValidArgsFunction: p.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			kube, err := p.kube()
			if err != nil {
				return err
			}
			tenant, err := getTenant(cmd.Context(), kube, args[0])
			if err != nil {
				return err
			}
			t := table{head: []string{"CONDITION", "STATUS", "REASON", "MESSAGE"}}
			for _, c := range tenant.Status.Conditions {
				t.rows = append(t.rows, []string{c.Type, string(c.Status), c.Reason, c.Message})
			}
			forPeople(v1alpha1.GroupVersion.WithKind(domain.AetherClusterKind), tenant)
			return show(p.out, *output, tenant, t)
		},
	}
	output = outputFlag(command, "table, json or yaml")
	return command
}

func getTenant(ctx context.Context, kube kubeclient.Client, name string) (*v1alpha1.AetherCluster, error) {
	tenant := &v1alpha1.AetherCluster{}
	err := kube.Get(ctx, kubeclient.ObjectKey{Namespace: domain.TenantNamespace(name), Name: name}, tenant)
	if kubeclient.IgnoreNotFound(err) == nil && err != nil {
		return nil, fmt.Errorf("tenant %q %w; `aether tenant list` shows those that do", name, errNoTenant)
	}
	if err != nil {
		return nil, fmt.Errorf("read tenant %s: %w", name, err)
	}
	return tenant, nil
}

var errNoTenant = errors.New("does not exist")

func newTenantList(p *program) *cobra.Command {
	var output *format
	command := &cobra.Command{
		Use: "list", Short: "List tenants", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			kube, err := p.kube()
			if err != nil {
				return err
			}
			list := &v1alpha1.AetherClusterList{}
			if err := kube.List(cmd.Context(), list); err != nil {
				return fmt.Errorf("list tenants: %w", err)
			}
			t := table{head: []string{"NAME", "VERSION", "ENDPOINT", "READY", "REASON"}}
			for _, tenant := range list.Items {
				ready, reason := "Unknown", ""
				if c := meta.FindStatusCondition(tenant.Status.Conditions, v1alpha1.ReadyCondition); c != nil {
					ready, reason = string(c.Status), c.Reason
				}
				t.rows = append(t.rows, []string{tenant.Name, tenant.Spec.Version, tenant.Spec.ControlPlaneEndpoint.Host, ready, reason})
			}
			list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(domain.AetherClusterKind + "List"))
			for i := range list.Items {
				forPeople(v1alpha1.GroupVersion.WithKind(domain.AetherClusterKind), &list.Items[i])
			}
			return show(p.out, *output, list, t)
		},
	}
	output = outputFlag(command, "table, json or yaml")
	return command
}

func newTenantWatch(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "watch NAME", Short: "Follow the workflow that runs for a tenant", Args: cobra.ExactArgs(1), ValidArgsFunction: p.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := p.temporal(cmd.Context())
			if err != nil {
				return err
			}
			defer t.Close()
			if err := t.warnNoWorker(cmd.Context(), p.streams); err != nil {
				return err
			}
			return t.follow(cmd.Context(), p.streams, workflows.TenantWorkflowID(args[0]), "")
		},
	}
}

func newTenantKubeconfig(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "kubeconfig NAME", Short: "Print a tenant's kubeconfig", Args: cobra.ExactArgs(1), ValidArgsFunction: p.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			kube, err := p.kube()
			if err != nil {
				return err
			}
			if _, err := getTenant(cmd.Context(), kube, args[0]); err != nil {
				return err
			}
			secret := &corev1.Secret{}
			key := kubeclient.ObjectKey{Namespace: domain.TenantNamespace(args[0]), Name: activities.PublishedKubeconfigSecret(args[0])}
			err = kube.Get(cmd.Context(), key, secret)
			if err != nil && kubeclient.IgnoreNotFound(err) == nil {
				return fmt.Errorf("tenant %s has no kubeconfig yet; `aether tenant watch %s` shows what it waits for", args[0], args[0])
			}
			if err != nil {
				return fmt.Errorf("read Secret %s: %w", key, err)
			}
			_, err = p.out.Write(secret.Data[activities.KubeconfigKey])
			return err
		},
	}
}

func newTenantDelete(p *program) *cobra.Command {
	var yes, detach bool
	command := &cobra.Command{
		Use: "delete NAME --yes", Short: "Delete a tenant and everything beneath it", Args: cobra.ExactArgs(1), ValidArgsFunction: p.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes {
				return fmt.Errorf("this deletes all workers and data of tenant %s; say --yes to do it", args[0])
			}
			return deleteTenant(cmd.Context(), p, args[0], detach)
		},
	}
	command.Flags().BoolVar(&yes, "yes", false, "really delete")
	command.Flags().BoolVar(&detach, "detach", false, "return once the workflow has started")
	return command
}

// mustExist refuses to delete what is not there: a wrong name would be told to
// be gone. What is left of a tenant without its object can still be deleted.
func (p *program) mustExist(ctx context.Context, name string) error {
	kube, err := p.kube()
	if err != nil {
		return err
	}
	_, missing := getTenant(ctx, kube, name)
	if !errors.Is(missing, errNoTenant) {
		return missing
	}
	left := &v1alpha1.AetherVMList{}
	if err := kube.List(ctx, left, kubeclient.InNamespace(domain.SystemNamespace), kubeclient.MatchingLabels{domain.TenantLabel: name}); err != nil {
		return fmt.Errorf("list the machines of tenant %s: %w", name, err)
	}
	if len(left.Items) > 0 {
		return nil
	}
	return missing
}

func deleteTenant(ctx context.Context, p *program, name string, detach bool) error {
	t, err := p.temporal(ctx)
	if err != nil {
		return err
	}
	defer t.Close()
	id := workflows.TenantWorkflowID(name)
	last, found, err := t.processes.Latest(ctx, id)
	if err != nil {
		return err
	}
	if !found || !last.Open() {
		if err := p.mustExist(ctx, name); err != nil {
			return err
		}
	}
	request := temporalclient.Request{ID: id, Type: "DeleteTenant", Input: workflows.DeleteTenantInput{Tenant: name}, Tenant: name, Summary: "DeleteTenant " + name}
	run, err := t.processes.Start(ctx, request)
	var running *temporalclient.RunningError
	if errors.As(err, &running) && running.Run.Type != request.Type {
		if _, err := fmt.Fprintf(p.err, "%v; cancelling it\n", err); err != nil {
			return err
		}
		if err := t.processes.Cancel(ctx, id); err != nil {
			return err
		}
		// The outcome of what was cancelled does not matter here.
		_ = t.follow(ctx, p.streams, id, "") //nolint:errcheck // see above
		run, err = t.processes.Start(ctx, request)
	}
	if errors.As(err, &running) && running.Run.Type == request.Type {
		run, err = running.Run, nil
	}
	if err != nil {
		return err
	}
	if err := t.warnNoWorker(ctx, p.streams); err != nil {
		return err
	}
	if detach {
		_, err := fmt.Fprintf(p.out, "started DeleteTenant for %s; `aether tenant watch %s` shows it\n", id, name)
		return err
	}
	if err := t.follow(ctx, p.streams, id, run.RunID); err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.out, "tenant %s is gone\n", name)
	return err
}
