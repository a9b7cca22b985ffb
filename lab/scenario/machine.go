package scenario

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/activities"
	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/internal/proxmox"
	"aether.internal/aether/internal/site"
	"aether.internal/aether/internal/siteclients"
	"aether.internal/aether/internal/talos"
)

// product is what Aether's worker does with one machine, called in this process
// for scenarios that need no tenant.
type product struct {
	t        *T
	site     *site.Site
	machines *activities.Machines
	proxmox  *activities.Proxmox
	talos    *activities.Talos
	client   *proxmox.Client
	leases   *lease.Store
}

// useProduct reads a site file as the worker does; empty is the lab's own.
func (t *T) useProduct(siteFile string) (*product, error) {
	if siteFile == "" {
		siteFile = t.World.SiteFile()
	}
	s, err := site.Load(siteFile)
	if err != nil {
		return nil, err
	}
	clients := siteclients.New(s, t.Kube, slog.New(slog.DiscardHandler))
	client, err := clients.Proxmox(s.Spec.Defaults.Cluster)
	if err != nil {
		return nil, err
	}
	platform := activities.Platform{Kube: t.Kube, Site: s, Proxmox: clients.Proxmox}
	leases := lease.New(t.Kube)
	maintenance := talos.NewMaintenance(talos.MaintenanceOptions{})
	return &product{
		t: t, site: s, client: client, leases: leases,
		machines: &activities.Machines{Platform: platform, Leases: leases},
		proxmox:  &activities.Proxmox{Platform: platform, Leases: leases, Door: clients.Door},
		talos:    &activities.Talos{Platform: platform, Maintenance: maintenance, Deliverer: maintenance, Now: time.Now},
	}, nil
}

// worker records the wish for a worker on a host, as the shim does, and removes
// all of it when the scenario ends.
func (p *product) worker(ctx context.Context, host string) (activities.MachineRef, error) {
	id := domain.NewMachineID()
	ref := activities.MachineRef{MachineID: string(id)}
	if err := p.tenant(ctx); err != nil {
		return ref, err
	}
	vm := &v1alpha1.AetherVM{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: domain.SystemNamespace, Name: string(id), Labels: map[string]string{domain.TenantLabel: p.t.Name},
		},
		Spec: v1alpha1.AetherVMSpec{
			Tenant: p.t.Name, Role: v1alpha1.RoleWorker, Pool: "workers", ProxmoxCluster: p.site.Spec.Defaults.Cluster, Host: host,
			VMName: domain.WorkerName(p.t.Name, "w", id), Cores: 2, MemoryMiB: 1024,
		},
	}
	if err := p.t.Kube.Create(ctx, vm); err != nil {
		return ref, fmt.Errorf("create AetherVM: %w", err)
	}
	p.t.Cleanup(func(ctx context.Context) error {
		return errors.Join(p.proxmox.DestroyVM(ctx, ref), p.machines.ReleaseMachine(ctx, ref), p.machines.ForgetMachine(ctx, ref))
	})
	return ref, nil
}

// tenant makes the object that the scenario's machines belong to.
func (p *product) tenant(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: domain.TenantNamespace(p.t.Name)}}
	if err := p.t.Kube.Create(ctx, ns); apierrors.IsAlreadyExists(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("create namespace: %w", err)
	}
	p.t.Cleanup(func(ctx context.Context) error { return kubeclient.IgnoreNotFound(p.t.Kube.Delete(ctx, ns)) })
	cluster := &v1alpha1.AetherCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: p.t.Name},
		Spec:       v1alpha1.AetherClusterSpec{Version: p.site.Spec.Defaults.Kubernetes, Network: p.site.Spec.Defaults.Networks.Tenant},
	}
	if err := p.t.Kube.Create(ctx, cluster); err != nil {
		return fmt.Errorf("create AetherCluster: %w", err)
	}
	return nil
}

// bringUp takes a machine to maintenance mode with the steps of JoinWorker.
func (p *product) bringUp(ctx context.Context, ref activities.MachineRef) (*activities.LeasedMachine, error) {
	leased, err := p.machines.LeaseMachine(ctx, ref)
	if err != nil {
		return nil, err
	}
	steps := []func(context.Context, activities.MachineRef) error{
		p.proxmox.CloneVM, p.proxmox.ConfigureVM, p.proxmox.StartVM, p.proxmox.FlushNeighbours, p.talos.WaitMaintenance,
	}
	for _, step := range steps {
		if err := step(ctx, ref); err != nil {
			return nil, err
		}
	}
	return leased, nil
}
