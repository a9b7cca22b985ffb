package world

import (
	"fmt"
	"math"
	"time"

	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/registry"
	"aether.internal/aether/lab/world/control"
)

// cloneSlots is how many clones a host's storage takes at once;
// examples/site.yaml states it.
const cloneSlots = 2

// What a fresh worker pulls before it is usable; the registry's catalogue has
// the sizes.
const (
	kubeletRepository = "ghcr.io/siderolabs/kubelet:"
	ciliumRepository  = "quay.io/cilium/cilium:"
	probeRepository   = "registry.k8s.io/e2e-test-images/agnhost:"
)

// ciliumInits is how many containers the chart's agent pod runs one after the
// other before the agent.
const ciliumInits = 6

// workerConfigTasks are the configuration tasks of a worker: settings, and the
// disk that grows from the template's size to that of the machine's class.
const workerConfigTasks = 2

// Floor computes the least time that joining workers, with or without making
// their tenant, can take in this lab: the longest way through the latency
// table, with everything that can be done side by side done so, and the limits
// on clones. A worker has joined when it is usable: a pod runs on it that had
// to be pulled. The time of real software (API servers, kubelets, Temporal) is
// not in it.
func (w *World) Floor(r control.FloorRequest) (control.Floor, error) {
	if r.Workers < 0 || r.Hosts < 1 {
		return control.Floor{}, fmt.Errorf("floor: %d workers on %d hosts; give 0 or more workers and at least one host", r.Workers, r.Hosts)
	}
	f := floor{clock: w.Clock}
	proxies := 0
	if r.Tenant {
		proxies = 1
	}
	boot := f.workerBoots((r.Workers+r.Hosts-1)/r.Hosts, proxies)
	before := f.tenant()
	switch {
	case !r.Tenant:
		f.steps = boot
	case r.Workers == 0 || f.sum(before) > f.sum(boot):
		f.steps = before
	default:
		f.steps = boot
	}
	if r.Workers > 0 {
		f.join()
	}
	return control.Floor{Seconds: f.sum(f.steps), Steps: f.steps}, nil
}

// floor adds up steps on a clock.
type floor struct {
	clock *latency.Clock
	steps []control.FloorStep
}

func (f *floor) step(name string, times ...time.Duration) control.FloorStep {
	var sum time.Duration
	for _, t := range times {
		sum += t
	}
	return control.FloorStep{Name: name, Seconds: sum.Seconds()}
}

func (f *floor) sum(steps []control.FloorStep) float64 {
	var sum float64
	for _, s := range steps {
		sum += s.Seconds
	}
	return sum
}

func (f *floor) pull(repository string) time.Duration {
	for _, d := range registry.Catalogue() {
		if len(d.Ref) > len(repository) && d.Ref[:len(repository)] == repository {
			return f.clock.Of(latency.PullImage) + time.Duration(d.SizeMiB)*f.clock.Of(latency.PullPerMiB)
		}
	}
	return 0
}

// clones is when the last of n linked clones on one host is there: each holds
// the storage's lock for half of its time, and only so many run at once.
func (f *floor) clones(n int) time.Duration {
	one := f.clock.Of(latency.CloneLinked)
	locked := time.Duration(n+1) * one / 2
	slots := time.Duration(math.Ceil(float64(n)/cloneSlots)) * one
	return max(locked, slots)
}

// workerBoots is the way to a kubelet that could start.
func (f *floor) workerBoots(perHost, proxies int) []control.FloorStep {
	return []control.FloorStep{
		f.step("clone", f.clones(max(perHost+proxies, 1))),
		f.step("configure and start the VM", workerConfigTasks*f.clock.Of(latency.VMConfig), f.clock.Of(latency.VMStart)),
		f.step("boot into maintenance mode", f.clock.Of(latency.TalosBoot)),
		f.step("apply the configuration", f.clock.Of(latency.TalosApply), f.clock.Of(latency.TalosServices)),
		f.step("pull the kubelet", f.pull(kubeletRepository)),
	}
}

// tenant is the longer of the ways to a proxy and to a control plane.
func (f *floor) tenant() []control.FloorStep {
	proxy := []control.FloorStep{
		f.step("clone the proxy", f.clones(1)),
		f.step("configure and start the proxy", f.clock.Of(latency.VMConfig), f.clock.Of(latency.VMStart)),
		f.step("boot the proxy", f.clock.Of(latency.LinuxBoot), f.clock.Of(latency.EnvoyStart)),
	}
	const kamajiSteps = 20
	plane := []control.FloorStep{
		f.step("make the control plane", kamajiSteps*f.clock.Of(latency.KamajiStep)),
		f.step("set the tenant side up", f.clock.Of(latency.KamajiTenantSide)),
	}
	if f.sum(plane) > f.sum(proxy) {
		return plane
	}
	return proxy
}

// join is the way from a kubelet that runs to a node that is usable.
func (f *floor) join() {
	f.steps = append(f.steps,
		f.step("pull and start Cilium", f.pull(ciliumRepository), (ciliumInits+1)*f.clock.Of(latency.ContainerStart)),
		f.step("set the pod network up", f.clock.Of(latency.CiliumAgent)),
		f.step("pull and start the probe", f.pull(probeRepository), f.clock.Of(latency.ContainerStart)))
}
