package command

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/plan"
)

func newPool(p *program) *cobra.Command {
	command := group(&cobra.Command{Use: "pool", Aliases: []string{"pools"}, Short: "List and scale the pools of a tenant"})
	command.AddCommand(newPoolList(p), newPoolScale(p))
	return command
}

// deployments lists the MachineDeployments of a tenant's pool, or of all its
// pools, by name.
func deployments(cmd *cobra.Command, kube kubeclient.Client, tenant, pool string) ([]clusterv1.MachineDeployment, error) {
	labels := kubeclient.MatchingLabels{domain.TenantLabel: tenant}
	if pool != "" {
		labels[domain.PoolLabel] = pool
	}
	list := &clusterv1.MachineDeploymentList{}
	if err := kube.List(cmd.Context(), list, kubeclient.InNamespace(domain.TenantNamespace(tenant)), labels); err != nil {
		return nil, fmt.Errorf("list pools of tenant %s: %w", tenant, err)
	}
	return list.Items, nil
}

func newPoolList(p *program) *cobra.Command {
	var output *format
	command := &cobra.Command{
		Use: "list TENANT", Short: "List a tenant's pools by host", Args: cobra.ExactArgs(1), ValidArgsFunction: p.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			kube, err := p.kube()
			if err != nil {
				return err
			}
			if _, err := getTenant(cmd.Context(), kube, args[0]); err != nil {
				return err
			}
			list, err := deployments(cmd, kube, args[0], "")
			if err != nil {
				return err
			}
			t := table{head: []string{"POOL", "HOST", "WANTED", "READY", "MIN", "MAX"}}
			for i := range list {
				md := &list[i]
				t.rows = append(t.rows, []string{
					md.Labels[domain.PoolLabel], md.Labels[domain.HostLabel], number(md.Spec.Replicas), number(md.Status.ReadyReplicas),
					md.Annotations[clusterv1.AutoscalerMinSizeAnnotation], md.Annotations[clusterv1.AutoscalerMaxSizeAnnotation],
				})
			}
			for i := range list {
				forPeople(clusterv1.GroupVersion.WithKind("MachineDeployment"), &list[i])
			}
			return show(p.out, *output, list, t)
		},
	}
	output = outputFlag(command, "table, json or yaml")
	return command
}

func number(n *int32) string {
	if n == nil {
		return "?"
	}
	return strconv.Itoa(int(*n))
}

func newPoolScale(p *program) *cobra.Command {
	var replicas int32
	command := &cobra.Command{
		Use: "scale TENANT POOL --replicas N", Short: "Set the number of a pool's workers, over all its hosts", Args: cobra.ExactArgs(2), ValidArgsFunction: p.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			kube, err := p.kube()
			if err != nil {
				return err
			}
			tenant, err := getTenant(cmd.Context(), kube, args[0])
			if err != nil {
				return err
			}
			pool, ok := domain.Tenant{Name: args[0], Spec: tenant.Spec}.Pool(args[1])
			if !ok {
				return fmt.Errorf("POOL: found %q; allowed: a pool of tenant %s; `aether pool list %s` shows them", args[1], args[0], args[0])
			}
			low, high := bound(pool.MinSize), bound(pool.MaxSize)
			if replicas < low || replicas > high {
				return fmt.Errorf("--replicas: found %d; allowed: %d to %d, the pool's bounds; change minSize or maxSize with `aether tenant apply` first", replicas, low, high)
			}
			pool.Replicas = &replicas
			return scale(cmd, p, kube, args[0], pool)
		},
	}
	command.Flags().Int32Var(&replicas, "replicas", -1, "number of workers")
	return command
}

func bound(n *int32) int32 {
	if n == nil {
		return 0
	}
	return *n
}

// scale sets each host's share. Only the number is patched, as the autoscaler
// does.
func scale(cmd *cobra.Command, p *program, kube kubeclient.Client, tenant string, pool v1alpha1.Pool) error {
	list, err := deployments(cmd, kube, tenant, pool.Name)
	if err != nil {
		return err
	}
	shares := plan.Shares(pool)
	if len(list) == 0 || len(shares) == 0 {
		return fmt.Errorf("pool %s of tenant %s is not made yet; `aether tenant watch %s` shows what it waits for", pool.Name, tenant, tenant)
	}
	for i := range list {
		md := &list[i]
		at := slices.IndexFunc(shares, func(share plan.Share) bool { return share.Host == md.Labels[domain.HostLabel] })
		if at < 0 {
			continue
		}
		patch := kubeclient.MergeFrom(md.DeepCopy())
		md.Spec.Replicas = &shares[at].Replicas
		if err := kube.Patch(cmd.Context(), md, patch); err != nil {
			return fmt.Errorf("scale %s: %w", md.Name, err)
		}
		if _, err := fmt.Fprintf(p.out, "pool %s on %s: %d workers wanted\n", shares[at].Pool, shares[at].Host, shares[at].Replicas); err != nil {
			return err
		}
	}
	return nil
}
