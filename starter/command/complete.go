package command

import (
	"strings"

	"github.com/spf13/cobra"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
)

// completeNames completes the name of a tenant, and after it the name of one of
// its pools where the command takes one. Without a management cluster there is
// nothing to offer.
func (p *program) completeNames(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	kube, err := p.kube()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []cobra.Completion
	offer := func(name, about string) {
		if strings.HasPrefix(name, begun) {
			names = append(names, cobra.CompletionWithDesc(name, about))
		}
	}
	switch {
	case len(args) == 0:
		list := &v1alpha1.AetherClusterList{}
		if err := kube.List(cmd.Context(), list); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		for i := range list.Items {
			offer(list.Items[i].Name, "Kubernetes "+list.Items[i].Spec.Version)
		}
	case len(args) == 1 && strings.Contains(cmd.Use, " POOL"):
		tenant := &v1alpha1.AetherCluster{}
		if err := kube.Get(cmd.Context(), kubeclient.ObjectKey{Namespace: domain.TenantNamespace(args[0]), Name: args[0]}, tenant); err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		for _, pool := range tenant.Spec.Pools {
			offer(pool.Name, "machine class "+pool.Class)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
