package talos_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"aether.internal/aether/internal/talos"
	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/talos/maintenance"
)

const uuid = "6f1c2f0a-7c38-4f3e-9d55-0d6a5a0b9c11"

// cloud is the platform mode of a nocloud machine.
type cloud struct{}

func (cloud) String() string        { return "cloud" }
func (cloud) RequiresInstall() bool { return false }
func (cloud) InContainer() bool     { return false }

// node is a machine in maintenance mode on the loopback.
type node struct {
	address netip.AddrPort
	faults  *faults.Set
	applied atomic.Int32
	done    chan struct{}

	mu     sync.Mutex
	config string
}

func (n *node) received() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.config
}

func startNode(t *testing.T) *node {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{address: netip.MustParseAddrPort(listener.Addr().String()), faults: &faults.Set{}, done: make(chan struct{})}
	server := maintenance.New(maintenance.Config{
		Machine: maintenance.Machine{
			UUID: strings.ToUpper(uuid), Disks: []maintenance.Disk{{Device: "sda", Bytes: 20 << 30}, {Device: "sr0", Bytes: 1 << 20, ReadOnly: true}},
		},
		Mode: cloud{}, Faults: n.faults, Place: "talos/node",
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(n.done)
		config, err := server.Wait(ctx, listener)
		if err == nil {
			n.applied.Add(1)
			n.mu.Lock()
			n.config = string(config)
			n.mu.Unlock()
		}
	}()
	t.Cleanup(func() { cancel(); <-n.done })
	return n
}

func inject(t *testing.T, n *node, f faults.Fault) {
	t.Helper()
	if _, err := n.faults.Inject(f); err != nil {
		t.Fatal(err)
	}
}

func client() *talos.Maintenance {
	return talos.NewMaintenance(talos.MaintenanceOptions{Interval: 10 * time.Millisecond, Settle: 100 * time.Millisecond, CallTimeout: 2 * time.Second})
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestDeliver(t *testing.T) {
	n := startNode(t)
	in := worker(t)
	target := talos.Target{Address: n.address, UUID: uuid}
	ctx := within(t, 20*time.Second)
	if err := client().WaitMaintenance(ctx, target, nil); err != nil {
		t.Fatal(err)
	}
	outcome, err := client().Deliver(ctx, target, render(t, in))
	if err != nil || outcome != talos.Applied {
		t.Fatalf("outcome %q, error %v", outcome, err)
	}
	<-n.done
	if findings := talos.Check([]byte(n.received()), in); len(findings) > 0 {
		t.Errorf("the machine got another configuration: %v", findings)
	}
}

func TestDeliverOutcomeUnknown(t *testing.T) {
	cases := map[string]struct {
		fault faults.Fault
		want  talos.Outcome
	}{
		"answer lost after the effect": {faults.Fault{Kind: faults.LostAnswer, Place: "talos/node/ApplyConfiguration", Count: 1}, talos.AlreadyApplied},
		"answer too late":              {faults.Fault{Kind: faults.Hold, Place: "talos/node/ApplyConfiguration", Count: 1}, talos.AlreadyApplied},
		"request never arrives":        {faults.Fault{Kind: faults.Delay, Place: "talos/node/ApplyConfiguration", Count: 1, Delay: time.Hour}, talos.Applied},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n := startNode(t)
			inject(t, n, c.fault)
			outcome, err := client().Deliver(within(t, 20*time.Second), talos.Target{Address: n.address, UUID: uuid}, render(t, worker(t)))
			if err != nil || outcome != c.want {
				t.Fatalf("outcome %q, error %v; want %q", outcome, err, c.want)
			}
			<-n.done
			if got := n.applied.Load(); got != 1 {
				t.Errorf("applied %d times", got)
			}
		})
	}
}

// A worker died after it had sent the configuration; the next attempt finds a
// closed port.
func TestDeliverAgainAfterDeath(t *testing.T) {
	n := startNode(t)
	target := talos.Target{Address: n.address, UUID: uuid}
	ctx := within(t, 20*time.Second)
	if _, err := client().Deliver(ctx, target, render(t, worker(t))); err != nil {
		t.Fatal(err)
	}
	<-n.done
	if _, err := client().Deliver(ctx, target, render(t, worker(t))); !errors.Is(err, talos.ErrUnreachable) {
		t.Errorf("first attempt against a closed port: %v, want ErrUnreachable", err)
	}
	target.MayHaveConfig = true
	outcome, err := client().Deliver(ctx, target, render(t, worker(t)))
	if err != nil || outcome != talos.AlreadyApplied {
		t.Errorf("outcome %q, error %v; want %q", outcome, err, talos.AlreadyApplied)
	}
}

// A machine that does not answer is not a machine that left maintenance mode.
func TestUnreachableIsNotApplied(t *testing.T) {
	silent := talos.NewMaintenance(talos.MaintenanceOptions{
		Interval: 10 * time.Millisecond, Settle: 20 * time.Millisecond,
		Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no route to host") },
	})
	target := talos.Target{Address: netip.MustParseAddrPort("192.0.2.1:50000"), UUID: uuid, MayHaveConfig: true}
	outcome, err := silent.Deliver(within(t, 300*time.Millisecond), target, render(t, worker(t)))
	if !errors.Is(err, talos.ErrUnreachable) || outcome != "" {
		t.Errorf("outcome %q, error %v; want ErrUnreachable", outcome, err)
	}
	heard := 0
	err = silent.WaitMaintenance(within(t, 100*time.Millisecond), target, func(string) { heard++ })
	if !errors.Is(err, talos.ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) || heard == 0 {
		t.Errorf("error %v after %d heartbeats", err, heard)
	}
}

func TestWrongMachineGetsNothing(t *testing.T) {
	n := startNode(t)
	target := talos.Target{Address: n.address, UUID: "00000000-0000-0000-0000-000000000000"}
	ctx := within(t, 20*time.Second)
	for name, err := range map[string]error{
		"wait":    client().WaitMaintenance(ctx, target, nil),
		"deliver": second(client().Deliver(ctx, target, render(t, worker(t)))),
	} {
		var wrong *talos.WrongMachineError
		if !errors.As(err, &wrong) || !strings.EqualFold(wrong.Found, uuid) {
			t.Errorf("%s: %v, want a WrongMachineError that names %s", name, err, uuid)
		}
	}
	if n.applied.Load() != 0 {
		t.Error("the wrong machine got a configuration")
	}
}

func second(_ talos.Outcome, err error) error { return err }

func TestDeliverRefused(t *testing.T) {
	cases := map[string]struct {
		change func(string) string
		want   string
	}{
		"unknown key":  {func(c string) string { return strings.Replace(c, "certSANs:", "certSANz:", 1) }, "unknown keys"},
		"disk":         {func(c string) string { return strings.Replace(c, "/dev/sda", "/dev/vda", 1) }, "/dev/sda (20 GiB)"},
		"machine type": {func(c string) string { return strings.Replace(c, "type: worker", "type: wroker", 1) }, "wroker"},
		"not YAML":     {func(string) string { return "\t" }, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n := startNode(t)
			_, err := client().Deliver(within(t, 20*time.Second), talos.Target{Address: n.address, UUID: uuid}, []byte(c.change(string(render(t, worker(t))))))
			var invalid *talos.InvalidConfigError
			if !errors.As(err, &invalid) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want an InvalidConfigError with %q", err, c.want)
			}
			if strings.Contains(err.Error(), "0123456789abcdef") {
				t.Error("the error shows the token")
			}
			if n.applied.Load() != 0 {
				t.Error("the machine got the configuration")
			}
		})
	}
}

// A machine with a configuration asks for a client certificate.
func TestConfiguredMachine(t *testing.T) {
	ca, err := tls.X509KeyPair(keyPair(t))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{ca}, ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = conn.(*tls.Conn).Handshake()
				_ = conn.Close()
			}()
		}
	}()
	target := talos.Target{Address: netip.MustParseAddrPort(listener.Addr().String()), UUID: uuid}
	if err := client().WaitMaintenance(within(t, 10*time.Second), target, nil); !errors.Is(err, talos.ErrNotMaintenance) {
		t.Errorf("got %v, want ErrNotMaintenance", err)
	}
}

func TestWaitMaintenanceHearsWhileItWaits(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := netip.MustParseAddrPort(listener.Addr().String())
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	var seen []string
	err = client().WaitMaintenance(within(t, 100*time.Millisecond), talos.Target{Address: address, UUID: uuid}, func(s string) { seen = append(seen, s) })
	if !errors.Is(err, talos.ErrUnreachable) || len(seen) < 2 || !strings.Contains(seen[0], "port is closed") {
		t.Errorf("error %v, seen %q", err, seen)
	}
}

func keyPair(t *testing.T) (cert, key []byte) {
	t.Helper()
	ca, err := talos.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca.Certificate, []byte(strings.ReplaceAll(string(ca.Key), "ED25519 PRIVATE KEY", "PRIVATE KEY"))
}
