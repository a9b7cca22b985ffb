// Package latency is the lab's one table of times: how long the simulated
// hardware takes for what, each with the source of its number. Upstream
// programs (Kubernetes, Temporal, Cluster API) keep their own timers and are
// not in it.
package latency

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Step is something that takes time on real hardware.
type Step string

// The steps of the table.
const (
	CloneLinked      Step = "clone-linked"
	CloneFullPerGiB  Step = "clone-full-per-gib"
	VMConfig         Step = "vm-config"
	VMStart          Step = "vm-start"
	VMStop           Step = "vm-stop"
	VMDestroy        Step = "vm-destroy"
	VMTemplate       Step = "vm-template"
	ISOUpload        Step = "iso-upload"
	ResourcesLag     Step = "resources-lag"
	AuthFailureDelay Step = "auth-failure-delay"
	AgentPing        Step = "agent-ping"
	TalosBoot        Step = "talos-boot"
	TalosApply       Step = "talos-apply"
	TalosServices    Step = "talos-services"
	TalosInstall     Step = "talos-install"
	LinuxBoot        Step = "linux-boot"
	EnvoyStart       Step = "envoy-start"
	PullPerMiB       Step = "pull-per-mib"
	PullImage        Step = "pull-image"
	ContainerStart   Step = "container-start"
	CiliumAgent      Step = "cilium-agent"
	KamajiStep       Step = "kamaji-step"
	KamajiTenantSide Step = "kamaji-tenant-side"
)

// Entry is one row of the table.
type Entry struct {
	Step   Step
	Time   time.Duration // at speed 1
	Source string
}

// Table lists all rows in the order of a join.
func Table() []Entry {
	return []Entry{
		{CloneLinked, 2 * time.Second, "pve-api.md §7: linked 1–3 s"},
		{CloneFullPerGiB, 2 * time.Second, "pve-api.md §7: 20 GiB ≈ 40 s at the fast end"},
		{VMConfig, 300 * time.Millisecond, "pve-api.md §7: config task < 1 s"},
		{VMStart, 3 * time.Second, "pve-api.md §7: start 2–5 s"},
		{VMStop, 2 * time.Second, "pve-api.md §7, same order as start"},
		{VMDestroy, 2 * time.Second, "pve-api.md §7: destroy 1–5 s"},
		{VMTemplate, 2 * time.Second, "pve-api.md §7: template conversion 1–3 s"},
		{ISOUpload, 300 * time.Millisecond, "assumed: a few hundred KiB on a gigabit link plus a copy"},
		{ResourcesLag, 10 * time.Second, "pve-api.md §3: pvestatd broadcasts every ~10 s"},
		{AuthFailureDelay, 3 * time.Second, "pve-api.md §1.6: 401s are delayed 3 s"},
		{AgentPing, 3 * time.Second, "pve-api.md §8: guest-ping time-out"},
		{TalosBoot, 15 * time.Second, "seed 002: Pending to Ready ~80 s in all; kernel to maintenance mode"},
		{TalosApply, 1 * time.Second, "talos-temporal.md A5.3: nocloud disk image continues without reboot"},
		{TalosServices, 5 * time.Second, "assumed: containerd, time sync, volumes before the kubelet"},
		{TalosInstall, 30 * time.Second, "talos-temporal.md A5.3: metal install writes the disk and reboots"},
		{LinuxBoot, 12 * time.Second, "assumed: Debian 12 cloud image to network-online"},
		{EnvoyStart, 1 * time.Second, "assumed: Envoy start to first xDS request"},
		{PullImage, 500 * time.Millisecond, "assumed: resolve and unpack on a local mirror"},
		{PullPerMiB, 10 * time.Millisecond, "assumed: 100 MiB/s from a local mirror"},
		{ContainerStart, 300 * time.Millisecond, "assumed: containerd create and start"},
		{CiliumAgent, 5 * time.Second, "assumed: agent start to CNI configuration written"},
		{KamajiStep, 60 * time.Millisecond, "kamaji-observed.md §2: about 20 steps in 1.2 s"},
		{KamajiTenantSide, 1500 * time.Millisecond, "kamaji-observed.md §2: Ready precedes the tenant side by 2–4 s"},
	}
}

// Clock scales the table: speed 10 is ten times as fast as real hardware.
type Clock struct {
	speed float64
	times map[Step]time.Duration
}

// NewClock returns a clock of that speed, which must be greater than 0.
func NewClock(speed float64) (*Clock, error) {
	if speed <= 0 {
		return nil, fmt.Errorf("speed: %v is not allowed; give a number greater than 0 (1 is real time)", speed)
	}
	c := &Clock{speed: speed, times: map[Step]time.Duration{}}
	for _, e := range Table() {
		c.times[e.Step] = e.Time
	}
	return c, nil
}

// Speed returns the factor given to NewClock.
func (c *Clock) Speed() float64 { return c.speed }

// Of returns how long a step takes on this clock. An unknown step panics: the
// table and its users are compiled together.
func (c *Clock) Of(step Step) time.Duration {
	d, ok := c.times[step]
	if !ok {
		panic("latency: step " + string(step) + " is not in the table")
	}
	return c.Scale(d)
}

// Scale returns a real-time duration on this clock.
func (c *Clock) Scale(d time.Duration) time.Duration {
	return time.Duration(float64(d) / c.speed)
}

// Sleep takes the time of a step, n times over, and returns early with the
// context's error.
func (c *Clock) Sleep(ctx context.Context, step Step, n float64) error {
	timer := time.NewTimer(time.Duration(float64(c.Of(step)) * n))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Steps returns the names of the table, sorted.
func Steps() []Step {
	steps := make([]Step, 0, len(Table()))
	for _, e := range Table() {
		steps = append(steps, e.Step)
	}
	slices.Sort(steps)
	return steps
}
