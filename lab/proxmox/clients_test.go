package proxmox_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pve "github.com/luthermonson/go-proxmox"
	"golang.org/x/crypto/ssh"

	"aether.internal/aether/lab/faults"
	labmachine "aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/proxmox"
	"aether.internal/aether/lab/proxmox/access"
)

// api returns go-proxmox on one of the nodes.
func (l *lab) api(node string) *pve.Client {
	l.t.Helper()
	value, ok := strings.CutPrefix(l.secret, "PVEAPIToken=")
	id, secret, found := strings.Cut(value, "=")
	if !ok || !found {
		l.t.Fatal("token")
	}
	return pve.NewClient(l.cluster.Endpoint(node), pve.WithHTTPClient(l.client()), pve.WithAPIToken(id, secret))
}

const interval = 10 * time.Millisecond

// settle waits for a task of go-proxmox.
func settle(ctx context.Context, t *testing.T, task *pve.Task, err error) {
	t.Helper()
	if err == nil {
		err = task.Wait(ctx, interval, 10*time.Second)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestGoProxmox leads a VM through its life.
func TestGoProxmox(t *testing.T) {
	l := start(t)
	ctx := t.Context()
	client := l.api("pv1-2")
	v, err := client.Version(ctx)
	if err != nil || v.Release != "9.2" {
		t.Fatal(v, err)
	}
	cluster, err := client.Cluster(ctx)
	if err != nil || cluster.Name != "homelab" || cluster.Quorate != 1 || len(cluster.Nodes) != 2 {
		t.Fatalf("%+v %v", cluster, err)
	}
	node, err := client.Node(ctx, "pv1-1")
	if err != nil || node.CPUInfo.CPUs != 16 || node.Memory.Total != 292<<30/10 {
		t.Fatalf("%+v %v", node, err)
	}
	template, err := node.VirtualMachine(ctx, 101)
	if err != nil || !bool(template.Template) {
		t.Fatalf("%+v %v", template, err)
	}
	id, task, err := template.Clone(ctx, &pve.VirtualMachineCloneOptions{Name: "w1"})
	if id != 100 {
		t.Errorf("next ID %d", id)
	}
	settle(ctx, t, task, err)
	if free, err := cluster.CheckID(ctx, id); free || err != nil {
		t.Errorf("ID is free: %v %v", free, err)
	}
	machine, err := node.VirtualMachine(ctx, id)
	if err != nil || bool(machine.Template) || !machine.IsStopped() {
		t.Fatalf("%+v %v", machine, err)
	}
	task, err = machine.Config(ctx, pve.VirtualMachineOption{Name: "cores", Value: 4}, pve.VirtualMachineOption{Name: "memory", Value: 4096})
	settle(ctx, t, task, err)
	task, err = machine.AddTag(ctx, "mine")
	settle(ctx, t, task, err)
	task, err = machine.ResizeDisk(ctx, "scsi0", "20G")
	settle(ctx, t, task, err)
	task, err = machine.Start(ctx)
	settle(ctx, t, task, err)
	if err := machine.Ping(ctx); err != nil || !machine.IsRunning() || machine.CPUs != 4 || machine.MaxDisk != 20<<30 {
		t.Errorf("%+v %v", machine, err)
	}
	if err := machine.WaitForAgent(ctx, 5); err != nil {
		t.Error(err)
	}
	if nics, err := machine.AgentGetNetworkIFaces(ctx); err != nil || len(nics) != 1 || nics[0].Name != "eth0" {
		t.Errorf("%v %v", nics, err)
	}
	task, err = machine.Start(ctx)
	if err == nil {
		err = task.Wait(ctx, interval, 10*time.Second)
	}
	var failed *pve.TaskFailedError
	if !errors.As(err, &failed) || failed.ExitStatus != fmt.Sprintf("VM %d already running", id) {
		t.Errorf("second start: %v", err)
	}
	if _, err := machine.Delete(ctx, nil); err == nil || !strings.Contains(err.Error(), "is running - destroy failed") {
		t.Errorf("delete of a running VM: %v", err)
	}
	task, err = machine.Stop(ctx)
	settle(ctx, t, task, err)
	task, err = machine.Delete(ctx, &pve.VirtualMachineDeleteOptions{Purge: true})
	settle(ctx, t, task, err)
	if _, err := node.VirtualMachine(ctx, id); !pve.IsNotFound(err) {
		t.Errorf("deleted VM: %v", err)
	}
	if free, err := cluster.CheckID(ctx, id); !free || err != nil {
		t.Errorf("ID is free: %v %v", free, err)
	}
	storage, err := node.StorageISO(ctx)
	if err != nil || storage.Name != "local" {
		t.Errorf("%+v %v", storage, err)
	}
	resources, err := cluster.Resources(ctx, "vm")
	if err != nil || len(resources) != 4 {
		t.Errorf("%v %v", resources, err)
	}
}

func TestGoProxmoxErrors(t *testing.T) {
	l := start(t, func(c *proxmox.Config) {
		c.Users = append(c.Users, access.User{ID: "op@pve", Password: "secret1"})
		c.ACL = append(c.ACL, access.ACL{Path: "/", Who: "op@pve", Role: "PVEAuditor", Propagate: true})
	})
	ctx := t.Context()
	node := l.api("pv1-1").NodeRef("pv1-1")
	other := l.api("pv1-1").NodeRef("pv1-2")
	id := l.inject(faults.Fault{Kind: faults.HostOff, Place: "pve/host/pv1-2"})
	l.eventually("the host is off", func() bool { return l.cluster.Endpoint("pv1-2") == "" })
	for name, c := range map[string]struct {
		err  func() error
		want error
	}{
		"missing":     {func() error { _, err := node.VirtualMachine(ctx, 999); return err }, pve.ErrNotFound},
		"unreachable": {func() error { return other.Status(ctx) }, pve.ErrNodeUnreachable},
		"bad request": {func() error { _, err := node.VirtualMachine(ctx, 7); return err }, pve.ErrBadRequest},
		"stranger": {func() error {
			_, err := pve.NewClient(l.cluster.Endpoint("pv1-1"), pve.WithHTTPClient(l.client()), pve.WithAPIToken("x@pve!y", "z")).Version(ctx)
			return err
		}, pve.ErrNotAuthorized},
		"wrong password": {func() error {
			_, err := pve.NewClient(l.cluster.Endpoint("pv1-1"), pve.WithHTTPClient(l.client()), pve.WithLogins("op@pve", "no")).Version(ctx)
			return err
		}, pve.ErrNotAuthorized},
		"right password": {func() error {
			client := pve.NewClient(l.cluster.Endpoint("pv1-1"), pve.WithHTTPClient(l.client()), pve.WithLogins("op@pve", "secret1"))
			_, err := client.Nodes(ctx)
			return err
		}, nil},
		"forbidden": {func() error {
			client := pve.NewClient(l.cluster.Endpoint("pv1-1"), pve.WithHTTPClient(l.client()), pve.WithAPIToken(l.narrow()))
			return client.NodeRef("pv1-1").Status(ctx)
		}, pve.ErrForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.err(); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
	l.faults.Clear(id)
}

// narrow makes a token that may do nothing.
func (l *lab) narrow() (id, secret string) {
	value, _ := strings.CutPrefix(l.user("narrow@pve", nil), "PVEAPIToken=")
	id, secret, _ = strings.Cut(value, "=")
	return id, secret
}

// TestClusterAPIProvider does what a usual Cluster API provider does for one
// machine, in its order, and its odd way to delete.
func TestClusterAPIProvider(t *testing.T) {
	l := start(t)
	ctx := t.Context()
	client := l.api("pv1-1")
	if _, err := client.Version(ctx); err != nil {
		t.Fatal(err)
	}
	source, err := client.Node(ctx, "pv1-1")
	if err != nil {
		t.Fatal(err)
	}
	machines, err := source.VirtualMachines(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var reserved uint64
	for _, m := range machines {
		if !m.Template {
			reserved += m.MaxMem
		}
	}
	if containers, err := source.Containers(ctx); err != nil || len(containers) != 0 || reserved != 0 {
		t.Fatal(containers, err, reserved)
	}
	template, err := source.VirtualMachine(ctx, 101)
	if err != nil {
		t.Fatal(err)
	}
	const id = 1000
	_, task, err := template.Clone(ctx, &pve.VirtualMachineCloneOptions{NewID: id, Name: "capi-1", Full: true, Format: "qcow2", Description: "made by a test"})
	settle(ctx, t, task, err)
	machine, err := source.VirtualMachine(ctx, id)
	if err != nil || machine.Name != "capi-1" {
		t.Fatal(machine, err)
	}
	if uuid := machine.VirtualMachineConfig.SMBios1; !strings.HasPrefix(uuid, "uuid=") {
		t.Errorf("provider ID: %q", uuid)
	}
	task, err = machine.Config(ctx,
		pve.VirtualMachineOption{Name: "sockets", Value: 1}, pve.VirtualMachineOption{Name: "cores", Value: 2},
		pve.VirtualMachineOption{Name: "memory", Value: 2048}, pve.VirtualMachineOption{Name: "net0", Value: "virtio,bridge=vmbr0"})
	settle(ctx, t, task, err)
	task, err = machine.ResizeDisk(ctx, "scsi0", "20G")
	settle(ctx, t, task, err)
	task, err = machine.Config(ctx, pve.VirtualMachineOption{Name: "tags", Value: "ip_net0_10.0.0.5"})
	settle(ctx, t, task, err)
	if machine, err = source.VirtualMachine(ctx, id); err != nil {
		t.Fatal(err)
	}
	if err := machine.CloudInit(ctx, "ide0", "#cloud-config\n", "instance-id: x\n", "", "version: 1\n"); err != nil {
		t.Fatal(err)
	}
	task, err = machine.Start(ctx)
	settle(ctx, t, task, err)
	media := l.guests.get(id).Hardware().Media
	if i := slices.IndexFunc(media, func(m labmachine.Medium) bool { return m.Slot == "ide0" }); i < 0 || media[i].Label != "cidata" || string(media[i].Files["user-data"]) != "#cloud-config\n" {
		t.Errorf("media: %+v", media)
	}
	if err := machine.WaitForAgent(ctx, 5); err != nil {
		t.Fatal(err)
	}
	pid, err := machine.AgentExec(ctx, []string{"cloud-init", "status"}, "")
	if err != nil {
		t.Fatal(err)
	}
	status, err := machine.WaitForAgentExecExit(ctx, pid, 2)
	if err != nil || status.ExitCode != 0 || strings.Contains(status.OutData, "running") {
		t.Fatalf("%+v %v", status, err)
	}
	l.deleteLikeAProvider(ctx, client, id)
}

// deleteLikeAProvider stops without waiting, deletes, and asks nextid until
// the number is free.
func (l *lab) deleteLikeAProvider(ctx context.Context, client *pve.Client, id int) {
	l.t.Helper()
	for range 200 {
		cluster, err := client.Cluster(ctx)
		if err != nil {
			l.t.Fatal(err)
		}
		if free, err := cluster.CheckID(ctx, id); err != nil {
			l.t.Fatal(err)
		} else if free {
			return
		}
		node := client.NodeRef("pv1-1")
		machine, err := node.VirtualMachine(ctx, id)
		if err != nil {
			continue
		}
		if machine.IsRunning() {
			if _, err := machine.Stop(ctx); err != nil {
				l.t.Fatal(err)
			}
		}
		if _, err := machine.Delete(ctx, nil); err != nil && !strings.Contains(err.Error(), "is running - destroy failed") {
			l.t.Log(err)
		}
		time.Sleep(interval)
	}
	l.t.Fatal("the VM does not go away")
}

func TestNeighbourFlushDoor(t *testing.T) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewSignerFromSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var flushed []string
	addresses := map[string]string{}
	l := start(t, func(c *proxmox.Config) {
		listen := c.Listen
		c.Listen = func(node, address string) (net.Listener, error) {
			l, err := listen(node, address)
			if err == nil && strings.HasSuffix(address, ":22") {
				addresses[node] = l.Addr().String()
			}
			return l, err
		}
		c.AuthorizedKeys = []ssh.PublicKey{key.PublicKey()}
		c.FlushNeighbour = func(node, device string, ip netip.Addr) error {
			mu.Lock()
			defer mu.Unlock()
			flushed = append(flushed, node+" "+device+" "+ip.String())
			return nil
		}
	})
	client, err := ssh.Dial("tcp", addresses["pv1-2"], &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.FixedHostKey(l.cluster.HostKey("pv1-2")),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Run("ip neigh flush to 10.1.1.10 dev vmbr1"); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(flushed, []string{"pv1-2 vmbr1 10.1.1.10"}) {
		t.Errorf("flushed %q", flushed)
	}
}

func TestStandalone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out lockedBuffer
	ended := make(chan error, 1)
	go func() {
		ended <- proxmox.RunStandalone(ctx, proxmox.StandaloneOptions{Listen: "127.0.0.1:0", Speed: speed, Out: &out})
	}()
	for range 500 {
		if strings.Contains(out.String(), "END CERTIFICATE") {
			break
		}
		time.Sleep(interval)
	}
	text := out.String()
	for _, want := range []string{"https://127.0.0.1:", "pv1-1", "pv1-2", "PVEAPIToken=aether@pve!lab=", "BEGIN CERTIFICATE"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "127.0.0.1", "127.0.0.1:x", "example:1"} {
		if err := proxmox.RunStandalone(t.Context(), proxmox.StandaloneOptions{Listen: bad, Out: &out}); err == nil || !strings.Contains(err.Error(), "host:port") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
