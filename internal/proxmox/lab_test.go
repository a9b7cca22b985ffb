package proxmox_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"

	"aether.internal/aether/internal/proxmox"
	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/machine"
	simulator "aether.internal/aether/lab/proxmox"
	"aether.internal/aether/lab/proxmox/access"
	"aether.internal/aether/lab/proxmox/blank"
)

// world is the homelab's two hosts, simulated on the loopback.
type world struct {
	cluster *simulator.Cluster
	faults  *faults.Set
	client  *proxmox.Client
}

func newWorld(t *testing.T) *world {
	t.Helper()
	clock, err := latency.NewClock(100)
	if err != nil {
		t.Fatal(err)
	}
	image := machine.Image{OS: "blank", Version: "v1", Agent: true}
	config := simulator.HomeLab(image, image)
	w := &world{faults: &faults.Set{}}
	config.Clock, config.Faults, config.Hypervisor = clock, w.faults, blank.New(clock)
	config.Listen = func(string, string) (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }
	if w.cluster, err = simulator.New(config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.cluster.Close)
	w.client = w.as(t, "aether@pve!test")
	return w
}

func (w *world) as(t *testing.T, token string) *proxmox.Client {
	t.Helper()
	secret, err := w.cluster.Token(access.Token{ID: token})
	if err != nil {
		t.Fatal(err)
	}
	var endpoints []string
	for _, node := range []string{"pv1-1", "pv1-2"} {
		endpoints = append(endpoints, strings.TrimSuffix(w.cluster.Endpoint(node), "/api2/json"))
	}
	client, err := proxmox.New(proxmox.Config{Cluster: "homelab", Endpoints: endpoints, Token: proxmox.Token(token + "=" + secret), CA: w.cluster.CAPEM()})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func cloneSpec(vmid int) proxmox.CloneSpec {
	return proxmox.CloneSpec{
		Node: "pv1-1", Template: 101, VMID: vmid, Name: fmt.Sprintf("demo-w%d", vmid),
		Mark: proxmox.Mark{Machine: fmt.Sprintf("6f1c2a34-0000-4000-8000-%012d", vmid), Tenant: "demo", Role: proxmox.RoleWorker},
	}
}

func refOf(s proxmox.CloneSpec) proxmox.Ref {
	return proxmox.Ref{Node: s.Node, VMID: s.VMID, Machine: s.Mark.Machine}
}

func (w *world) clone(t *testing.T, s proxmox.CloneSpec) {
	t.Helper()
	upid, err := w.client.Clone(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.WaitTask(t.Context(), upid, nil); err != nil {
		t.Fatal(err)
	}
}

func wish(s proxmox.CloneSpec) proxmox.ConfigWish {
	on := true
	return proxmox.ConfigWish{
		Name: s.Name, Mark: &s.Mark, UUID: s.Mark.Machine, Cores: 4, MemoryMiB: 4096, Agent: &on,
		NICs: []proxmox.NIC{{Index: 0, Model: "virtio", Bridge: "vmbr1"}, {Index: 1, Model: "virtio", Bridge: "vmbr0", VLAN: 4}},
		CloudInit: &proxmox.CloudInit{
			Slot: proxmox.CloudInitSlot, Storage: "local-lvm", Nameservers: []netip.Addr{netip.MustParseAddr("192.168.0.1")},
			Addresses: map[int]proxmox.AddressConfig{0: {Address: netip.MustParsePrefix("10.1.1.50/24"), Gateway: netip.MustParseAddr("10.1.1.1")}},
		},
	}
}

// TestLabLifeOfAVM walks every step of a machine, each of them twice.
func TestLabLifeOfAVM(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	s := cloneSpec(1000)
	for range 2 {
		w.clone(t, s)
		if err := w.client.WriteConfig(ctx, refOf(s), wish(s)); err != nil {
			t.Fatal(err)
		}
		if err := w.client.Grow(ctx, refOf(s), "scsi0", 20, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := w.client.Start(ctx, refOf(s), nil); err != nil {
			t.Fatal(err)
		}
	}
	seen, err := w.client.FindVM(ctx, 1000)
	if err != nil {
		t.Fatal(err)
	}
	disk, _ := seen.Config.Disk("scsi0")
	if !seen.VM.Running || seen.VM.Node != "pv1-1" || seen.Config.UUID != s.Mark.Machine || seen.Config.MemoryMiB != 4096 || seen.Config.Cores != 4 ||
		disk.SizeBytes != 20<<30 || !seen.Config.Agent || len(seen.Config.NICs) != 2 || seen.Mark != s.Mark {
		t.Errorf("got %+v", seen)
	}
	for _, down := range []bool{true, true, false} {
		if err := w.client.SetLinkDown(ctx, refOf(s), 0, down); err != nil {
			t.Fatal(err)
		}
	}
	volume, err := w.client.UploadISO(ctx, "pv1-1", "local", "aether-1000.iso", iso(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.client.AttachISO(ctx, refOf(s), proxmox.CloudInitSlot, volume); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.client.DetachISO(ctx, refOf(s), proxmox.CloudInitSlot); err != nil {
			t.Fatal(err)
		}
		if err := w.client.DeleteISO(ctx, "pv1-1", "local", "aether-1000.iso", nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := w.client.Stop(ctx, refOf(s), nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := w.client.Destroy(ctx, refOf(s), nil); err != nil {
			t.Fatal(err)
		}
	}
	if taken, err := w.client.VMIDTaken(ctx, 1000); taken || err != nil {
		t.Errorf("the VMID is still taken: %t, %v", taken, err)
	}
}

// iso makes an image with nothing on it but a label.
func iso(t *testing.T) []byte {
	t.Helper()
	name := filepath.Join(t.TempDir(), "x.iso")
	store, err := file.CreateFromPath(name, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	image, err := iso9660.Create(store, 0, 0, 2048, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := image.Finalize(iso9660.FinalizeOptions{RockRidge: true, VolumeIdentifier: "cidata"}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestLabReadsTheHosts(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	if version, err := w.client.Version(ctx); err != nil || version == "" {
		t.Errorf("version: %q, %v", version, err)
	}
	nodes, err := w.client.Nodes(ctx)
	if err != nil || len(nodes) != 2 || !nodes[0].Online || nodes[1].Name != "pv1-2" {
		t.Errorf("nodes: %+v, %v", nodes, err)
	}
	if quorate, err := w.client.Quorate(ctx); err != nil || !quorate {
		t.Errorf("quorate: %t, %v", quorate, err)
	}
	status, err := w.client.NodeStatus(ctx, "pv1-2")
	if err != nil || status.Cores != 12 || status.MemoryBytes < 40<<30 {
		t.Errorf("status: %+v, %v", status, err)
	}
	guests, err := w.client.VMs(ctx, "pv1-1")
	if err != nil || len(guests) < 2 || guests[0].VMID != 101 || !guests[0].Template {
		t.Errorf("guests: %+v, %v", guests, err)
	}
	storages, err := w.client.Storages(ctx, "pv1-1")
	if err != nil || len(storages) != 2 || !storages[0].Holds("iso") || !storages[1].Holds("images") || storages[1].FreeBytes == 0 || !storages[1].Active {
		t.Errorf("storages: %+v, %v", storages, err)
	}
	bridges, err := w.client.Bridges(ctx, "pv1-1")
	if err != nil || len(bridges) != 3 || bridges[0].Carries(4) != nil || bridges[1].Carries(4) == nil || bridges[1].Carries(0) != nil {
		t.Errorf("bridges: %+v, %v", bridges, err)
	}
	findings, _, err := w.client.LintTemplate(ctx, "pv1-1", 101, "local-lvm", true)
	if err != nil || len(findings) != 0 {
		t.Errorf("template: %v, %v", findings, err)
	}
	if _, _, err := w.client.LintTemplate(ctx, "pv1-2", 101, "local-lvm", true); !errors.Is(err, proxmox.ErrNotFound) {
		t.Errorf("a template of another host: %v", err)
	}
	if _, err := w.client.NodeStatus(ctx, "pv1-9"); !errors.Is(err, proxmox.ErrNoSuchNode) {
		t.Errorf("an unknown node: %v", err)
	}
}

func TestLabPrivileges(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	use := proxmox.Use{
		FirstVMID: 1000, Templates: []int{101, 102}, Nodes: []string{"pv1-1", "pv1-2"}, Disks: []string{"local-lvm"}, ISOs: []string{"local"},
		Bridges: []proxmox.Attachment{{Bridge: "vmbr0", VLAN: 4}, {Bridge: "vmbr1"}},
	}
	missing, err := w.client.MissingPrivileges(ctx, use.Needed())
	if err != nil || len(missing) != 0 {
		t.Errorf("the homelab's own grants lack %v, %v", missing, err)
	}
	w.cluster.Access().AddUser(access.User{ID: "weak@pve"})
	if err := w.cluster.Access().Grant(access.ACL{Path: "/vms", Who: "weak@pve", Role: "PVEVMAdmin", Propagate: true}); err != nil {
		t.Fatal(err)
	}
	weak := w.as(t, "weak@pve!t")
	missing, err = weak.MissingPrivileges(ctx, use.Needed())
	if err != nil || len(missing) == 0 {
		t.Fatalf("got %v, %v", missing, err)
	}
	for _, p := range missing {
		if strings.HasPrefix(p.Path, "/vms") {
			t.Errorf("%s is granted", p)
		}
	}
	if _, err := weak.Clone(ctx, cloneSpec(1000)); !errors.Is(err, proxmox.ErrForbidden) {
		t.Errorf("a clone without rights on the storage: got %v", err)
	}
}

// TestLabLostAnswers loses the answer of each write after its effect: the
// repeat must end with one VM in the wished state.
func TestLabLostAnswers(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	s := cloneSpec(1000)
	lose := func(place string, do func() error) {
		t.Helper()
		id, err := w.faults.Inject(faults.Fault{Kind: faults.LostAnswer, Place: place, Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		first := do()
		hits := 0
		for _, f := range w.faults.List() {
			if f.ID == id {
				hits = f.Hits
			}
		}
		if hits != 1 || !proxmox.OutcomeUnknown(first) {
			t.Fatalf("%s: hit %d times, got %v", place, hits, first)
		}
		w.faults.Clear(id)
		if err := do(); err != nil {
			t.Fatalf("%s: the repeat: %v", place, err)
		}
	}
	lose("pve/POST/nodes/*/qemu/*/clone", func() error {
		upid, err := w.client.Clone(ctx, s)
		if err != nil {
			return err
		}
		_, err = w.client.WaitTask(ctx, upid, nil)
		return err
	})
	lose("pve/PUT/nodes/*/qemu/*/config", func() error { return w.client.WriteConfig(ctx, refOf(s), wish(s)) })
	lose("pve/PUT/nodes/*/qemu/*/resize", func() error {
		err := w.client.Grow(ctx, refOf(s), "scsi0", 20, nil)
		time.Sleep(50 * time.Millisecond) // the task goes on meanwhile
		return err
	})
	lose("pve/POST/nodes/*/qemu/*/status/start", func() error { _, err := w.client.Start(ctx, refOf(s), nil); return err })
	lose("pve/POST/nodes/*/qemu/*/status/stop", func() error { return w.client.Stop(ctx, refOf(s), nil) })
	lose("pve/DELETE/nodes/*/qemu/*", func() error { return w.client.Destroy(ctx, refOf(s), nil) })
	if n := len(w.cluster.VMs()); n != 4 {
		t.Errorf("%d VMs, want the four templates", n)
	}
}

func TestLabClonesAtOnce(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	var group sync.WaitGroup
	for n := range 4 {
		group.Go(func() {
			s := cloneSpec(1000 + n)
			for {
				upid, err := w.client.Clone(ctx, s)
				if err == nil {
					_, err = w.client.WaitTask(ctx, upid, nil)
				}
				if err == nil {
					return
				}
				if !errors.Is(err, proxmox.ErrLockTimeout) {
					t.Errorf("VM %d: %v", s.VMID, err)
					return
				}
			}
		})
	}
	group.Wait()
	for n := range 4 {
		s := cloneSpec(1000 + n)
		if seen, err := w.client.VM(ctx, "pv1-1", s.VMID); err != nil || seen.Belongs(s.Mark.Machine) != nil {
			t.Errorf("VM %d: %+v, %v", s.VMID, seen, err)
		}
	}
}

func TestLabOtherTrouble(t *testing.T) {
	w, ctx := newWorld(t), t.Context()
	s := cloneSpec(1000)
	tests := []struct {
		fault faults.Fault
		kind  error
	}{
		{faults.Fault{Kind: faults.HTTPStatus, Status: 595, Message: "No route to host"}, proxmox.ErrUnreachable},
		{faults.Fault{Kind: faults.HTTPStatus, Status: 403, Message: "Permission check failed (/vms/101, VM.Clone)"}, proxmox.ErrForbidden},
		{faults.Fault{Kind: faults.FailedTask, Message: "clone failed: can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout"}, proxmox.ErrLockTimeout},
		{faults.Fault{Kind: faults.FailedTask, Message: "lvcreate: not enough free space"}, proxmox.ErrStorageFull},
		{faults.Fault{Kind: faults.NoQuorum}, proxmox.ErrNoQuorum},
	}
	for _, test := range tests {
		t.Run(string(test.fault.Kind)+" "+test.fault.Message, func(t *testing.T) {
			test.fault.Place, test.fault.Count = "pve/POST/nodes/*/qemu/*/clone", 1
			if test.fault.Kind == faults.NoQuorum {
				test.fault.Place, test.fault.Count = "pve/quorum", 0
			}
			id, err := w.faults.Inject(test.fault)
			if err != nil {
				t.Fatal(err)
			}
			defer w.faults.Clear(id)
			upid, err := w.client.Clone(ctx, s)
			if err == nil {
				_, err = w.client.WaitTask(ctx, upid, nil)
			}
			if !errors.Is(err, test.kind) {
				t.Errorf("got %v, want %v", err, test.kind)
			}
		})
	}
	w.clone(t, s)
	stranger := refOf(s)
	stranger.Machine = "00000000-0000-4000-8000-000000000009"
	if err := w.client.Destroy(ctx, stranger, nil); !errors.Is(err, proxmox.ErrNotOurs) {
		t.Errorf("destroy another's: %v", err)
	}
	other := cloneSpec(1000)
	other.Mark.Machine = stranger.Machine
	if _, err := w.client.Clone(ctx, other); !errors.Is(err, proxmox.ErrAlreadyExists) {
		t.Errorf("clone over another's: %v", err)
	}
	// Proxmox takes any bridge and fails at the start.
	if err := w.client.WriteConfig(ctx, refOf(s), proxmox.ConfigWish{NICs: []proxmox.NIC{{Index: 0, Bridge: "vmbr9"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.Start(ctx, refOf(s), nil); !errors.Is(err, proxmox.ErrTaskFailed) || !errors.Is(err, proxmox.ErrInvalid) {
		t.Errorf("start with a card on a bridge that is not there: %v", err)
	}
}
