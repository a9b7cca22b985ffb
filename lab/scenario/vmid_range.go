package scenario

import (
	"context"
	"errors"
	"net/http"
	"net/url"
)

// vmidRange: Proxmox's own next free VMID is among the templates, and is given
// to everyone who asks before somebody has taken it.
func vmidRange() Scenario {
	naive := func(ctx context.Context, t *T) (string, error) {
		p, err := t.pvesh()
		if err != nil {
			return "", err
		}
		var ids [2]string
		for i := range ids {
			if err := p.get(ctx, "/cluster/nextid", &ids[i]); err != nil {
				return "", err
			}
		}
		t.removeVMs(p, "pv1-1", 100)
		if ids != [2]string{"100", "100"} {
			return "", unexpected("the next free VMIDs are %v", ids)
		}
		for _, id := range ids {
			clone := call{
				text: "create /nodes/pv1-1/qemu/901/clone --newid " + id, verb: http.MethodPost, path: "/nodes/pv1-1/qemu/901/clone",
				values: url.Values{"newid": {id}},
			}
			if _, err = p.do(ctx, clone); err != nil {
				break
			}
		}
		var answer *pveError
		if !errors.As(err, &answer) {
			return "", unexpected("two machines were made with VMIDs %v: %v", ids, err)
		}
		return "two askers got VMID 100, which is a template's place; " + answer.text, nil
	}
	aether := func(ctx context.Context, t *T) (string, error) {
		p, err := t.useProduct("")
		if err != nil {
			return "", err
		}
		vmids := map[int32]bool{}
		for range 2 {
			worker, err := p.worker(ctx, "pv1-1")
			if err != nil {
				return "", err
			}
			leased, err := p.machines.LeaseMachine(ctx, worker)
			if err != nil {
				return "", err
			}
			if err := p.proxmox.CloneVM(ctx, worker); err != nil {
				return "", err
			}
			vmids[leased.VMID] = true
		}
		from := int32(p.site.Spec.Proxmox[0].VMIDs.From) //nolint:gosec // bounded by Proxmox
		for vmid := range vmids {
			if len(vmids) != 2 || vmid < from || vmid < 1000 {
				return "", unexpected("the machines have VMIDs %v", vmids)
			}
		}
		file, err := t.site()
		if err != nil {
			return "", err
		}
		return t.fileRefusal(ctx, file, t.tenantFile(), "vmids.from")
	}
	return origin("vmid-range", "VMIDs are Aether's own, from 1000 up, and nobody gets one twice", hostParts(), naive, aether)
}
