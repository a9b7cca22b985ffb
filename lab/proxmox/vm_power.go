package proxmox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/proxmox/media"
	"aether.internal/aether/lab/proxmox/task"
)

const (
	shutdownTimeout = 60               // seconds
	haDelay         = 10 * time.Second // of the HA manager's rounds
)

func startVM(c *Cluster, r *call) (any, error) {
	if err := c.rootOnly(r, "skiplock", "stateuri", "migratedfrom", "migration_type", "migration_network"); err != nil {
		return nil, err
	}
	if err := c.needQuorum(); err != nil {
		return nil, err
	}
	if c.haManaged(r.vmid()) {
		return c.haRequest(r, "hastart", "started"), nil
	}
	vmid := r.vmid()
	t := c.start(r, taskSpec{kind: "qmstart", vmid: vmid}, func(t *task.Task) error { return c.startTask(r.node, vmid, t) })
	return t.UPID().String(), nil
}

func (c *Cluster) rootOnly(r *call, names ...string) error {
	for _, name := range names {
		if r.values.Has(name) && !r.id.IsRoot() {
			return paramError(name, "Only root may use this option.")
		}
	}
	return nil
}

// startTask powers a VM on.
func (c *Cluster) startTask(n *node, vmid int, t *task.Task) error {
	release, err := c.lockConfig(t.Context(), n, exclusive(vmid, t))
	if err != nil {
		return err
	}
	defer release()
	if err := c.checkStart(n, vmid); err != nil {
		return err
	}
	if err := t.Step(latency.VMStart, 1); err != nil {
		return err
	}
	return c.powerOn(n, vmid, t)
}

func (c *Cluster) checkStart(n *node, vmid int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(n, vmid)
	if err != nil {
		return err
	}
	if v.isTemplate() {
		return fail("you can't start a vm if it's a template")
	}
	if err := v.checkLock(); err != nil {
		return err
	}
	if v.running() {
		return fail("VM %d already running", vmid)
	}
	if cores(v.effective()) > n.Cores {
		return fail("MAX %d vcpus allowed per VM on this node", n.Cores)
	}
	for _, index := range nicKeys(v.effective()) {
		key := fmt.Sprintf("net%d", index)
		bridge := c.split(key, v.effective()[key])["bridge"]
		if _, ok := n.bridge(bridge); bridge != "" && !ok {
			return fail("bridge '%s' does not exist", bridge)
		}
	}
	for _, d := range c.drives(v.effective()) {
		if _, _, ok := splitVolume(d.file()); !ok {
			continue
		}
		if _, _, err := c.volume(n, d.file()); err != nil {
			return err
		}
	}
	return nil
}

// powerOn gives the hardware to the hypervisor. Pending changes take effect
// and the cloud-init drive is made anew. The VM's file lock is held.
func (c *Cluster) powerOn(n *node, vmid int, t *task.Task) error {
	v, hardware, err := c.prepare(n, vmid)
	if err != nil {
		return err
	}
	guest, err := c.cfg.Hypervisor.PowerOn(hardware)
	if err != nil {
		t.Log("kvm: %v", err)
		return errors.New("start failed: QEMU exited with code 1")
	}
	c.mu.Lock()
	v.guest, v.hardware, v.started, v.pid = guest, hardware, time.Now(), t.UPID().PID+1
	v.execs = map[int]execResult{}
	c.mu.Unlock()
	c.wg.Go(func() {
		<-guest.Done()
		c.guestOff(v, guest)
	})
	if t.Context().Err() != nil {
		c.killGuest(v, guest)
		return context.Cause(t.Context())
	}
	return nil
}

func (c *Cluster) prepare(n *node, vmid int) (*vm, machine.Hardware, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(n, vmid)
	if err != nil {
		return nil, machine.Hardware{}, err
	}
	v.applyPending()
	if err := c.generateCloudInit(v); err != nil {
		return nil, machine.Hardware{}, err
	}
	hardware, err := c.hardware(v)
	return v, hardware, err
}

// guestOff notes that a guest is off, whoever sees it first, and starts it
// again after a reboot that PVE was asked for.
func (c *Cluster) guestOff(v *vm, guest machine.Guest) {
	c.mu.Lock()
	if v.guest != guest {
		c.mu.Unlock()
		return
	}
	v.guest, v.pid = nil, 0
	again := v.rebooting
	v.rebooting = false
	n := v.node
	c.mu.Unlock()
	if again && n.powered() {
		c.startByRoot(n, v.id)
	}
}

// startByRoot is a start that PVE does by itself.
func (c *Cluster) startByRoot(n *node, vmid int) {
	r := &call{id: rootIdentity(), node: n, place: fmt.Sprintf("pve/POST/nodes/%s/qemu/%d/status/start", n.Name, vmid)}
	c.start(r, taskSpec{kind: "qmstart", vmid: vmid}, func(t *task.Task) error { return c.startTask(n, vmid, t) })
}

// hardware describes a VM to the hypervisor; c.mu is held.
func (c *Cluster) hardware(v *vm) (machine.Hardware, error) {
	h := machine.Hardware{
		Host: v.node.Name, VMID: v.id, Name: v.name(), UUID: smbiosUUID(v.conf),
		Cores: cores(v.conf), MemoryMiB: memoryMiB(v.conf), Media: c.media(v),
		AgentDevice: c.agentEnabled(v.conf),
	}
	indexes := nicKeys(v.conf)
	slices.Sort(indexes)
	for _, index := range indexes {
		key := fmt.Sprintf("net%d", index)
		p := c.split(key, v.conf[key])
		mac, err := net.ParseMAC(p["macaddr"])
		if err != nil {
			return h, fail("start failed: %s: %v", key, err)
		}
		h.NICs = append(h.NICs, machine.NIC{
			Index: index, Model: p["model"], MAC: mac, Bridge: p["bridge"],
			VLAN: confInt(p, "tag", 0), MTU: confInt(p, "mtu", 0), LinkDown: p["link_down"] == "1",
		})
	}
	for _, d := range c.bootDisks(v.conf) {
		_, vol, err := c.volume(v.node, d.file())
		if err != nil {
			return h, err
		}
		h.Disks = append(h.Disks, &machine.Disk{Slot: d.key, Volume: d.file(), SizeBytes: vol.size, Content: vol.disk})
	}
	return h, nil
}

func (c *Cluster) agentEnabled(conf map[string]string) bool {
	enabled := c.split("agent", conf["agent"])["enabled"]
	return enabled == "1" || enabled == "on" || enabled == "yes" || enabled == "true"
}

// media lists what is in a VM's CD-ROM drives; c.mu is held.
func (c *Cluster) media(v *vm) []machine.Medium {
	var list []machine.Medium
	for _, d := range c.drives(v.conf) {
		if !d.isCDROM() {
			continue
		}
		if _, vol, err := c.volume(v.node, d.file()); err == nil && vol.disc != nil {
			list = append(list, machine.Medium{Slot: d.key, Label: vol.disc.Label, Files: maps.Clone(vol.disc.Files)})
		}
	}
	return list
}

// cloudInitSource is what the drive of a VM is made from.
func (v *vm) cloudInitSource() media.Source {
	return media.Source{
		VMID: v.id, Config: v.conf, Nameservers: v.node.Nameservers, SearchDomain: v.node.SearchDomain,
	}
}

// generateCloudInit writes the cloud-init drive, if there is one.
func (c *Cluster) generateCloudInit(v *vm) error {
	for _, d := range c.drives(v.conf) {
		if !d.isCloudInit() {
			continue
		}
		if kind := v.conf["citype"]; kind != "" && kind != "nocloud" {
			return fail("citype '%s' is not served by the lab; use nocloud", kind)
		}
		if v.conf["cicustom"] != "" {
			return fail("volume '%s' does not exist", v.conf["cicustom"])
		}
		_, vol, err := c.volume(v.node, d.file())
		if err != nil {
			return err
		}
		vol.disc = media.NoCloud(v.cloudInitSource()).Disc()
		v.ciSeen = cloudInitKeys(v.conf)
	}
	return nil
}

func cloudInitKeys(conf map[string]string) map[string]string {
	keys := map[string]string{}
	for key, value := range conf {
		if kindOfOption(key) == cloudInitOption {
			keys[key] = value
		}
	}
	return keys
}

func stopVM(c *Cluster, r *call) (any, error) {
	if err := c.rootOnly(r, "skiplock", "keepActive", "migratedfrom"); err != nil {
		return nil, err
	}
	vmid := r.vmid()
	if c.haManaged(vmid) {
		return c.haRequest(r, "hastop", "stopped"), nil
	}
	if r.values.Bool("overrule-shutdown") {
		for _, t := range r.node.tasks.List() {
			if u := t.UPID(); u.Type == "qmshutdown" && u.ID == fmt.Sprint(vmid) && t.Exit() == "" {
				r.node.tasks.Stop(t)
			}
		}
	}
	t := c.start(r, taskSpec{kind: "qmstop", vmid: vmid}, func(t *task.Task) error { return c.stopTask(r.node, vmid, t) })
	return t.UPID().String(), nil
}

// stopTask cuts a VM's power. One that is off is left alone.
func (c *Cluster) stopTask(n *node, vmid int, t *task.Task) error {
	release, v, guest, err := c.lockGuest(n, vmid, t)
	if err != nil {
		return err
	}
	defer release()
	if guest == nil {
		return nil
	}
	if err := t.Step(latency.VMStop, 1); err != nil {
		return err
	}
	c.killGuest(v, guest)
	return nil
}

// lockGuest takes the VM's lock and finds its guest, nil when it is off.
func (c *Cluster) lockGuest(n *node, vmid int, t *task.Task) (func(), *vm, machine.Guest, error) {
	c.mu.Lock()
	_, err := c.findRunning(n, vmid)
	c.mu.Unlock()
	if err != nil {
		return nil, nil, nil, err
	}
	release, err := c.lockConfig(t.Context(), n, exclusive(vmid, t))
	if err != nil {
		return nil, nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(n, vmid)
	if err == nil {
		err = v.checkLock()
	}
	if err != nil {
		release()
		return nil, nil, nil, err
	}
	return release, v, v.guest, nil
}

func (c *Cluster) killGuest(v *vm, guest machine.Guest) {
	guest.Kill()
	c.guestOff(v, guest)
}

// killGuests cuts the power of all VMs of a host.
func (c *Cluster) killGuests(n *node) {
	c.mu.Lock()
	guests := map[*vm]machine.Guest{}
	for _, v := range c.vms {
		if v.node == n && v.running() {
			guests[v] = v.guest
			v.rebooting = false
		}
	}
	c.mu.Unlock()
	for v, guest := range guests {
		c.killGuest(v, guest)
	}
}

func shutdownVM(c *Cluster, r *call) (any, error) {
	if err := c.rootOnly(r, "skiplock", "keepActive"); err != nil {
		return nil, err
	}
	vmid := r.vmid()
	if c.haManaged(vmid) {
		return c.haRequest(r, "hastop", "stopped"), nil
	}
	timeout, force := r.values.Int("timeout", shutdownTimeout), r.values.Bool("forceStop")
	t := c.start(r, taskSpec{kind: "qmshutdown", vmid: vmid}, func(t *task.Task) error {
		return c.shutdownTask(r.node, vmid, shutdown{timeout, force, t})
	})
	return t.UPID().String(), nil
}

type shutdown struct {
	timeout int
	force   bool
	task    *task.Task
}

// shutdownTask presses the power button and waits for the guest.
func (c *Cluster) shutdownTask(n *node, vmid int, s shutdown) error {
	release, v, guest, err := c.lockGuest(n, vmid, s.task)
	if err != nil {
		return err
	}
	defer release()
	if guest == nil {
		return nil
	}
	guest.Shutdown()
	timer := time.NewTimer(c.cfg.Clock.Scale(time.Duration(s.timeout) * time.Second))
	defer timer.Stop()
	select {
	case <-guest.Done():
		c.guestOff(v, guest)
		return s.task.Step(latency.VMStop, 0)
	case <-s.task.Context().Done():
		return s.task.Step(latency.VMStop, 1)
	case <-timer.C:
	}
	if !s.force {
		return fail("VM quit/powerdown failed - got timeout")
	}
	s.task.Log("VM still running - terminating now with SIGTERM")
	if err := s.task.Step(latency.VMStop, 1); err != nil {
		return err
	}
	c.killGuest(v, guest)
	return nil
}

func rebootVM(c *Cluster, r *call) (any, error) {
	v, err := c.needRunning(r)
	if err != nil {
		return nil, err
	}
	timeout := r.values.Int("timeout", shutdownTimeout)
	t := c.start(r, taskSpec{kind: "qmreboot", vmid: v.id}, func(t *task.Task) error {
		c.mu.Lock()
		v.rebooting = true
		c.mu.Unlock()
		err := c.shutdownTask(r.node, v.id, shutdown{timeout, false, t})
		if err != nil {
			c.mu.Lock()
			v.rebooting = false
			c.mu.Unlock()
		}
		return err
	})
	return t.UPID().String(), nil
}

func resetVM(c *Cluster, r *call) (any, error) {
	v, err := c.needRunning(r)
	if err != nil {
		return nil, err
	}
	t := c.start(r, taskSpec{kind: "qmreset", vmid: v.id}, func(t *task.Task) error {
		release, _, guest, err := c.lockGuest(r.node, v.id, t)
		if err != nil {
			return err
		}
		defer release()
		if err := t.Step(latency.VMConfig, 1); err != nil {
			return err
		}
		if guest != nil {
			guest.Reset()
		}
		return nil
	})
	return t.UPID().String(), nil
}

func (c *Cluster) needRunning(r *call) (*vm, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.findRunning(r.node, r.vmid())
	if err != nil {
		return nil, err
	}
	if !v.running() {
		return nil, fail("VM %d not running", v.id)
	}
	return v, nil
}

// startOnBoot starts the VMs that want it after the host came up.
func (c *Cluster) startOnBoot(n *node) {
	c.mu.Lock()
	var ids []int
	for id, v := range c.vms {
		if v.node == n && v.conf["onboot"] == "1" && !v.isTemplate() {
			ids = append(ids, id)
		}
	}
	c.mu.Unlock()
	slices.Sort(ids)
	for _, id := range ids {
		c.startByRoot(n, id)
	}
}
