package activities

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"aether.internal/aether/internal/domain"
	"aether.internal/aether/internal/lease"
	"aether.internal/aether/internal/proxmox"
	"aether.internal/aether/lab/faults"
)

const clonePlace = "pve/POST/nodes/*/qemu/*/clone"

// clone calls CloneVM until it ends well, as Temporal would.
func (w *world) clone(id string) (failures []error) {
	w.t.Helper()
	for range 10 {
		err := w.proxmox().CloneVM(w.t.Context(), refOf(id))
		if err == nil {
			return failures
		}
		if application, ok := applicationError(err); ok && application.NonRetryable() {
			w.t.Fatal(err)
		}
		failures = append(failures, err)
	}
	w.t.Fatal(errors.Join(failures...))
	return nil
}

func TestCloneVM(t *testing.T) {
	w := leased(t)
	w.twice("CloneVM", func() error { return w.proxmox().CloneVM(t.Context(), refOf(workerID)) })
	seen := w.observed(workerID)
	if seen.VM.Name != "demo-workers-6f1e0c52" || seen.Belongs(workerID) != nil || seen.Mark.Tenant != "demo" || seen.Mark.Role != proxmox.RoleWorker || seen.Config.Lock != "" {
		t.Errorf("VM %+v, mark %+v", seen.VM, seen.Mark)
	}
	if w.count() != 1 || w.vm(workerID).Status.Phase != "Cloning" {
		t.Errorf("%d VMs, phase %s", w.count(), w.vm(workerID).Status.Phase)
	}
	w.noSlots()
}

// noSlots makes sure that all clone slots were given back.
func (w *world) noSlots() {
	w.t.Helper()
	for i, host := range w.site.Spec.Proxmox[0].Hosts {
		pool := lease.SlotPool{Cluster: "homelab", Host: host.Name, Storage: host.Storage.Disks, Size: host.Storage.CloneSlots}
		for n := range pool.Size {
			holder := lease.Holder{ID: fmt.Sprintf("test-%d-%d", i, n), Tenant: "test"}
			have, _, err := w.leases.TryAcquire(w.t.Context(), pool, holder)
			if err != nil || !have {
				w.t.Errorf("slot %d of %s is held: %v", n, pool, err)
			}
			defer func() {
				if err := w.leases.ReleaseSlot(w.t.Context(), pool, holder.ID); err != nil {
					w.t.Error(err)
				}
			}()
		}
	}
}

// TestCloneVMAfterALostAnswer: the clone took effect and nobody heard of it.
func TestCloneVMAfterALostAnswer(t *testing.T) {
	w := leased(t)
	id := w.inject(faults.Fault{Kind: faults.LostAnswer, Place: clonePlace, Count: 1})
	err := w.proxmox().CloneVM(t.Context(), refOf(workerID))
	if err := errorIs(err, UnavailableType, false, "clone template 101"); err != nil {
		t.Fatal(err)
	}
	if w.hits(id) != 1 {
		t.Fatal("the answer was not lost")
	}
	if failures := w.clone(workerID); len(failures) != 0 {
		t.Errorf("the next attempts failed too: %v", failures)
	}
	if w.count() != 1 {
		t.Errorf("%d VMs", w.count())
	}
	w.noSlots()
}

// TestCloneVMIsKilledWhileItRuns: the next attempt finds the clone in flight
// and waits for it, slow as it may be.
func TestCloneVMIsKilledWhileItRuns(t *testing.T) {
	w := newWorldAt(t, 5, tenantObject(), workerVM(workerID, "pv1-1"))
	w.lease(workerID)
	ctx, kill := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.proxmox().CloneVM(ctx, refOf(workerID)) }()
	w.eventuallyCloning()
	kill()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("ended with %v", err)
	}
	// The slot is still held: the clone goes on.
	pool := slotPool(w.platformMachine(workerID))
	if have, err := w.leases.RenewSlot(t.Context(), pool, lease.Holder{ID: workerID}); err != nil || !have {
		t.Errorf("slot held: %t, %v", have, err)
	}
	if failures := w.clone(workerID); len(failures) != 0 {
		t.Error(failures)
	}
	if w.count() != 1 {
		t.Errorf("%d VMs", w.count())
	}
	w.noSlots()
}

// eventuallyCloning waits until the clone to VMID 1000 is in flight.
func (w *world) eventuallyCloning() {
	w.t.Helper()
	eventually(w.t, "a clone in flight", func() bool {
		upid, err := w.pve.CloneInFlight(w.t.Context(), "pv1-1", 101, 1000)
		return err == nil && upid != ""
	})
}

func (w *world) platformMachine(id string) *machine {
	w.t.Helper()
	m, err := w.platform.machine(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// TestCloneVMWhoseTaskFails is repeated, and says what the task said.
func TestCloneVMWhoseTaskFails(t *testing.T) {
	for _, test := range []struct{ exit, kind string }{
		{"clone failed: can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout", UnavailableType},
		{"clone failed: lvcreate 'pve/vm-1000-disk-0' error: not enough free space", ExhaustedType},
		{"something unheard of", FailedTaskType},
	} {
		t.Run(test.kind, func(t *testing.T) {
			w := leased(t)
			w.inject(faults.Fault{Kind: faults.FailedTask, Place: clonePlace, Count: 1, Message: test.exit})
			err := w.proxmox().CloneVM(t.Context(), refOf(workerID))
			if err := errorIs(err, test.kind, false, test.exit, "UPID:pv1-1:"); err != nil {
				t.Fatal(err)
			}
			w.noSlots() // nothing is in flight, so others may go on
			w.clone(workerID)
			if w.count() != 1 {
				t.Errorf("%d VMs", w.count())
			}
		})
	}
}

func TestCloneVMThatIsForbidden(t *testing.T) {
	w := leased(t)
	w.inject(faults.Fault{Kind: faults.HTTPStatus, Place: clonePlace, Status: 403, Message: "Permission check failed (/vms/101, VM.Clone)"})
	err := w.proxmox().CloneVM(t.Context(), refOf(workerID))
	if err := errorIs(err, ForbiddenType, true, "VM.Clone on /vms/101", "pveum"); err != nil {
		t.Error(err)
	}
	w.noSlots()
}

// TestCloneVMExchangesATakenVMID: someone outside of Aether took our VMID
// between its lease and the clone.
func TestCloneVMExchangesATakenVMID(t *testing.T) {
	w := leased(t)
	w.foreign(1000, proxmox.Mark{Machine: worker2ID, Tenant: "other", Role: proxmox.RoleWorker})
	failures := w.clone(workerID)
	if len(failures) != 1 {
		t.Fatalf("failures: %v", failures)
	}
	if err := errorIs(failures[0], WaitingType, false, "VMID 1000 cannot be used", "VMID 1001 is leased in its place"); err != nil {
		t.Error(err)
	}
	if seen := w.observed(workerID); seen.VM.VMID != 1001 || seen.Belongs(workerID) != nil {
		t.Errorf("got %+v", seen.VM)
	}
	stranger, err := w.pve.VM(t.Context(), "pv1-1", 1000)
	if err != nil || stranger.Mark.Machine != worker2ID {
		t.Errorf("the stranger's VM is now %+v, %v", stranger.Mark, err)
	}
	// The reservation follows, or the stranger's memory would not count and our
	// own would count twice.
	book, err := w.leases.Ledger(t.Context(), lease.Host{Cluster: "homelab", Name: "pv1-1"})
	if err != nil || len(book) != 1 || book[0].VMID != 1001 {
		t.Errorf("ledger %+v, %v", book, err)
	}
	held, err := w.leases.Held(t.Context(), workerID)
	if err != nil || len(held) != 3 {
		t.Errorf("held %+v, %v", held, err)
	}
	w.noSlots()
}

// foreign makes a VM of another at a VMID.
func (w *world) foreign(vmid int, mark proxmox.Mark) {
	w.t.Helper()
	upid, err := w.pve.Clone(w.t.Context(), proxmox.CloneSpec{Node: "pv1-1", Template: 101, VMID: vmid, Name: "stranger", Mark: mark})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.pve.WaitTask(w.t.Context(), upid, nil); err != nil {
		w.t.Fatal(err)
	}
}

// TestClonesAreBoundedOverAllTenants: with two slots on the storage, never more
// than two clones are in flight, and all machines get theirs.
func TestClonesAreBoundedOverAllTenants(t *testing.T) {
	const machines, slots = 5, 2
	w := newWorldAt(t, 20, tenantObject())
	ids := make([]string, 0, machines)
	for n := range machines {
		id := fmt.Sprintf("%08d-8e0f-4a36-9a0e-0f6f2a3c4d5e", n)
		vm := workerVM(id, "pv1-1")
		vm.Spec.MemoryMiB = 1024
		if err := w.kube.Create(t.Context(), vm); err != nil {
			t.Fatal(err)
		}
		w.lease(id)
		ids = append(ids, id)
	}
	ctx, stop := context.WithCancel(t.Context())
	most, watched := 0, make(chan struct{})
	go func() {
		defer close(watched)
		for ctx.Err() == nil {
			running, err := w.pve.RunningTasks(ctx, "pv1-1", "qmclone", 0)
			if err == nil {
				most = max(most, len(running))
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	var group sync.WaitGroup
	for _, id := range ids {
		group.Go(func() {
			for {
				err := w.proxmox().CloneVM(t.Context(), refOf(id))
				if err == nil {
					return
				}
				if application, ok := applicationError(err); !ok || application.NonRetryable() {
					t.Errorf("machine %s: %v", id, err)
					return
				}
			}
		})
	}
	group.Wait()
	stop()
	<-watched
	if most > slots || most == 0 {
		t.Errorf("%d clones were in flight at once, allowed are %d", most, slots)
	}
	if w.count() != machines {
		t.Errorf("%d VMs", w.count())
	}
	w.noSlots()
}

// TestConfigureVM: what is wished is there when it returns, and a second time
// nothing is written.
func TestConfigureVM(t *testing.T) {
	w := leased(t)
	w.clone(workerID)
	w.twice("ConfigureVM", func() error { return w.proxmox().ConfigureVM(t.Context(), refOf(workerID)) })
	c := w.observed(workerID).Config
	disk, _ := c.Disk(systemDisk)
	if c.UUID != workerID || c.Cores != 2 || c.MemoryMiB != 2048 || !c.Agent || c.Boot != "order=scsi0" || disk.SizeBytes != 20<<30 || c.Name != "demo-workers-6f1e0c52" {
		t.Errorf("configuration %+v", c)
	}
	for _, tag := range []string{"aether", "aether-worker", "tenant-demo"} {
		if !strings.Contains(strings.Join(c.Tags, " "), tag) {
			t.Errorf("tag %s is not among %v", tag, c.Tags)
		}
	}
	for i, bridge := range []string{"vmbr1", "vmbr2"} {
		nic, ok := c.NIC(i)
		if !ok || nic.Bridge != bridge || nic.MAC.String() != domain.WorkerMAC(workerID, i).String() || nic.LinkDown {
			t.Errorf("card %d: %+v", i, nic)
		}
	}
	raw := w.rawConfig(1000)
	for key, want := range map[string]string{"ipconfig0": "ip=10.1.1.50/24,gw=10.1.1.1", "ipconfig1": "ip=10.1.2.50/24", "nameserver": "192.168.0.1", "onboot": "1"} {
		if raw[key] != want {
			t.Errorf("%s: got %q, want %q", key, raw[key], want)
		}
	}
}

// rawConfig is a VM's configuration as the simulator has it.
func (w *world) rawConfig(vmid int) map[string]string {
	w.t.Helper()
	for _, vm := range w.sim.VMs() {
		if vm.VMID == vmid {
			return vm.Config
		}
	}
	w.t.Fatalf("no VM %d", vmid)
	return nil
}

func TestConfigureVMAfterALostAnswer(t *testing.T) {
	for _, place := range []string{"pve/PUT/nodes/*/qemu/*/config", "pve/PUT/nodes/*/qemu/*/resize"} {
		t.Run(place, func(t *testing.T) {
			w := leased(t)
			w.clone(workerID)
			id := w.inject(faults.Fault{Kind: faults.LostAnswer, Place: place, Count: 1})
			err := w.proxmox().ConfigureVM(t.Context(), refOf(workerID))
			if err := errorIs(err, UnavailableType, false); err != nil || w.hits(id) != 1 {
				t.Fatalf("%v, %d hits", err, w.hits(id))
			}
			eventually(t, "the next attempt", func() bool { return w.proxmox().ConfigureVM(t.Context(), refOf(workerID)) == nil })
			disk, _ := w.observed(workerID).Config.Disk(systemDisk)
			if disk.SizeBytes != 20<<30 {
				t.Errorf("disk of %d bytes", disk.SizeBytes)
			}
		})
	}
}

// TestConfigureVMNeverWritesAStrangersVM nor one that is gone.
func TestConfigureVMNeverWritesAStrangersVM(t *testing.T) {
	w := leased(t)
	err := w.proxmox().ConfigureVM(t.Context(), refOf(workerID))
	if err := errorIs(err, GoneType, true, "VM does not exist"); err != nil {
		t.Error(err)
	}
	w.foreign(1000, proxmox.Mark{Machine: worker2ID, Tenant: "other", Role: proxmox.RoleWorker})
	before := fmt.Sprint(w.rawConfig(1000))
	for _, activity := range []func(context.Context, MachineRef) error{w.proxmox().ConfigureVM, w.proxmox().StartVM} {
		if err := errorIs(activity(t.Context(), refOf(workerID)), NotOursType, true, worker2ID); err != nil {
			t.Error(err)
		}
	}
	if after := fmt.Sprint(w.rawConfig(1000)); after != before {
		t.Errorf("it was changed:\n%s\n%s", before, after)
	}
}

// TestAProxyKeepsItsTemplatesDisk and has no cloud-init of Proxmox's own.
func TestAProxyKeepsItsTemplatesDisk(t *testing.T) {
	w := newWorld(t, tenantObject(), proxyVM())
	w.lease(proxyID)
	w.clone(proxyID)
	w.twice("ConfigureVM", func() error { return w.proxmox().ConfigureVM(t.Context(), refOf(proxyID)) })
	seen := w.observed(proxyID)
	disk, _ := seen.Config.Disk(systemDisk)
	if disk.SizeBytes != 4<<30 || seen.Mark.Role != proxmox.RoleProxy {
		t.Errorf("disk of %d bytes, mark %+v", disk.SizeBytes, seen.Mark)
	}
	if raw := w.rawConfig(int(w.vm(proxyID).Spec.VMID)); raw["ipconfig0"] != "" {
		t.Errorf("ipconfig0 is %q", raw["ipconfig0"])
	}
}

func TestStartVM(t *testing.T) {
	w := leased(t)
	w.clone(workerID)
	if err := w.proxmox().ConfigureVM(t.Context(), refOf(workerID)); err != nil {
		t.Fatal(err)
	}
	id := w.inject(faults.Fault{Kind: faults.LostAnswer, Place: "pve/POST/nodes/*/qemu/*/status/start", Count: 1})
	if err := errorIs(w.proxmox().StartVM(t.Context(), refOf(workerID)), UnavailableType, false); err != nil || w.hits(id) != 1 {
		t.Fatalf("%v, %d hits", err, w.hits(id))
	}
	w.twice("StartVM", func() error { return w.proxmox().StartVM(t.Context(), refOf(workerID)) })
	if !w.observed(workerID).VM.Running || w.vm(workerID).Status.Phase != "Booting" {
		t.Errorf("phase %s", w.vm(workerID).Status.Phase)
	}
	// Proxmox takes any bridge and fails at the start: that never gets better.
	w = newWorld(t, tenantObject(), workerVM(workerID, "pv1-1"))
	w.site.Spec.Networks[1].Bridge = "vmbr9"
	w.lease(workerID)
	w.clone(workerID)
	if err := w.proxmox().ConfigureVM(t.Context(), refOf(workerID)); err != nil {
		t.Fatal(err)
	}
	if err := errorIs(w.proxmox().StartVM(t.Context(), refOf(workerID)), InvalidType, true, "vmbr9"); err != nil {
		t.Error(err)
	}
}

// TestAHostThatIsOffIsNotAHostWithoutVMs: nothing about its VM is concluded,
// and the other host works on.
func TestAHostThatIsOffIsNotAHostWithoutVMs(t *testing.T) {
	w := newWorld(t, tenantObject(), workerVM(workerID, "pv1-1"), workerVM(worker2ID, "pv1-2"))
	w.lease(workerID)
	w.lease(worker2ID)
	w.clone(workerID)
	id := w.inject(faults.Fault{Kind: faults.HostOff, Place: "pve/host/pv1-1"})
	eventually(t, "host off", func() bool {
		_, err := w.pve.NodeStatus(t.Context(), "pv1-1")
		return errors.Is(err, proxmox.ErrUnreachable)
	})
	for name, activity := range map[string]func(context.Context, MachineRef) error{
		"CloneVM": w.proxmox().CloneVM, "ConfigureVM": w.proxmox().ConfigureVM, "StartVM": w.proxmox().StartVM, "DestroyVM": w.proxmox().DestroyVM,
	} {
		if err := errorIs(activity(t.Context(), refOf(workerID)), UnavailableType, false); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.clone(worker2ID)
	w.faults.Clear(id)
	eventually(t, "the host is back", func() bool { return w.proxmox().ConfigureVM(t.Context(), refOf(workerID)) == nil })
	if w.count() != 2 {
		t.Errorf("%d VMs", w.count())
	}
}

// TestNoQuorumIsWaitedFor: reads work, writes are repeated after a pause.
func TestNoQuorumIsWaitedFor(t *testing.T) {
	w := leased(t)
	id := w.inject(faults.Fault{Kind: faults.NoQuorum, Place: "pve/quorum"})
	err := w.proxmox().CloneVM(t.Context(), refOf(workerID))
	if err := errorIs(err, UnavailableType, false, "cluster has no quorum", "bring the missing hosts back"); err != nil {
		t.Error(err)
	}
	w.noSlots()
	w.faults.Clear(id)
	w.clone(workerID)
	if vm := w.vm(workerID); vm.Spec.VMID != 1000 {
		t.Errorf("a VMID was lost over it: %d", vm.Spec.VMID)
	}
}
