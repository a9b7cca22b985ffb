package scenario

import (
	"context"
	"errors"

	"aether.internal/aether/internal/proxmox"
)

// guestAgentOff: the agent runs in the guest, and the VM has no device for it.
// Switching it on while the VM runs changes nothing before the next start.
func guestAgentOff() Scenario {
	const vmid, machine = 3121, 3122
	naive := func(ctx context.Context, t *T) (string, error) {
		p, err := t.pvesh()
		if err != nil {
			return "", err
		}
		t.removeVMs(p, "pv1-1", vmid)
		if err := t.script(ctx, p, "vm.pvesh"); err != nil {
			return "", err
		}
		// The system is up when its address answers.
		host, err := t.hostNet("pv1-1")
		if err != nil {
			return "", err
		}
		up := func(ctx context.Context) error { return answers(ctx, host, "10.1.1.242:22") }
		if err := eventually(ctx, "the VM to be up", up); err != nil {
			return "", err
		}
		if err := t.script(ctx, p, "switch-on.pvesh"); err != nil {
			return "", err
		}
		var report any
		var answer *pveError
		if err := p.get(ctx, "/nodes/pv1-1/qemu/3121/agent/network-get-interfaces", &report); !errors.As(err, &answer) {
			return "", unexpected("the agent's answer is %v, %v", report, err)
		}
		return answer.text, nil
	}
	aether := func(ctx context.Context, t *T) (string, error) {
		p, err := t.useProduct("")
		if err != nil {
			return "", err
		}
		ref, err := p.proxyLike(ctx, machine)
		if err != nil {
			return "", err
		}
		if _, err := p.client.Start(ctx, ref, nil); err != nil {
			return "", err
		}
		raw, err := t.pvesh()
		if err != nil {
			return "", err
		}
		_, err = guestInterfaces(ctx, raw, ref.Node, ref.VMID)
		return passed(), err
	}
	return origin("guest-agent-off", "a VM has the device of the guest agent from its first start", hostParts(), naive, aether)
}

// proxyLike makes a VM of the proxy template as Aether configures one, but for
// what is on its medium. The template's agent is off, as the naive half's.
func (p *product) proxyLike(ctx context.Context, vmid int) (proxmox.Ref, error) {
	mark := proxmox.Mark{Machine: "6f1e0c52-8e0f-4a36-9a0e-0f6f2a3c4d5e", Tenant: p.t.Name, Role: proxmox.RoleProxy}
	ref := proxmox.Ref{Node: "pv1-1", VMID: vmid, Machine: mark.Machine}
	spec := proxmox.CloneSpec{Node: ref.Node, Template: p.site.Spec.Proxmox[0].Hosts[0].Templates.Proxy, VMID: vmid, Name: p.t.Name, Mark: mark}
	p.t.Cleanup(func(ctx context.Context) error { return p.client.Destroy(ctx, ref, nil) })
	upid, err := p.client.Clone(ctx, spec)
	if err != nil {
		return ref, err
	}
	if _, err := p.client.WaitTask(ctx, upid, nil); err != nil {
		return ref, err
	}
	raw, err := p.t.pvesh()
	if err != nil {
		return ref, err
	}
	if err := p.t.script(ctx, raw, "template.pvesh"); err != nil {
		return ref, err
	}
	on := true
	return ref, p.client.WriteConfig(ctx, ref, proxmox.ConfigWish{
		Name: spec.Name, Mark: &mark, UUID: mark.Machine, Cores: 1, MemoryMiB: 512, Agent: &on,
		NICs: []proxmox.NIC{{Index: 0, Model: "virtio", Bridge: "vmbr0"}},
	})
}
