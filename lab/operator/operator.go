package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/capi"
	"aether.internal/aether/internal/config"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/plan"
	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/lab/site"
	"aether.internal/aether/lab/world"
	"aether.internal/aether/lab/world/control"
	"aether.internal/aether/workflows"
)

// Operator works with one lab.
type Operator struct {
	Lab       *control.Client
	Kube      kubeclient.Client
	Temporal  client.Client
	Processes *temporalclient.Processes
	// CodecKeys is the file with the lab's codec keys.
	CodecKeys string
}

// Connect reaches a lab from outside of it, through its ports on the loopback.
// It must be closed.
func Connect(ctx context.Context, lab *control.Client, status control.Status) (*Operator, error) {
	options := config.Options{
		Kubeconfig: status.Kubeconfig, TemporalAddress: status.Addresses[world.ForwardTemporal],
		CodecKeys: site.CodecKeysFile(filepath.Dir(status.Site)),
	}
	ctrllog.SetLogger(logr.Discard()) // it complains when nobody has decided
	scheme, err := capi.Scheme()
	if err != nil {
		return nil, err
	}
	cfg, err := options.RestConfig()
	if err != nil {
		return nil, err
	}
	kube, err := kubeclient.New(cfg, kubeclient.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("management cluster: %w", err)
	}
	temporal, err := temporalclient.Dial(ctx, options.Temporal(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	return &Operator{
		Lab: lab, Kube: kube, Temporal: temporal, CodecKeys: options.CodecKeys,
		Processes: temporalclient.NewProcesses(temporal, workflows.TaskQueue),
	}, nil
}

// Close ends the connections.
func (o *Operator) Close() { o.Temporal.Close() }

// Tenant is a tenant of pools over both hosts with the smallest machines.
func Tenant(name string, pools ...v1alpha1.Pool) domain.Tenant {
	return domain.Tenant{Name: name, Spec: v1alpha1.AetherClusterSpec{Version: "v1.35.4", Pools: pools}}
}

// Pool is a pool of that many workers that may have any number up to most.
func Pool(name string, replicas, most int32, hosts ...string) v1alpha1.Pool {
	return v1alpha1.Pool{Name: name, Class: "small", Replicas: &replicas, MinSize: new(int32), MaxSize: &most, Hosts: hosts}
}

// StartTenant starts a workflow on a tenant with its document as input, as
// anybody with access to Temporal can.
func (o *Operator) StartTenant(ctx context.Context, workflow string, tenant domain.Tenant) (temporalclient.Run, error) {
	return o.Processes.Start(ctx, temporalclient.Request{
		ID: workflows.TenantWorkflowID(tenant.Name), Type: workflow, Input: tenant.Document(), Tenant: tenant.Name,
	})
}

// DeleteTenant starts the deletion of a tenant.
func (o *Operator) DeleteTenant(ctx context.Context, name string) (temporalclient.Run, error) {
	return o.Processes.Start(ctx, temporalclient.Request{
		ID: workflows.TenantWorkflowID(name), Type: "DeleteTenant", Input: workflows.DeleteTenantInput{Tenant: name}, Tenant: name,
	})
}

// Scale gives a pool that many workers, shared out over its hosts, as the
// autoscaler or a person does.
func (o *Operator) Scale(ctx context.Context, tenant string, pool v1alpha1.Pool, replicas int32) error {
	pool.Replicas = &replicas
	shares := map[string]int32{}
	for _, s := range plan.Shares(pool) {
		shares[s.Host] = s.Replicas
	}
	list := &clusterv1.MachineDeploymentList{}
	labels := kubeclient.MatchingLabels{domain.TenantLabel: tenant, domain.PoolLabel: pool.Name}
	if err := o.Kube.List(ctx, list, kubeclient.InNamespace(domain.TenantNamespace(tenant)), labels); err != nil {
		return fmt.Errorf("scale pool %s of tenant %s: %w", pool.Name, tenant, err)
	}
	if len(list.Items) != len(shares) {
		return fmt.Errorf("scale pool %s of tenant %s: found %d MachineDeployments, want one for each of %d hosts", pool.Name, tenant, len(list.Items), len(shares))
	}
	for i := range list.Items {
		md := &list.Items[i]
		patch := kubeclient.MergeFrom(md.DeepCopy())
		share := shares[md.Labels[domain.HostLabel]]
		md.Spec.Replicas = &share
		if err := o.Kube.Patch(ctx, md, patch); err != nil {
			return fmt.Errorf("scale %s: %w", md.Name, err)
		}
	}
	return nil
}

// lookEvery is the pause between two looks at Temporal: each costs the machine
// that is measured.
const lookEvery = 250 * time.Millisecond

// until looks until it is done or fails. A server that does not answer in time
// on a busy machine is asked again.
func until(ctx context.Context, look func() (done bool, err error)) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		done, err := look()
		if err != nil && (ctx.Err() != nil || !unanswered(err)) {
			return err
		}
		if err == nil && done {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-ticker.C:
		}
	}
}

// unanswered tells whether an error says nothing about what was asked.
func unanswered(err error) bool {
	var late *serviceerror.DeadlineExceeded
	var away *serviceerror.Unavailable
	return errors.As(err, &late) || errors.As(err, &away) || errors.Is(err, context.DeadlineExceeded)
}
