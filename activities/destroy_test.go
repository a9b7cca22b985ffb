package activities

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh/knownhosts"

	"aether.internal/aether/internal/proxmox"
	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/proxmox/access"
)

// asRoot does what only root may on a host.
func (w *world) asRoot(method, path string, parameters url.Values) {
	w.t.Helper()
	if w.root == "" {
		var err error
		if w.root, err = w.sim.Token(access.Token{ID: "root@pam!test"}); err != nil {
			w.t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(w.sim.CAPEM())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(w.t.Context(), method, w.sim.Endpoint("pv1-1")+path, strings.NewReader(parameters.Encode()))
	if err != nil {
		w.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Authorization", "PVEAPIToken=root@pam!test="+w.root)
	response, err := transport.RoundTrip(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // only read
	if response.StatusCode != http.StatusOK {
		w.t.Fatalf("%s %s: %s", method, path, response.Status)
	}
}

// TestCloneVMLeavesADeadCloneBehind: a VM that is locked by a clone of which no
// task is left can be freed by root alone; the machine gets another VMID, and
// the message says what to do about the first.
func TestCloneVMLeavesADeadCloneBehind(t *testing.T) {
	w := newWorldAt(t, 5, tenantObject(), workerVM(workerID, "pv1-1"))
	w.lease(workerID)
	ctx, kill := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.proxmox().CloneVM(ctx, refOf(workerID)) }()
	w.eventuallyCloning()
	kill()
	<-ended
	off := w.inject(faults.Fault{Kind: faults.HostOff, Place: "pve/host/pv1-1"})
	eventually(t, "host off", func() bool { _, err := w.pve.NodeStatus(t.Context(), "pv1-1"); return err != nil })
	w.faults.Clear(off)
	eventually(t, "host on", func() bool { _, err := w.pve.NodeStatus(t.Context(), "pv1-1"); return err == nil })
	if lock := w.rawConfig(1000)["lock"]; lock != "clone" {
		t.Fatalf("the VM has the lock %q", lock)
	}
	failures := w.clone(workerID)
	if len(failures) != 1 {
		t.Fatalf("failures %v", failures)
	}
	if err := errorIs(failures[0], WaitingType, false, "VMID 1000", "qm unlock 1000 && qm destroy 1000", "VMID 1001 is leased"); err != nil {
		t.Error(err)
	}
	if seen := w.observed(workerID); seen.VM.VMID != 1001 || seen.Belongs(workerID) != nil {
		t.Errorf("got %+v", seen.VM)
	}
	// It rests, so that no one is given the blocked VMID at once.
	held, err := w.leases.InPool(t.Context(), "homelab")
	if err != nil || len(held) != 2 || held[0].Value != "1000" || held[0].FreeAt.IsZero() {
		t.Errorf("leases %+v, %v", held, err)
	}
}

func TestDestroyVM(t *testing.T) {
	w := leased(t)
	w.clone(workerID)
	if err := errors.Join(w.proxmox().ConfigureVM(t.Context(), refOf(workerID)), w.proxmox().StartVM(t.Context(), refOf(workerID))); err != nil {
		t.Fatal(err)
	}
	volumes := len(w.sim.Volumes("pv1-1"))
	w.twice("DestroyVM", func() error { return w.proxmox().DestroyVM(t.Context(), refOf(workerID)) })
	if w.count() != 0 || w.vm(workerID).Status.Phase != "Removing" {
		t.Errorf("%d VMs, phase %s", w.count(), w.vm(workerID).Status.Phase)
	}
	if left := len(w.sim.Volumes("pv1-1")); left >= volumes {
		t.Errorf("%d volumes of %d are left: %v", left, volumes, w.sim.Volumes("pv1-1"))
	}
}

func TestDestroyVMAfterALostAnswer(t *testing.T) {
	for _, place := range []string{"pve/POST/nodes/*/qemu/*/status/stop", "pve/DELETE/nodes/*/qemu/*"} {
		t.Run(place, func(t *testing.T) {
			w := leased(t)
			w.clone(workerID)
			if err := w.proxmox().StartVM(t.Context(), refOf(workerID)); err != nil {
				t.Fatal(err)
			}
			id := w.inject(faults.Fault{Kind: faults.LostAnswer, Place: place, Count: 1})
			if err := errorIs(w.proxmox().DestroyVM(t.Context(), refOf(workerID)), UnavailableType, false); err != nil || w.hits(id) != 1 {
				t.Fatalf("%v, %d hits", err, w.hits(id))
			}
			w.twice("DestroyVM", func() error { return w.proxmox().DestroyVM(t.Context(), refOf(workerID)) })
			if w.count() != 0 {
				t.Errorf("%d VMs", w.count())
			}
		})
	}
}

// TestDestroyVMWaitsForACloneInFlight: it must not call gone what is about to
// appear.
func TestDestroyVMWaitsForACloneInFlight(t *testing.T) {
	w := newWorldAt(t, 5, tenantObject(), workerVM(workerID, "pv1-1"))
	w.lease(workerID)
	ctx, kill := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.proxmox().CloneVM(ctx, refOf(workerID)) }()
	w.eventuallyCloning()
	kill()
	<-ended
	w.twice("DestroyVM", func() error { return w.proxmox().DestroyVM(t.Context(), refOf(workerID)) })
	if w.count() != 0 {
		t.Errorf("%d VMs", w.count())
	}
}

func TestDestroyVMNeverTouchesAStrangersVM(t *testing.T) {
	for name, mark := range map[string]proxmox.Mark{
		"another machine's": {Machine: worker2ID, Tenant: "other", Role: proxmox.RoleWorker},
		"unmarked":          {},
	} {
		t.Run(name, func(t *testing.T) {
			w := leased(t)
			w.foreign(1000, mark)
			w.twice("DestroyVM", func() error { return w.proxmox().DestroyVM(t.Context(), refOf(workerID)) })
			if w.count() != 1 || w.rawConfig(1000)["name"] != "stranger" {
				t.Error("the stranger's VM is gone")
			}
		})
	}
}

// TestDestroyVMFindsAMovedVM: an operator moved it to the other host. Absent
// from its own host is not gone.
func TestDestroyVMFindsAMovedVM(t *testing.T) {
	w := newWorld(t, tenantObject(), workerVM(workerID, "pv1-2"))
	w.lease(workerID)
	w.foreign(1000, w.platformMachine(workerID).mark()) // on pv1-1
	eventually(t, "the cluster's list to show it", func() bool {
		seen, err := w.pve.FindVM(t.Context(), 1000)
		return err == nil && seen.VM.Node == "pv1-1"
	})
	w.twice("DestroyVM", func() error { return w.proxmox().DestroyVM(t.Context(), refOf(workerID)) })
	if w.count() != 0 {
		t.Errorf("%d VMs", w.count())
	}
}

func TestDestroyVMThatWasNeverLeasedOrRecorded(t *testing.T) {
	w := newWorld(t, workerVM(workerID, "pv1-1"))
	for _, id := range []string{workerID, worker2ID} {
		if err := w.proxmox().DestroyVM(t.Context(), refOf(id)); err != nil {
			t.Error(err)
		}
	}
}

// TestDestroyVMThatIsProtected: removal never gives up, but it waits for the
// person who must act.
func TestDestroyVMThatIsProtected(t *testing.T) {
	w := leased(t)
	w.clone(workerID)
	w.asRoot(http.MethodPut, "/nodes/pv1-1/qemu/1000/config", url.Values{"protection": {"1"}})
	err := w.proxmox().DestroyVM(t.Context(), refOf(workerID))
	if err := errorIs(err, InvalidType, false, "protection mode enabled", "clear the protection flag"); err != nil {
		t.Error(err)
	}
	if application, ok := applicationError(err); !ok || application.NextRetryDelay() != insistEvery {
		t.Errorf("the next attempt is not after %s", insistEvery)
	}
	if w.count() != 1 {
		t.Error("it is gone")
	}
	w.asRoot(http.MethodPut, "/nodes/pv1-1/qemu/1000/config", url.Values{"protection": {"0"}})
	w.twice("DestroyVM", func() error { return w.proxmox().DestroyVM(t.Context(), refOf(workerID)) })
	if w.count() != 0 {
		t.Error("it is still there")
	}
}

// door is the way to the simulator's hosts.
func (w *world) door() *proxmox.Door {
	w.t.Helper()
	var known []string
	for _, host := range w.site.Spec.Proxmox[0].Hosts {
		known = append(known, knownhosts.Line([]string{host.Address.String()}, w.sim.HostKey(host.Name)))
	}
	door, err := proxmox.NewDoor(proxmox.DoorConfig{User: "root", Key: w.sshKey, KnownHosts: known, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		for _, host := range w.site.Spec.Proxmox[0].Hosts {
			if address == net.JoinHostPort(host.Address.String(), "22") {
				w.mu.Lock()
				real := w.addresses[host.Name+" 22"]
				w.mu.Unlock()
				return (&net.Dialer{}).DialContext(ctx, network, real)
			}
		}
		return nil, errors.New("no such host")
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	return door
}

func TestFlushNeighbours(t *testing.T) {
	w := leased(t)
	p, door := w.proxmox(), w.door()
	p.Door = func(string) (*proxmox.Door, error) { return door, nil }
	w.twice("FlushNeighbours", func() error { return p.FlushNeighbours(t.Context(), refOf(workerID)) })
	want := []string{"pv1-1 vmbr1 10.1.1.50", "pv1-2 vmbr1 10.1.1.50", "pv1-1 vmbr2 10.1.2.50", "pv1-2 vmbr2 10.1.2.50"}
	if got := w.takeFlushed(); !slices.Equal(got, append(slices.Clone(want), want...)) {
		t.Errorf("flushed %v", got)
	}
	// A network that a host does not carry has no bridge to be flushed there.
	w.site.Spec.Networks[2].Hosts = []string{"pv1-1"}
	if err := p.FlushNeighbours(t.Context(), refOf(workerID)); err != nil {
		t.Fatal(err)
	}
	if got := w.takeFlushed(); !slices.Equal(got, want[:3]) {
		t.Errorf("flushed %v", got)
	}
	// Another host that is off is passed over; its entries age meanwhile.
	id := w.inject(faults.Fault{Kind: faults.HostOff, Place: "pve/host/pv1-2"})
	eventually(t, "host off", func() bool { _, err := w.pve.NodeStatus(t.Context(), "pv1-2"); return err != nil })
	if err := p.FlushNeighbours(t.Context(), refOf(workerID)); err != nil {
		t.Error(err)
	}
	if got := w.takeFlushed(); !slices.Equal(got, []string{want[0], want[2]}) {
		t.Errorf("flushed %v", got)
	}
	w.faults.Clear(id)
	// Its own host must do it.
	w.inject(faults.Fault{Kind: faults.HostOff, Place: "pve/host/pv1-1"})
	eventually(t, "host off", func() bool { _, err := w.pve.NodeStatus(t.Context(), "pv1-1"); return err != nil })
	if err := errorIs(p.FlushNeighbours(t.Context(), refOf(workerID)), UnavailableType, false, "192.168.0.8"); err != nil {
		t.Error(err)
	}
}

func (w *world) takeFlushed() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	got := w.flushed
	w.flushed = nil
	return got
}

func TestFlushNeighboursWithoutADoorOrWithAnotherKey(t *testing.T) {
	w := leased(t)
	if err := w.proxmox().FlushNeighbours(t.Context(), refOf(workerID)); err != nil {
		t.Errorf("a site without a door: %v", err)
	}
	p := w.proxmox()
	stranger := newWorld(t)
	w.sshKey = stranger.sshKey
	door := w.door()
	p.Door = func(string) (*proxmox.Door, error) { return door, nil }
	err := p.FlushNeighbours(t.Context(), refOf(workerID))
	if err := errorIs(err, ForbiddenType, true, "authorized_keys"); err != nil {
		t.Error(err)
	}
}
