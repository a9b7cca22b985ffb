package scenario

import (
	"context"
	"errors"
)

// refusedCall is a naive half that is one script: it fails at a call that
// Proxmox refuses, and the reason is what Proxmox said.
func refusedCall(node string, vmid int) half {
	return func(ctx context.Context, t *T) (string, error) {
		p, err := t.pvesh()
		if err != nil {
			return "", err
		}
		t.removeVMs(p, node, vmid)
		return refusedScript(ctx, t, p)
	}
}

// refusedScript runs the scenario's script, which must be refused.
func refusedScript(ctx context.Context, t *T, p *pvesh) (string, error) {
	err := t.script(ctx, p, "vm.pvesh")
	var answer *pveError
	if errors.As(err, &answer) {
		return answer.text, nil
	}
	if err != nil {
		return "", err
	}
	return "", unexpected("Proxmox did all of it")
}

// refusedPlan is a half of Aether that gets the same task as a site and a
// tenant file: the plan is refused by that check.
func refusedPlan(check string) half {
	return func(ctx context.Context, t *T) (string, error) {
		file, err := t.site()
		if err != nil {
			return "", err
		}
		failed, err := t.planRefusal(ctx, file, t.tenantFile())
		if err != nil {
			return "", err
		}
		return refusedBy(failed, check)
	}
}

// refusedSite is a half of Aether that gets the same task as a site file, which
// is refused for what it says in the field.
func refusedSite(field string) half {
	return func(ctx context.Context, t *T) (string, error) {
		file, err := t.site()
		if err != nil {
			return "", err
		}
		return t.fileRefusal(ctx, file, t.tenantFile(), field)
	}
}

// unknownNodeName: a host's DNS name is not its name in Proxmox.
func unknownNodeName() Scenario {
	return origin("unknown-node-name", "a host that Proxmox does not know by that name is found before anything is made",
		hostParts(), refusedCall("pv1-1", 3151), refusedPlan("host proxmox-1"))
}

// templateOnOtherHost: a template on local storage cannot be cloned to another
// host.
func templateOnOtherHost() Scenario {
	return origin("template-on-other-host", "each host clones a template of its own, and a missing one is found before anything is made",
		hostParts(), refusedCall("pv1-2", 3161), refusedSite("templates.worker"))
}
