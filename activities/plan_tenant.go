package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/internal/plan"
	"aether.internal/aether/internal/proxmox"
	"aether.internal/aether/internal/site"
)

// PlanTenant checks a tenant against the site, looks at the site, and plans.
// It changes nothing and is repeatable. A plan with a failed check is refused
// with every finding, which is final: a person must act.
func (a *Tenants) PlanTenant(ctx context.Context, in PlanTenantInput) (*PlanTenantResult, error) {
	planner := Planner{Platform: a.Platform, Leases: a.Leases, Images: a.Images}
	tenant, made, err := planner.Plan(ctx, in)
	if err != nil {
		return nil, classify(err)
	}
	if !made.Accepted() {
		return nil, classify(refused("the tenant cannot be made as asked for:\n%s", made.Refusal()))
	}
	return &PlanTenantResult{Tenant: tenant, Plan: made}, nil
}

// Planner looks at the site and plans. It is what PlanTenant and the command
// line's plan have in common.
type Planner struct {
	Platform
	Leases *lease.Store
	Images ImageChecker
}

// Plan returns the tenant with defaults and its plan. The error is
// domain.Problems for a tenant that is not valid for the site.
func (p *Planner) Plan(ctx context.Context, in PlanTenantInput) (domain.Tenant, plan.Plan, error) {
	tenant := in.Tenant.WithDefaults(p.Site)
	if err := tenant.Validate(p.Site); err != nil {
		return tenant, plan.Plan{}, err
	}
	check := p.checkNew
	if in.Change {
		check = p.checkChange
	}
	if err := check(ctx, tenant); err != nil {
		return tenant, plan.Plan{}, err
	}
	observed, err := p.observe(ctx, tenant)
	if err != nil {
		return tenant, plan.Plan{}, err
	}
	return tenant, plan.Make(p.Site, tenant, observed), nil
}

// checkNew refuses to create a tenant that stands: a failure on the way would
// undo what its people work with.
func (p *Planner) checkNew(ctx context.Context, tenant domain.Tenant) error {
	now, err := p.tenant(ctx, tenant.Name)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	stands, err := p.stands(ctx, now)
	if err != nil || !stands {
		return err
	}
	return domain.Problems{{
		Field: "metadata.name", Found: domain.Shown(tenant.Name) + ", which exists and is in use", Allowed: "the name of a new tenant",
		Do: "change the tenant with `aether tenant apply`, or delete it first",
	}}
}

// checkChange refuses what cannot change yet.
func (p *Planner) checkChange(ctx context.Context, tenant domain.Tenant) error {
	now, err := p.tenant(ctx, tenant.Name)
	if errors.Is(err, errGone) {
		return domain.Problems{{
			Field: "metadata.name", Found: domain.Shown(tenant.Name) + ", which does not exist", Allowed: "the name of a tenant that exists",
			Do: "create it with `aether tenant create`",
		}}
	}
	if err != nil {
		return err
	}
	var problems domain.Problems
	for _, field := range []struct{ name, was, wanted, why string }{
		{"spec.network", now.Spec.Network, tenant.Spec.Network, "addresses of the proxy and of all workers come from it; make a new tenant"},
		{"spec.clusterNetwork.podCIDR", now.Spec.ClusterNetwork.PodCIDR, tenant.Spec.ClusterNetwork.PodCIDR, "make a new tenant"},
		{"spec.clusterNetwork.serviceCIDR", now.Spec.ClusterNetwork.ServiceCIDR, tenant.Spec.ClusterNetwork.ServiceCIDR, "certificates carry it; make a new tenant"},
		{"spec.clusterNetwork.dnsDomain", now.Spec.ClusterNetwork.DNSDomain, tenant.Spec.ClusterNetwork.DNSDomain, "make a new tenant"},
	} {
		if field.was != "" && field.was != field.wanted {
			problems.Add(field.name, domain.Shown(field.wanted), field.was+", as the tenant was made", field.why)
		}
	}
	if was, wanted := (domain.Tenant{Spec: now.Spec}).Replicas(), tenant.Replicas(); was != wanted {
		problems.Add("spec.controlPlane.replicas", domain.Shown(wanted), domain.Shown(was)+", which run", "a running control plane cannot be resized yet; set it back")
	}
	running, err := p.runningVersion(ctx, tenant.Name)
	if err != nil {
		return err
	}
	if running != "" && running != tenant.Spec.Version {
		problems.Add("spec.version", domain.Shown(tenant.Spec.Version), running+", which runs", "versions of a running tenant cannot be changed yet; set it back")
	}
	return problems.Err()
}

// observe looks at everything the plan needs. A host that cannot be asked is
// observed as such, and does not keep the others from being used.
func (p *Planner) observe(ctx context.Context, tenant domain.Tenant) (plan.Observed, error) {
	observed := plan.Observed{FreeWorkerAddresses: map[string]int{}, FreeProxyAddresses: map[string]int{}}
	cluster, ok := p.Site.Cluster(p.Site.Spec.Defaults.Cluster)
	if !ok {
		return observed, refused("Proxmox cluster %s is not in the site", p.Site.Spec.Defaults.Cluster)
	}
	pve, err := p.Proxmox(cluster.Name)
	if err != nil {
		return observed, err
	}
	tell(ctx, "Proxmox cluster "+cluster.Name+" to tell its state", "")
	if observed.Quorate, err = pve.Quorate(ctx); err != nil {
		return observed, err
	}
	missing, err := pve.MissingPrivileges(ctx, use(p.Site, cluster).Needed())
	if err != nil {
		return observed, err
	}
	for _, privilege := range missing {
		observed.MissingPrivileges = append(observed.MissingPrivileges, privilege.Name+" on "+privilege.Path)
	}
	for _, host := range cluster.Hosts {
		tell(ctx, "host "+host.Name+" to tell what it has", "")
		if h, known := p.host(ctx, pve, cluster, host); known {
			observed.Hosts = append(observed.Hosts, h)
		}
	}
	if err := p.countFree(ctx, pve, cluster, tenant.Name, &observed); err != nil {
		return observed, err
	}
	if err := p.countExisting(ctx, tenant.Name, &observed); err != nil {
		return observed, err
	}
	observed.Images = p.images(ctx, tenant)
	return observed, nil
}

// use says what of a Proxmox cluster the site works with.
func use(s *site.Site, cluster *site.Cluster) proxmox.Use {
	u := proxmox.Use{FirstVMID: cluster.VMIDs.From, Pool: cluster.Pool}
	add := func(list *[]string, value string) {
		if !slices.Contains(*list, value) {
			*list = append(*list, value)
		}
	}
	for _, host := range cluster.Hosts {
		add(&u.Nodes, host.Name)
		add(&u.Disks, host.Storage.Disks)
		add(&u.ISOs, host.Storage.ISO)
		u.Templates = append(u.Templates, host.Templates.Worker, host.Templates.Proxy)
	}
	for _, network := range s.Spec.Networks {
		attachment := proxmox.Attachment{Bridge: network.Bridge, VLAN: network.VLAN}
		if !slices.Contains(u.Bridges, attachment) {
			u.Bridges = append(u.Bridges, attachment)
		}
	}
	return u
}

// host observes one host; what goes wrong is its problem. It returns false for
// a name that Proxmox does not know: that host cannot be brought back.
func (p *Planner) host(ctx context.Context, pve *proxmox.Client, cluster *site.Cluster, host site.Host) (plan.Host, bool) {
	h := plan.Host{Name: host.Name, Cluster: cluster.Name}
	capacity, err := hostCapacity(ctx, pve, host)
	if err != nil {
		h.Problem = err.Error()
		return h, !errors.Is(err, proxmox.ErrNoSuchNode)
	}
	h.MemoryMiB = int64(capacity.MemoryMiB - capacity.ReserveMemoryMiB)
	h.VCPUs = int64(capacity.VCPUs - capacity.ReserveVCPUs)
	reservations, err := p.Leases.Ledger(ctx, lease.Host{Cluster: cluster.Name, Name: host.Name})
	if err != nil {
		h.Problem = err.Error()
		return h, true
	}
	for _, r := range reservations {
		h.Holders = append(h.Holders, plan.Holder{Name: r.Purpose, MemoryMiB: int64(r.MemoryMiB), VCPUs: int64(r.Cores)})
	}
	_, _, foreign := lease.Free(reservations, capacity)
	for _, guest := range foreign {
		holder := plan.Holder{Name: fmt.Sprintf("VM %d %s", guest.VMID, guest.Name), MemoryMiB: int64(guest.MemoryMiB), Foreign: true, Stopped: !guest.Running}
		if guest.Running {
			holder.VCPUs = int64(guest.Cores)
		}
		h.Holders = append(h.Holders, holder)
	}
	if err := p.hostParts(ctx, pve, host, &h); err != nil {
		h.Problem = err.Error()
	}
	return h, true
}

// hostParts observes storages, bridges and templates.
func (p *Planner) hostParts(ctx context.Context, pve *proxmox.Client, host site.Host, h *plan.Host) error {
	storages, err := pve.Storages(ctx, host.Name)
	if err != nil {
		return err
	}
	const gib = 1 << 30
	for _, storage := range storages {
		if storage.Name == host.Storage.Disks {
			h.DiskFreeGiB = storage.FreeBytes / gib
		}
	}
	bridges, err := pve.Bridges(ctx, host.Name)
	if err != nil {
		return err
	}
	for _, bridge := range bridges {
		h.Bridges = append(h.Bridges, plan.Bridge{Name: bridge.Name, VLANAware: bridge.VLANAware})
	}
	for _, template := range []struct {
		kind string
		vmid int
	}{{"worker", host.Templates.Worker}, {"proxy", host.Templates.Proxy}} {
		findings, config, err := pve.LintTemplate(ctx, host.Name, template.vmid, host.Storage.Disks, host.Storage.CloneMode != site.FullClone)
		if errors.Is(err, proxmox.ErrNotFound) {
			h.TemplateProblems = append(h.TemplateProblems, fmt.Sprintf("%s template %d is not on this host", template.kind, template.vmid))
			continue
		}
		if err != nil {
			return err
		}
		for _, finding := range findings {
			h.TemplateProblems = append(h.TemplateProblems, fmt.Sprintf("%s template %d: %s", template.kind, template.vmid, finding))
		}
		if disk, ok := config.Disk(systemDisk); ok && template.kind == "worker" {
			h.TemplateDiskGiB = (disk.SizeBytes + gib - 1) / gib
		}
	}
	return nil
}

// countFree counts VMIDs and addresses that are neither held nor resting. The
// address that the tenant holds already is free to it.
func (p *Planner) countFree(ctx context.Context, pve *proxmox.Client, cluster *site.Cluster, tenant string, observed *plan.Observed) error {
	observed.VMIDRange = fmt.Sprintf("%d-%d", cluster.VMIDs.From, cluster.VMIDs.To)
	taken := map[int]bool{}
	held, err := p.Leases.InPool(ctx, cluster.Name)
	if err != nil {
		return err
	}
	within := func(vmid int) bool { return vmid >= cluster.VMIDs.From && vmid <= cluster.VMIDs.To }
	for _, h := range held {
		if vmid, err := strconv.Atoi(h.Value); err == nil && within(vmid) {
			taken[vmid] = true
		}
	}
	for _, host := range cluster.Hosts {
		vms, err := pve.VMs(ctx, host.Name)
		if err != nil {
			continue // the host's own check tells
		}
		for _, vm := range vms {
			if within(vm.VMID) {
				taken[vm.VMID] = true
			}
		}
	}
	observed.FreeVMIDs = cluster.VMIDs.To - cluster.VMIDs.From + 1 - len(taken)
	for _, network := range p.Site.Spec.Networks {
		held, err := p.Leases.InPool(ctx, network.Name)
		if err != nil {
			return err
		}
		held = slices.DeleteFunc(held, func(h lease.Holding) bool { return h.FreeAt.IsZero() && h.Holder.ID == addressHolder(tenant).ID })
		observed.FreeWorkerAddresses[network.Name] = free(network.Ranges.Workers, held)
		observed.FreeProxyAddresses[network.Name] = free(network.Ranges.Proxies, held)
	}
	return nil
}

// countExisting counts what the tenant has already, so that it is not planned
// twice.
func (p *Planner) countExisting(ctx context.Context, tenant string, observed *plan.Observed) error {
	proxies, err := p.machinesOf(ctx, tenant, v1alpha1.RoleProxy)
	if err != nil {
		return err
	}
	observed.ExistingProxy = len(proxies) > 0
	workers, err := p.machinesOf(ctx, tenant, v1alpha1.RoleWorker)
	if err != nil {
		return err
	}
	for _, vm := range workers {
		i := slices.IndexFunc(observed.ExistingWorkers, func(e plan.PoolOnHost) bool { return e.Pool == vm.Spec.Pool && e.Host == vm.Spec.Host })
		if i < 0 {
			observed.ExistingWorkers = append(observed.ExistingWorkers, plan.PoolOnHost{Pool: vm.Spec.Pool, Host: vm.Spec.Host})
			i = len(observed.ExistingWorkers) - 1
		}
		observed.ExistingWorkers[i].Count++
	}
	return nil
}

// images asks the mirrors for what a worker of this tenant boots.
func (p *Planner) images(ctx context.Context, tenant domain.Tenant) []plan.Image {
	if p.Images == nil {
		return nil
	}
	i, v := p.Site.Spec.Images, p.Site.Spec.Versions
	references := []string{
		i.Kubelet + ":" + tenant.Spec.Version,
		"quay.io/cilium/cilium:" + v.Cilium,
		"quay.io/cilium/operator-generic:" + v.Cilium,
		i.CoreDNS + "/coredns:" + v.CoreDNS,
		i.KonnectivityAgent + ":" + v.Konnectivity,
		i.Probe,
	}
	images := make([]plan.Image, 0, len(references))
	for _, reference := range references {
		tell(ctx, "the mirrors to serve "+reference, "")
		images = append(images, plan.Image{Ref: reference, Problem: p.Images.Check(ctx, reference)})
	}
	return images
}
