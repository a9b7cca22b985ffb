package scenario

import (
	"context"
	"fmt"
	"strings"
)

// memoryNotReservable: a host shows free memory while stopped VMs hold all of
// it. What is made there counts on memory that is not there when they start.
func memoryNotReservable() Scenario {
	const first, second, worker = 3141, 3142, 3143
	naive := func(ctx context.Context, t *T) (string, error) {
		p, err := t.pvesh()
		if err != nil {
			return "", err
		}
		t.removeVMs(p, "pv1-1", first, second, worker)
		if err := t.script(ctx, p, "foreign.pvesh"); err != nil {
			return "", err
		}
		before, err := hostMemory(ctx, p, "pv1-1")
		if err != nil {
			return "", err
		}
		if before.free < 8<<30 {
			return "", unexpected("pv1-1 shows no free memory: %+v", before)
		}
		if err := t.script(ctx, p, "worker.pvesh"); err != nil {
			return "", err
		}
		after, err := hostMemory(ctx, p, "pv1-1")
		if err != nil {
			return "", err
		}
		if after.promised <= after.total {
			return "", unexpected("pv1-1 is not overcommitted: %+v", after)
		}
		return fmt.Sprintf("pv1-1 showed %d MiB free for a worker of 8192 MiB; once the stopped VMs are started, %d of its %d MiB are promised",
			before.free>>20, after.promised>>20, after.total>>20), t.script(ctx, p, "stop.pvesh")
	}
	aether := func(ctx context.Context, t *T) (string, error) {
		failed, err := t.planRefusal(ctx, "", t.tenantFile())
		if err != nil {
			return "", err
		}
		outcome, err := refusedBy(failed, "memory on pv1-1")
		if err == nil && !strings.Contains(outcome, "stopped") {
			return "", unexpected("the refusal does not name the stopped VMs: %s", outcome)
		}
		return outcome, err
	}
	return origin("memory-not-reservable", "memory that stopped VMs hold is not promised again, and the refusal lists who holds what", hostParts(), naive, aether)
}

// memory of a host, in bytes.
type memory struct{ total, free, promised int64 }

// hostMemory is what a host shows, and what its running VMs were promised.
func hostMemory(ctx context.Context, p *pvesh, node string) (memory, error) {
	var status struct {
		Memory struct {
			Total int64 `json:"total"`
			Free  int64 `json:"free"`
		} `json:"memory"`
	}
	if err := p.get(ctx, "/nodes/"+node+"/status", &status); err != nil {
		return memory{}, err
	}
	var vms []struct {
		Status string `json:"status"`
		MaxMem int64  `json:"maxmem"`
	}
	if err := p.get(ctx, "/nodes/"+node+"/qemu", &vms); err != nil {
		return memory{}, err
	}
	m := memory{total: status.Memory.Total, free: status.Memory.Free}
	for _, vm := range vms {
		if vm.Status == "running" {
			m.promised += vm.MaxMem
		}
	}
	return m, nil
}
